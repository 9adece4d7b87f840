"""Inputs that take the number of gathered rows of each request: no edge feeds them, the worker does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.checks.tensors import ModelSignature, Port
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import OperatorSpec
from jellybean.quantities import did_you_mean, quoted

COUNTS = ("int32", "int64")


def without_row_counts(
    workflow: CheckedWorkflow, operator: str, spec: OperatorSpec, variant: str, model: ModelSignature
) -> ModelSignature:
    """The signature without the inputs that take numbers of rows. Adds what is wrong with them."""
    counters = model.names.gathered_rows
    path: DocPath = ("operators", operator, "variants", variant, "gathered_rows")
    if counters:
        for where, message, hint in _problems(spec, counters, {port.name: port for port in model.inputs}):
            workflow.tree.add((*path, *where), message, hint, key=bool(where))
    return replace(model, inputs=tuple(port for port in model.inputs if port.name not in counters.values()))


def _problems(
    spec: OperatorSpec, counters: Mapping[str, str], inputs: Mapping[str, Port]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Where below `gathered_rows`, what is wrong there, and a hint."""
    gathered = [edge.upstream for edge in spec.inputs if edge.gather]
    for upstream, name in counters.items():
        if upstream not in gathered:
            hint = f"it gathers {', '.join(gathered)}" if gathered else "remove it"
            yield (upstream,), f"{upstream} is not gathered here, so none of its rows are counted", hint
        elif name not in inputs:
            hint = did_you_mean(name, inputs) or f"its inputs: {', '.join(inputs)}"
            yield (upstream,), f"{quoted(name)} is none of its inputs", hint
        elif (tensor := inputs[name].tensor).dtype not in COUNTS:
            hint = f"one of {', '.join(COUNTS)}"
            message = f"input {name} is {tensor.dtype}: numbers of rows are integers, one for each request"
            yield (upstream,), message, hint
        elif tensor.shape is not None and (len(tensor.shape) != 1 or tensor.shape[0] is not None):
            shape = ", ".join("any" if size is None else str(size) for size in tensor.shape)
            hint = "export it with one dimension, which is not fixed"
            yield (upstream,), f"input {name} has shape [{shape}], not one number for each request", hint
    if missing := [upstream for upstream in gathered if upstream not in counters]:
        hint = f"write the input that takes their number: {{{missing[0]}: NAME}}"
        yield (), f"the rows of {missing[0]}, which is gathered, are not counted", hint
