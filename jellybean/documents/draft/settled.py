"""TODO comments of drafts whose subject was changed by hand since, so that they have nothing left to ask.

Only comments that `init` wrote, word for word, are judged: a comment that a person wrote or changed is left alone. So
are two of its own whose answer is not in the documents: random held-out inputs, and the metric.

Documents are judged before they are validated: any value may stand in any place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.draft.blank import BLANK_INPUTS_TODO, BLANK_MODELS_TODO, DRAFT_INFRASTRUCTURE
from jellybean.documents.draft.port_comments import variant_models
from jellybean.documents.draft.text import LABELS_TODO, SLO_TODO, SOURCES_TODO
from jellybean.documents.schema.reader import read_text
from jellybean_agent import unserved_reason

Data = Mapping[str, Any]  # a document as written


@dataclass(frozen=True)
class _Rule:
    """The form of a comment, and why it is settled in a document, or an empty text."""

    form: re.Pattern[str]
    why: Callable[[re.Match[str], Data], str]


def resolved_reason(text: str, document: Data) -> str:
    """Why a TODO comment is settled; empty if it is not, or if `init` did not write it."""
    for rule in _RULES:
        if match := rule.form.fullmatch(text):
            return rule.why(match, document)
    return ""


def _section(document: Data, name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _sources_changed(_: re.Match[str], document: Data) -> str:
    sources = [source for source in _section(document, "sources").values() if isinstance(source, Mapping)]
    changed = bool(sources) and all(source.get("rate") != "1/s" for source in sources)
    return "every source has a rate of its own" if changed else ""


def _inputs_written(match: re.Match[str], document: Data) -> str:
    source = _section(document, "sources").get(match["source"])
    if not isinstance(source, Mapping):
        return f"there is no source {match['source']} any more"
    return f"{match['source']} has inputs" if source.get("inputs") is not None else ""


def _array_changed(match: re.Match[str], document: Data) -> str:
    source = _section(document, "sources").get(match["source"])
    if not isinstance(source, Mapping):
        return f"there is no source {match['source']} any more"
    return f"{match['source']} sends another array" if source.get("inputs") != match["array"] else ""


def _exported_anew(match: re.Match[str], document: Data) -> str:
    operator = _section(document, "operators").get(match["operator"])
    if not isinstance(operator, Mapping):
        return f"there is no operator {match['operator']} any more"
    variants = [variant for variant in _section(operator, "variants").values() if isinstance(variant, Mapping)]
    is_there = any(str(variant.get("sha256")).startswith(match["sha256"]) for variant in variants)
    return "" if is_there else f"{match['operator']} has no model of that SHA-256 any more"


def _variant_has_output(match: re.Match[str], document: Data) -> str:
    operator = _section(document, "operators").get(match["operator"])
    variant = _section(operator, "variants").get(match["variant"]) if isinstance(operator, Mapping) else None
    if not isinstance(variant, Mapping):
        return f"there is no variant {match['variant']} of {match['operator']} any more"
    return f"{match['variant']} of {match['operator']} has an output" if variant.get("output") is not None else ""


def follow_up(text: str, document: Data, folder: Path) -> str:
    """What is left to check once a TODO is settled, as the text of a new TODO; empty if nothing is.

    A classifier whose ZipMap gave way to a tensor still answers with the class: `init` would have drafted the scores.
    """
    match = re.fullmatch(_ZIPMAP, text)
    operators = _section(document, "operators")
    if match is None or match["operator"] in _upstreams(operators):
        return ""
    operator = _section(operators, match["operator"])
    for variant, model in variant_models(operator, folder).items():
        label = next((port for port in model.signature.outputs if port.name == model.label), None)
        has_output = _section(_section(operator, "variants"), variant).get("output") is not None
        if (
            label is not None
            and model.answer is not None
            and not has_output
            and not unserved_reason(label.tensor.dtype)
        ):
            return (
                f"check that {match['operator']} answers with {label.name}, the class: to answer with the scores, "
                f"write output: {model.answer} in variant {variant}"
            )
    return ""


def _edge_changed(match: re.Match[str], document: Data) -> str:
    """True once the operator has no edge that is written as it was drafted."""
    operator = _section(document, "operators").get(match["operator"])
    if not isinstance(operator, Mapping):
        return f"there is no operator {match['operator']} any more"
    drafted = next(iter(read_text(f"[{match['edge']}]", "").data or ()), None)
    edges = operator.get("inputs")
    written = edges if isinstance(edges, list) else []
    return "" if drafted in written else f"{match['operator']} no longer reads {match['edge']}"


def _answer_changed(match: re.Match[str], document: Data) -> str:
    operator = _section(document, "operators").get(match["operator"])
    variants = _section(operator, "variants") if isinstance(operator, Mapping) else {}
    outputs = [variant.get("output") for variant in variants.values() if isinstance(variant, Mapping)]
    return "" if match["output"] in outputs else f"{match['operator']} no longer has output: {match['output']}"


def _sinks_changed(match: re.Match[str], document: Data) -> str:
    operators = _section(document, "operators")
    sinks = set(operators) - set(_upstreams(operators))
    return "" if sinks == set(match["sinks"].split(", ")) else f"{', '.join(sorted(sinks))} answers now"


def _upstreams(operators: Mapping[str, Any]) -> Iterator[str]:
    for operator in operators.values():
        edges = operator.get("inputs") if isinstance(operator, Mapping) else None
        for edge in edges if isinstance(edges, list) else ():
            yield str(edge.get("from") if isinstance(edge, Mapping) else edge)


def _no_placeholder(section: str, key: str) -> Callable[[re.Match[str], Data], str]:
    def why(_: re.Match[str], document: Data) -> str:
        entries = list(_section(document, section).values())
        if section == "operators":
            variants = [_section(entry, "variants") for entry in entries if isinstance(entry, Mapping)]
            entries = [variant for named in variants for variant in named.values()]
        open_values = (isinstance(entry, Mapping) and key in entry and entry[key] is None for entry in entries)
        return "" if not entries or any(open_values) else f"every {key} is written"

    return why


def _written(key: str) -> Callable[[re.Match[str], Data], str]:
    return lambda _, document: f"{key} is written" if document.get(key) is not None else ""


def _differs(key: str) -> Callable[[re.Match[str], Data], str]:
    drafted = read_text(DRAFT_INFRASTRUCTURE, "").data[key]
    return lambda _, document: f"{key} are no longer those of the draft" if document.get(key) != drafted else ""


def _fleet_todos() -> Iterator[tuple[str, str]]:
    """(comment, section below it) of the drafted infrastructure."""
    section = ""
    for line in DRAFT_INFRASTRUCTURE.splitlines():
        section = line.rstrip(":") if re.fullmatch(r"\w+:", line) else section
        if "# TODO: " in line:
            yield line.partition("# TODO: ")[2], section


def _exactly(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


_INPUTS = r"held-out inputs of (?P<source>\S+), one request a row.*; then write it as its inputs"
_ARRAY = r"check that source (?P<source>\S+) sends array (?P<array>\S+): none has its name, and only this one fits"
_MISFIT = r"array (?P<array>\S+) of source (?P<source>\S+) does not fit .*"
_ZIPMAP = r"output \S+ of (?P<operator>\S+)(?: \S+)? \(sha256 (?P<sha256>[0-9a-f]+)\) is a list of maps .*"
_QUOTED = r"""'(?:[^']|'')*'|"[^"]*\""""
_EDGE = (
    rf"check that (?P<operator>\S+) reads (?P<edge>\{{(?:{_QUOTED}|[^}}'\"])*\}}|{_QUOTED}|[^:{{'\"]+): .*; "
    "if not, change it"
)
_ANSWER = (
    r"check that (?P<operator>\S+)(?: \S+)? answers with (?P<output>.+): the first output of the file, .*, is the "
    r"class; to send that, remove output: (?P=output)"
)
_CLASS = (
    r"check that (?P<operator>\S+) answers with .+, the class: to answer with the scores, write output: .+ in variant "
    r"(?P<variant>\S+)"
)
_SINKS = r"\d+ operators answer \((?P<sinks>.*)\); accuracy is measured for one: .* workflows of their own"
_RULES = (
    _Rule(_exactly(SOURCES_TODO), _sources_changed),
    _Rule(re.compile(_INPUTS), _inputs_written),
    _Rule(re.compile(_ARRAY), _array_changed),
    _Rule(re.compile(_MISFIT), _array_changed),
    _Rule(re.compile(_ZIPMAP), _exported_anew),
    _Rule(re.compile(_EDGE), _edge_changed),
    _Rule(re.compile(_ANSWER), _answer_changed),
    _Rule(re.compile(_CLASS), _variant_has_output),
    _Rule(re.compile(_SINKS), _sinks_changed),
    _Rule(re.compile(f"without labels .*{re.escape(LABELS_TODO)}"), _written("labels")),
    _Rule(_exactly(SLO_TODO), _written("slo")),
    _Rule(_exactly(BLANK_INPUTS_TODO), _no_placeholder("sources", "inputs")),
    _Rule(_exactly(BLANK_MODELS_TODO), _no_placeholder("operators", "model")),
    *(_Rule(_exactly(text), _differs(section)) for text, section in _fleet_todos()),
)
