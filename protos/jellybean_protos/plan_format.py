"""The format of a plan document: its versions, canonical JSON and content hash.

The solver writes and reads whole plans, an agent reads one worker's part; both take the format from here. Standard
library only, so that a device that runs an agent needs no solver.

A document is a JSON object: `kind`, `version` and `hash` (the header), then the fields of the plan (the body).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

KIND = "Plan"
VERSION = 3  # version written where it is enough; it added `sites` and `workflows`
MODEL_KEYS_VERSION = 4  # written if a model has one of `MODEL_KEYS`: a reader that ignores them serves wrong tensors
MODEL_KEYS = frozenset({"ports", "files"})
DEVICE_VERSION = 5  # written if a worker has one of `DEVICE_KEYS`: a reader that ignores them computes on the CPU
DEVICE_KEYS = frozenset({"device", "device_options"})
MIXED_VERSION = 6  # written if an operator has several variants: a reader that ignores them runs the first everywhere
ROUTING_VERSION = 7  # written if a plan has one of `ROUTING_KEYS`: a reader that ignores them sends requests elsewhere
ROUTING_KEYS = ("fallbacks", "spread")
PARTIAL_VERSION = 8  # written if a plan of several workflows has fallbacks: a reader of 7 takes it to be of one
# 2: one site per tier, one workflow; 1, which lacks batch sizes, is not readable.
READABLE_VERSIONS = (2, 3, 4, 5, 6, 7, 8)
HEADER_KEYS = frozenset({"kind", "version", "hash"})
WORKFLOW_SEPARATOR = "/"  # between a workflow's name and an operator's or source's, if there are several workflows

_FILE_NAME = re.compile(r"[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")

# What values of other types, numbers out of range and endless depth raise where they are read.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class PlanFormatError(ValueError):
    """A document is not a plan, has an unsupported version, or was changed after it was written (wrong hash)."""


def qualified_name(workflow: str, name: str) -> str:
    """The name of a source or operator of one of several workflows."""
    return f"{workflow}{WORKFLOW_SEPARATOR}{name}"


def selection_text(variants: Mapping[str, str]) -> str:
    """A selection by its variants of the operators of which a plan mixes several: `detect=small, read=big`."""
    return ", ".join(f"{operator}={variant}" for operator, variant in sorted(variants.items()))


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, so that equal values have equal text. ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(document: Mapping[str, Any]) -> str:
    """sha256 (64 hex digits) of the canonical JSON of a document without its header."""
    body = {key: value for key, value in document.items() if key not in HEADER_KEYS}
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


def with_header(body: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a plan: its fields (`body`) preceded by `kind`, `version` and `hash`."""
    return {"kind": KIND, "version": _version_of(body), "hash": content_hash(body), **body}


def _version_of(body: Mapping[str, Any]) -> int:
    """The oldest version whose readers serve the plan right, so that older agents refuse no other plans."""
    if body.get("fallbacks") and body.get("workflows"):
        return PARTIAL_VERSION
    if any(body.get(key) for key in ROUTING_KEYS):
        return ROUTING_VERSION
    if any(operator.get("others") for operator in body["operators"]):
        return MIXED_VERSION
    if any(DEVICE_KEYS & worker.keys() for worker in body["workers"]):
        return DEVICE_VERSION
    models = (operator.get("model") or {} for operator in body["operators"])
    return MODEL_KEYS_VERSION if any(MODEL_KEYS & model.keys() for model in models) else VERSION


def body_of(document: Any, reader: str) -> dict[str, Any]:
    """The plan's fields of a document whose kind, version and hash are right; PlanFormatError otherwise.

    `reader`: the program that reads it, for the message ("this agent").
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise PlanFormatError(f"not a plan: kind is not {KIND!r}")
    if document.get("version") not in READABLE_VERSIONS:
        versions = f"{READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}"
        raise PlanFormatError(f"plan version {document.get('version')!r}; {reader} reads {versions}: plan again")
    try:
        content = content_hash(document)
    except UNREADABLE as error:
        raise PlanFormatError(f"not a plan: {error}") from error
    if content != document.get("hash"):
        raise PlanFormatError("the plan's content does not match its hash: it was changed by hand; plan again")
    body = {key: value for key, value in document.items() if key not in HEADER_KEYS}
    try:
        wrong = next((name for name in _names_of_files(body) if not _is_file_name(name)), None)
    except UNREADABLE as error:
        raise PlanFormatError(f"not a plan: {type(error).__name__} {error}") from error
    if wrong is not None:
        raise PlanFormatError(f"{str(wrong)[:60]!a} is no name, as files are named by it: plan again")
    return body


def _names_of_files(body: Mapping[str, Any]) -> Iterator[Any]:
    """The names of a plan after which logs, certificates, spools and folders are named."""
    yield from body["tiers"]
    yield from (worker["name"] for worker in body["workers"])
    yield from (workflow["name"] for workflow in body.get("workflows", ()))


def _is_file_name(name: Any) -> bool:
    """True for text that names a file in a folder, and none elsewhere. A site's worker has its site before it."""
    parts = name.split(WORKFLOW_SEPARATOR) if isinstance(name, str) else [""]
    return all(_FILE_NAME.fullmatch(part) is not None and part not in (".", "..") for part in parts)
