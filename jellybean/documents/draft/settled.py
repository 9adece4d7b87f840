"""TODO comments of drafts whose subject was changed by hand since, so that they have nothing left to ask.

Only comments that `init` wrote, word for word, are judged: a comment that a person wrote or changed is left alone. So
are two of its own whose answer is not in the documents: random held-out inputs, and the metric.

Documents are judged before they are validated: any value may stand in any place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean.documents.checks.tensors import misfits
from jellybean.documents.draft.blank import BLANK_INPUTS_TODO, BLANK_MODELS_TODO, DRAFT_INFRASTRUCTURE
from jellybean.documents.draft.port_comments import variant_models
from jellybean.documents.draft.text import LABELS_TODO, SLO_TODO, SOURCES_TODO
from jellybean.documents.schema.flow_style import flow_style
from jellybean.documents.schema.reader import read_text
from jellybean_agent import unserved_reason
from jellybean_solver import EdgeKind

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


def _variants_have_output(match: re.Match[str], document: Data) -> str:
    operator = _section(document, "operators").get(match["operator"])
    if not isinstance(operator, Mapping):
        return f"there is no operator {match['operator']} any more"
    variants = _section(operator, "variants")
    named = [name for name in re.split(r", | and ", match["variants"]) if isinstance(variants.get(name), Mapping)]
    if not named:
        return f"there is no variant {match['variants']} of {match['operator']} any more"
    if any(variants[name].get("output") is None for name in named):
        return ""
    return f"{' and '.join(named)} of {match['operator']} {'has an output' if len(named) == 1 else 'have outputs'}"


def follow_up(text: str, document: Data, folder: Path, open_todos: Sequence[str]) -> str:
    """What is left to check once a TODO is settled, as the text of a new TODO; empty if nothing is.

    A classifier whose ZipMap gave way to a tensor still answers with the class: `init` would have drafted the scores.
    Asked once for all variants, so only when no ZipMap of the operator is left. `open_todos`: those not settled.
    """
    match = re.fullmatch(_ZIPMAP, text)
    operators = _section(document, "operators")
    if match is None or match["operator"] in _upstreams(operators):
        return ""
    others = [re.fullmatch(_ZIPMAP, todo) for todo in open_todos]
    if any(other is not None and other["operator"] == match["operator"] for other in others):
        return ""
    operator = _section(operators, match["operator"])
    labels: list[str] = []
    variants: dict[str, list[str]] = {}  # output with the scores -> variants that answer with the class
    for variant, model in variant_models(operator, folder).items():
        label = next((port for port in model.signature.outputs if port.name == model.label), None)
        has_output = _section(_section(operator, "variants"), variant).get("output") is not None
        if (
            label is not None
            and model.answer is not None
            and not has_output
            and not unserved_reason(label.tensor.dtype)
        ):
            labels.append(label.name)
            variants.setdefault(model.answer, []).append(variant)
    if not variants:
        return ""
    return (
        f"check that {match['operator']} answers with {labels[0]}, the class: to answer with the scores, "
        f"write output: {' or '.join(variants)} in {_named_variants([name for of in variants.values() for name in of])}"
    )


def _named_variants(names: Sequence[str]) -> str:
    """The word with the names, as `_CLASS` reads it."""
    return f"variant {names[0]}" if len(names) == 1 else f"variants {', '.join(names[:-1])} and {names[-1]}"


def fits_now(text: str, document: Data, folder: Path) -> str:
    """The edge to write, if a TODO is on an input named like an operator that did not fit it, and now does."""
    operators = _section(document, "operators")
    match, named = re.fullmatch(_EDGE, text), re.search(_NAMESAKE, text)
    if match is None or named is None:
        return ""
    reader, upstream = _section(operators, match["operator"]), _section(operators, named["upstream"])
    edges = reader.get("inputs")
    given, models = variant_models(upstream, folder), variant_models(reader, folder)
    if not isinstance(edges, list) or match["edge"] not in edges or not given:
        return ""
    position = edges.index(match["edge"])
    ports = [model.signature.inputs[position] for model in models.values() if len(model.signature.inputs) == len(edges)]
    outputs: list[object] = []  # what the edge names, of each variant: None for a variant that answers with it
    for variant, model in given.items():
        written = _section(_section(upstream, "variants"), variant).get("output")
        name = model.signature.outputs[0].name if written is None else written
        tensor = next((port.tensor for port in model.signature.outputs if port.name == name), None)
        if tensor is None or any(misfits(tensor, port, EdgeKind.FAN_OUT) for port in ports):
            return ""
        outputs.append(model.answer if written is None else None)
    if not ports or any(output != outputs[0] for output in outputs):
        return ""
    edge = named["upstream"] if outputs[0] is None else {"from": named["upstream"], "output": outputs[0]}
    return f"{named['upstream']} fits now: write {flow_style(edge)}"


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
    if document.get("labels_of") is not None:
        return "labels_of is written"
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
_NAMESAKE = r": it is (?:probably|named like) operator (?P<upstream>\S+), whose "
_ANSWER = (
    r"check that (?P<operator>\S+)(?: \S+)? answers with (?P<output>.+): the first output of the file, .*, is the "
    r"class; to send that, remove output: (?P=output)"
)
_CLASS = (
    r"check that (?P<operator>\S+) answers with .+, the class: to answer with the scores, write output: .+ in "
    r"variants? (?P<variants>\S+(?:, \S+)*(?: and \S+)?)"
)
_SINKS = (
    r"\d+ operators answer \((?P<sinks>.*)\)(?:, and labels are for one of them: .* labels_of: \S+"
    r"|; accuracy is measured for one: .* workflows of their own)"  # written by `init` before there was `labels_of`
)
_RULES = (
    _Rule(_exactly(SOURCES_TODO), _sources_changed),
    _Rule(re.compile(_INPUTS), _inputs_written),
    _Rule(re.compile(_ARRAY), _array_changed),
    _Rule(re.compile(_MISFIT), _array_changed),
    _Rule(re.compile(_ZIPMAP), _exported_anew),
    _Rule(re.compile(_EDGE), _edge_changed),
    _Rule(re.compile(_ANSWER), _answer_changed),
    _Rule(re.compile(_CLASS), _variants_have_output),
    _Rule(re.compile(_SINKS), _sinks_changed),
    _Rule(re.compile(f"without labels .*{re.escape(LABELS_TODO)}"), _written("labels")),
    _Rule(_exactly(SLO_TODO), _written("slo")),
    _Rule(_exactly(BLANK_INPUTS_TODO), _no_placeholder("sources", "inputs")),
    _Rule(_exactly(BLANK_MODELS_TODO), _no_placeholder("operators", "model")),
    *(_Rule(_exactly(text), _differs(section)) for text, section in _fleet_todos()),
)
