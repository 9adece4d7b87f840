"""The text of drafted documents. What cannot be known has a default and a TODO, which `jellybean validate` lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from jellybean.documents.checks.conversions import on_array, steps_between
from jellybean.documents.checks.files import sha256_of
from jellybean.documents.checks.tensors import Port, Tensor, misfits
from jellybean.documents.draft.blank import DRAFT_INFRASTRUCTURE
from jellybean.documents.draft.heldout import LABELS, Array, HeldOutDraft, request_bytes, takes_other_rows
from jellybean.documents.draft.models import DraftModel, DraftOperator
from jellybean.documents.draft.port_comments import port_text, ports_text
from jellybean.documents.draft.wiring import Draft, DraftEdge, DraftSource
from jellybean.documents.schema.flow_style import flow_style
from jellybean.quantities import SIZE, format_quantity
from jellybean_agent import is_zipmap, unserved_reason
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import EdgeKind

HELD_OUT_FILE = "data/heldout.npz"
_HEADER = """\
# Written by `jellybean init` from ONNX files. TODO comments mark guesses and defaults; `jellybean validate` lists them.
# docs/documents.md describes every key.
"""
_WIDTH = 116
# Comments of drafts. `settled` has a rule for each; those on random inputs and the metric, written inline below,
# have none: whether they are settled is not in the documents.
SOURCES_TODO = (
    "tier, rate and message of each source: where the data originates, requests per second, size of one request's data"
)
SLO_TODO = "the targets; without one, the plan is the cheapest that sustains the rates"
LABELS_TODO = "labels, one per row, and write the next two lines; or write accuracy into profiles.yaml by hand"


def draft_infrastructure() -> str:
    """A small fleet at the edge and in the cloud."""
    return DRAFT_INFRASTRUCTURE


def draft_workflow(
    name: str,
    draft: Draft,
    directory: Path,
    places: Mapping[str, str],
    data: HeldOutDraft,
) -> str:
    """workflow.yaml of a draft. `places`: model name -> path in the project."""
    lines = [
        *_HEADER.splitlines(),
        "kind: Workflow",
        f"name: {flow_style(name)}",
        "sources:",
        *todo_lines(SOURCES_TODO),
        *(line for source in draft.sources for line in _source(source, draft, data)),
        "operators:",
        *(line for operator in draft.operators for line in _operator(operator, draft, directory, places)),
        *([f"stream_ids: {HELD_OUT_FILE}#{data.stream_ids}"] if _states(draft) and data.stream_ids else []),
        *_labels(draft, data),
        *todo_lines(SLO_TODO, indent=""),
        "# slo: {accuracy: 90, latency_p99: 500 ms, budget: 1 USD/h}",
    ]
    return "\n".join(lines) + "\n"


def todo_lines(text: str, indent: str = "  ") -> Iterator[str]:
    """A TODO comment, wrapped; the lines below the first are indented, so that they belong to it."""
    line = f"{indent}# TODO:"
    for word in text.split():
        if len(line) + len(word) >= _WIDTH:
            yield line
            line = f"{indent}#  "
        line = f"{line} {word}"
    yield line


def _source(source: DraftSource, draft: Draft, data: HeldOutDraft) -> Iterator[str]:
    size = request_bytes(source, data)
    message = "1 KiB" if size is None else format_quantity(SIZE, size, 3)
    name = flow_style(source.name)
    if size is None:
        yield from todo_lines(_missing_inputs(source, draft, data))
        streams = ", streams: 1" if _states(draft) else ""
        yield f"  {name}: {{tier: edge, rate: 1/s, message: {message}{streams}, inputs: TODO}}"
        return
    reference = f"{HELD_OUT_FILE}#{data.array_of[source.name]}"
    if data.is_random:
        array = data.arrays[data.array_of[source.name]]
        pairs = list(zip(source.tensor.shape or (), array.shape, strict=False))[1:]
        drawn = {have for size, have in pairs if size is None}
        sizes = f"; sizes that the models leave open are {min(drawn)}" if drawn else ""
        yield from todo_lines(
            f"the held-out inputs of {source.name} are random numbers, which is enough for latencies, but not for "
            f"accuracy and numbers of children{sizes}: replace array {source.name} of {HELD_OUT_FILE} by real requests"
        )
    if source.name in data.guesses:
        yield from todo_lines(
            f"check that source {source.name} sends array {reference}: none has its name, and only this one fits"
        )
    if not data.is_random and (misfit := _misfit(source, data.arrays[data.array_of[source.name]])):
        yield from todo_lines(f"array {reference} of source {source.name} does not fit {misfit}")
    streams = ", streams: 1" if _states(draft) else ""
    yield f"  {name}: {{tier: edge, rate: 1/s, message: {message}{streams}, inputs: {_quoted_reference(reference)}}}"


def _misfit(source: DraftSource, array: Array) -> str:
    """The input that a row of the array does not fit, why, and what to save instead; empty if it fits.

    Pictures may have their channels first or last: only the model's input says which.
    """
    rows, port = Tensor(array.dtype.name, (1, *array.shape[1:])), Port(source.name, source.tensor)
    reason = misfits(rows, port, EdgeKind.EACH)
    if not reason:
        return ""
    steps = steps_between(rows, source.tensor)
    operators = "an operator" if len(steps) == 1 else "operators"
    codes = ", then ".join(step.code for step in steps)
    way = f"; save {on_array(steps)}, or add {operators} before it: {codes}" if steps else ""
    return f"{port_text(port)}: {reason}{way}"


def _missing_inputs(source: DraftSource, draft: Draft, data: HeldOutDraft) -> str:
    """What to write for a source without held-out inputs: the arrays that fit it, and whether it may be no source."""
    wanted = port_text(Port(source.name, source.tensor))
    text = f"held-out inputs of {source.name}, one request a row"
    candidates = data.candidates.get(source.name)
    if candidates:
        arrays = " or ".join(f"{HELD_OUT_FILE}#{name} ({data.arrays[name].dtype})" for name in candidates)
        text += f": {arrays} would fit {wanted}; write one of them, or save another"
    else:
        fits = f", and no array of the data fits {wanted}" if candidates is not None else ""
        if refusal := data.refusals.get(source.name):
            advice = "" if takes_other_rows(source.tensor) else ". Give real ones, or --data"
            fits = f". Init has no random inputs that are taken for {wanted}: {refusal}{advice}"
        text += f", saved with numpy.savez: {HELD_OUT_FILE}#{source.name}{fits}"
    doubtful = [
        name for name, edges in draft.edges.items() if any(e.upstream == source.name and e.guess for e in edges)
    ]
    readers = " and ".join(doubtful)
    given = [edge for edges in draft.edges.values() for edge in edges if edge.upstream == source.name]
    maps = next((edge.zipmap_of for edge in given if edge.zipmap_of), "")
    if maps:
        text += (
            f". It is probably operator {maps} once its ZipMap is exported as a tensor: then write {maps} in the "
            f"inputs of {readers}, and remove {source.name}"
        )
    elif doubtful and not data.is_random:
        text += f". If {readers} should read an operator's output instead, write that, and remove {source.name}"
    return f"{text}; then write it as its inputs"


def _operator(operator: DraftOperator, draft: Draft, directory: Path, places: Mapping[str, str]) -> Iterator[str]:
    edges = draft.edges[operator.name]
    for edge in edges:
        if edge.guess:
            yield from todo_lines(f"check that {operator.name} reads {_edge(edge)}: {edge.guess}; if not, change it")
    for variant, model in operator.variants.items():
        name = operator.name if len(operator.variants) == 1 else f"{operator.name} {variant}"
        for text in _output_todos(name, model, sha256_of(directory / places[model.name])):
            yield from todo_lines(text)
    first = operator.first
    for name, value in first.constants.items():
        yield from todo_lines(
            f"check constant {name} of {operator.name}: {canonical_json(value)} is a guess; the input is a single "
            "number (shape []), which no request brings"
        )
    for given, made in first.state.items():
        yield from todo_lines(
            f"check that {operator.name} keeps a state by stream, its input {given} takes output {made} of the chunk "
            "before: that follows from names and shapes only; if not, remove it. Write the number of streams of each "
            "source beside its rate"
        )
    yield f"  {flow_style(operator.name)}:  # {ports_text(operator.inputs, operator.outputs)}"
    yield f"    inputs: [{', '.join(map(_edge, edges))}]"
    if first.state:
        yield f"    state: {{by: stream, tensors: {flow_style(dict(first.state))}}}"
    yield "    variants:"
    for name, model in operator.variants.items():
        outputs = {
            "output": model.answer or None,
            "outputs": _other_names(operator, model, draft) or None,
            "constants": dict(model.constants) or None,
        }
        named = "".join(f", {key}: {flow_style(value)}" for key, value in outputs.items() if value is not None)
        place = places[model.name]
        yield f"      {flow_style(name)}: {{model: {flow_style(place)}, sha256: {sha256_of(directory / place)}{named}}}"


def _output_todos(name: str, model: DraftModel, sha256: str) -> Iterator[str]:
    """What to check about a classifier's outputs: whether it answers with scores or the class, and maps of scores."""
    answer, *others = model.signature.outputs
    label = next((port for port in others if port.name == model.label), None)
    if label is not None and not unserved_reason(label.tensor.dtype):
        yield (
            f"check that {name} answers with {answer.name}: the first output of the file, {label.name}, is the class; "
            f"to send that, remove output: {answer.name}"
        )
    for port in model.signature.outputs:
        if is_zipmap(port.tensor.dtype):
            yield f"output {port.name} of {name} (sha256 {sha256[:12]}) {unserved_reason(port.tensor.dtype)}"


