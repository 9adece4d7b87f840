"""Write profiles.yaml with units, and the JSON Schemas of all documents for editors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.folders import write_file

# Significant digits: more than any measurement has; the rounding error is at most one part in two million.
DIGITS = 7

_HEADER = """\
Written by `jellybean profile`; may be edited by hand. All times are for one batch on one worker.
latency: worker type -> batch size -> measurement. message: size of one output on the wire.
provenance: the run that measured an entry, and with what; for an entry changed by hand write {source: by hand}.
"""


def profiles_text(document: ProfilesDocument, *, digits: int = DIGITS, header: str = _HEADER) -> str:
    """The document as YAML text with units; the measurements of one batch size are on one line."""
    dumped = document.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, context={"digits": digits}
    )
    root = CommentedMap({"kind": "Profiles", **dumped})
    _lay_out(root)
    for variants in root.get("cascades", {}).values():
        for cascade in variants.values():
            _lay_out(cascade)
    if "hop" in root:
        root["hop"] = root["hop"]["time"] if set(root["hop"]) == {"time"} else _flow(root["hop"])
    if "runs" in root:
        root["runs"] = {int(number): {**run, **_measured_content(run)} for number, run in root["runs"].items()}
    root.yaml_set_start_comment(header)
    yaml = YAML()
    yaml.width = 1000
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(root, stream)
    return stream.getvalue()


def _lay_out(part: dict[str, Any]) -> None:
    """Put measurements, origins and rows of accuracy on one line each, in place."""
    for variants in part["operators"].values():
        for profile in variants.values():
            _lay_out_variant(profile)
    if "provenance" in part:
        part["provenance"] = _origins(part["provenance"])
    accuracy = part.get("accuracy", {})
    if "end_to_end" in accuracy:
        accuracy["end_to_end"] = [
            _flow({**row, "selection": _flow(row["selection"])}) for row in accuracy["end_to_end"]
        ]
    for variants in accuracy.get("per_operator", {}).values():
        for name, points in variants.items():
            variants[name] = points[0]["output"] if _single(points) else [_flow(point) for point in points]


def write_profiles(path: Path, document: ProfilesDocument) -> None:
    """Write profiles.yaml atomically (temporary file and rename)."""
    write_file(path, profiles_text(document))


def _lay_out_variant(profile: dict[str, Any]) -> None:
    """Put measurements and origins on one line each, in place."""
    for measured in _measured(profile):
        measured["latency"] = {name: _latency(batches) for name, batches in measured["latency"].items()}
    for cut in profile.get("cuts", ()):
        for stage in (cut["head"], cut["tail"]):
            if "provenance" in stage:
                stage["provenance"] = {name: _flow(origin) for name, origin in stage["provenance"].items()}
    if "children" in profile:
        profile["children"] = _row(profile["children"])
    if "provenance" in profile:
        profile["provenance"] = _origins(profile["provenance"])


def _measured(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """The profile of a variant, followed by the profiles of both stages of each of its cuts."""
    return [profile, *(cut[side] for cut in profile.get("cuts", ()) for side in ("head", "tail"))]


def _latency(batches: dict[str, Any]) -> Any:
    rows: dict[int, Any] = {}
    for size, figures in batches.items():
        rows[int(size)] = figures["mean"] if set(figures) == {"mean"} else _flow(figures)
    return rows[1] if set(rows) == {1} else rows


def _origins(provenance: dict[str, Any]) -> dict[str, Any]:
    """Provenance with one origin a line."""
    lines: dict[str, Any] = {key: _flow(value) for key, value in provenance.items() if key != "latency"}
    if "latency" in provenance:
        lines = {"latency": {name: _flow(origin) for name, origin in provenance["latency"].items()}, **lines}
    return lines


def _measured_content(run: dict[str, Any]) -> dict[str, Any]:
    """The content that a run measured, with one operator a line."""
    laid_out = {"batches": _row(run["batches"])} if "batches" in run else {}
    if not run.get("measured"):
        return laid_out
    content = {**run["measured"]}
    for key, line in (("models", _flow), ("edges", _row)):
        if key in content:
            content[key] = {name: line(items) for name, items in content[key].items()}
    if "inputs" in content:
        content["inputs"] = _flow(content["inputs"])
    return {**laid_out, "measured": content}


def _single(points: list[dict[str, Any]]) -> bool:
    return len(points) == 1 and not points[0].get("inputs")


def _row(values: list[Any]) -> CommentedSeq:
    """The list, marked to be written on one line (YAML flow style)."""
    row = CommentedSeq(values)
    row.fa.set_flow_style()
    return row


def _flow(value: dict[str, Any]) -> CommentedMap:
    """The map, marked to be written on one line (YAML flow style)."""
    row = CommentedMap(value)
    row.fa.set_flow_style()
    return row


def json_schemas() -> dict[str, dict[str, Any]]:
    """Kind of document -> its JSON Schema (draft 2020-12)."""
    from jellybean.documents.training import TrainingDocument  # a fifth of the time of importing all documents

    models: dict[str, type[BaseModel]] = {
        "Workflow": WorkflowDocument,
        "Infrastructure": InfrastructureDocument,
        "Profiles": ProfilesDocument,
        "Training": TrainingDocument,
    }
    return {kind: _schema(kind, model) for kind, model in models.items()}


def _schema(kind: str, model: type[BaseModel]) -> dict[str, Any]:
    schema = _tidy(model.model_json_schema(by_alias=True))
    schema["required"] = list(dict.fromkeys(["kind", *schema.get("required", [])]))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": f"JellyBean {kind}"}


def _tidy(node: Any) -> Any:
    """Simplify a JSON Schema: remove titles that repeat a key, and null types, because empty values are rejected.

    Map keys are restricted to valid names.
    """
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _tidy(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    options = [option for option in node.get("anyOf", []) if option != {"type": "null"}]
    if len(options) < len(node.get("anyOf", [])):
        node.pop("anyOf")
        if node.get("default", "") is None:
            node.pop("default")
        node = {**options[0], **node} if len(options) == 1 else {"anyOf": options, **node}
    if "patternProperties" in node:
        node.setdefault("additionalProperties", False)
    return node