def _other_names(operator: DraftOperator, model: DraftModel, draft: Draft) -> dict[str, str]:
    """What a variant calls the outputs that edges name, where it calls them otherwise."""
    read = {edge.output for edges in draft.edges.values() for edge in edges if edge.upstream == operator.name}
    pairs = zip(operator.outputs, model.signature.outputs, strict=True)
    return {first.name: other.name for first, other in pairs if first.name in read and other.name != first.name}


def _edge(edge: DraftEdge) -> str:
    fields = {
        "output": None if edge.output is None else flow_style(edge.output),
        "ratio": (edge.ratio or "measured") if edge.kind is EdgeKind.FAN_OUT else None,
        "gather": "true" if edge.kind is EdgeKind.GATHER else None,
    }
    given = "".join(f", {key}: {value}" for key, value in fields.items() if value is not None)
    return f"{{from: {flow_style(edge.upstream)}{given}}}" if given else flow_style(edge.upstream)


def _states(draft: Draft) -> bool:
    """True if an operator keeps a state by stream."""
    return any(operator.first.state for operator in draft.operators)


def _labels(draft: Draft, data: HeldOutDraft) -> Iterator[str]:
    sinks = draft.sinks
    if len(sinks) > 1:
        yield from todo_lines(
            f"{len(sinks)} operators answer ({', '.join(sinks)}), and labels are for one of them: write its name "
            f"beside the labels, as labels_of: {sinks[-1]}",
            indent="",
        )
    if data.labels is not None:
        yield f"labels: {HELD_OUT_FILE}#{LABELS}"
        yield from todo_lines(
            "metric: exact_match compares the answer with the label, top1 the index of its highest score", ""
        )
        yield f"metric: {_metric(draft, data.labels)}"
        return
    real = "real inputs and " if data.is_random else ""
    yield from todo_lines(
        f"without labels all variants count as equally accurate, and plans take the cheapest: save {real}an array of "
        f"{LABELS_TODO}",
        indent="",
    )
    yield f"# labels: {HELD_OUT_FILE}#{LABELS}"
    yield "# metric: top1"


def _metric(draft: Draft, labels: Array) -> str:
    """top1 if the answers are scores and the labels indices, otherwise exact_match."""
    outputs = [operator.outputs[0].tensor.dtype for operator in draft.operators if operator.name in draft.sinks]
    scores = any(dtype.startswith("float") for dtype in outputs)
    return "top1" if scores and np.issubdtype(labels.dtype, np.integer) and labels.ndim == 1 else "exact_match"


def _quoted_reference(text: str) -> str:
    """A reference to an array, in quotes if YAML would read its name otherwise; `#` after text begins no comment."""
    file, _, name = text.partition("#")
    return text if flow_style(name) == name else flow_style(f"{file}#{name}")
