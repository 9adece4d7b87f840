"""Held-out data that a model refuses: which row of which source it is, and which value in it.

The value is found by trial, not by the model's message: values of the input are replaced by one that the model accepts,
and the smallest set whose replacement makes the run succeed names the value (bisection over the sorted values).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jellybean.documents import drawn_by_init
from jellybean.profiler.errors import MisfittingEdgeError, ProfileError, RefusedRowError
from jellybean.profiler.workload import Array, Inputs, Model, Step, Workload
from jellybean_agent import AgentError, Executor, InvalidInputError, ModelError, tensor_mismatch
from jellybean_solver import EdgeKind

_SHAPE_ERROR = re.compile("dimension|shape|broadcast", re.IGNORECASE)  # in a message of onnxruntime or NumPy


@dataclass(frozen=True)
class RefusedValue:
    """A value that a model refuses: the edge that brings it, and its first position in the tensor."""

    edge: int
    value: Any
    position: tuple[int, ...]


def refusal(
    workload: Workload, executor: Executor, model: Model, inputs: Inputs, row: int | None, error: AgentError
) -> ProfileError:
    """The error of a run that failed. If the data is the reason, it names source, row and, where it is found, value.

    If a tensor from another operator has the wrong type or shape, or inputs have different numbers of rows, it names
    those edges instead. `row`: index of the held-out request that the inputs came from; None if it is not known.
    """
    named = f"operator {model.operator}, variant {model.variant}"
    step = workload.step_by_name[model.operator]
    if row is None:
        return ProfileError(f"{named}: {error}")
    is_refusal, shown = _is_refusal(model, error), f"as held-out row {row} (counted from 0) shows"
    if is_refusal and (misfit := _edge_misfit(workload, executor, step, inputs)) is not None:
        return MisfittingEdgeError(
            f"{named}: what {misfit[0]} gives does not fit, {shown}: {misfit[1]}; name another output of {misfit[0]}, "
            "put a step between them, or change one of the models"
        )
    if _SHAPE_ERROR.search(str(error)) and (rows := _different_rows(step, inputs)):
        return MisfittingEdgeError(
            f"{named} gets inputs with different numbers of rows, {shown}: {rows}; change an edge, or one of the "
            f"models: {error}"
        )
    if not is_refusal:
        return ProfileError(f"{named}: {error}{_drawn(workload, model)}")
    found = refused_value(executor, inputs)
    origins, value = workload.sources_of(model.operator), ""
    if found is not None:
        fed = (*step.upstreams, *step.state)
        upstream, value = fed[found.edge], f", value {found.value} at {_index(found.position)}"
        if found.edge >= len(step.upstreams):
            value += f" of its state {upstream}"
        elif upstream in workload.requests:
            origins = (upstream,)
        else:
            value += f" of what {upstream} makes of it"
    data = " and ".join(f"{name}{_reference(workload, name)}" for name in origins)
    text = f"{named} refuses row {row} (counted from 0) of {data}{value}: {error}"
    return RefusedRowError(text + _drawn(workload, model))


def _drawn(workload: Workload, model: Model) -> str:
    """That the held-out inputs are random ones of `init`; empty if they are not."""
    names = [name for name in workload.sources_of(model.operator) if drawn_by_init(name, workload.requests[name])]
    if not names:
        return ""
    arrays = " and ".join(f"{name}{_reference(workload, name)}" for name in names)
    return f"; the held-out inputs of {arrays} are random numbers of `jellybean init`: put real requests there"


def _edge_misfit(workload: Workload, executor: Executor, step: Step, inputs: Inputs) -> tuple[str, str] | None:
    """The upstream operator whose tensor has another type or shape than the model's input, and how; None if all fit.

    Held-out inputs themselves are compared with the models when the documents are read.
    """
    for upstream, value, port in zip(step.upstreams, inputs, executor.inputs, strict=False):
        if upstream in workload.requests or (isinstance(value, tuple) and not value):
            continue
        array = value[0] if isinstance(value, tuple) else value
        rows = array.shape[0] if not isinstance(value, tuple) else sum(len(child) for child in value)
        shape = (rows, *array.shape[1:]) if array.ndim else ()
        if (mismatch := tensor_mismatch(array.dtype.name, shape, port.dtype, port.shape)) is not None:
            return upstream, mismatch
    return None


def _different_rows(step: Step, inputs: Inputs) -> str:
    """The rows of the tensor of each upstream; empty if all have equally many."""
    rows: list[int] = []
    for value in inputs[: len(step.inputs)]:
        children = value if isinstance(value, tuple) else (value,)
        rows.append(sum(len(child) if child.ndim else 1 for child in children))
    if len(set(rows)) < 2:
        return ""
    return ", ".join(
        f"{edge.upstream} gives {count}{' (its edge gathers)' if edge.kind is EdgeKind.GATHER else ''}"
        for edge, count in zip(step.inputs, rows, strict=False)
    )


def refused_value(executor: Executor, inputs: Inputs) -> RefusedValue | None:
    """A value without which the model accepts the inputs; None if no single input is the reason."""
    for edge, value in enumerate(inputs):
        if isinstance(value, tuple) or value.size == 0:
            continue
        values = np.unique(value)
        substitute = _accepted(executor, inputs, edge, values)
        if substitute is None:
            continue
        refused = _first_refused(executor, inputs, edge, values, substitute)
        at = value == refused
        (position, *_) = np.argwhere(at if at.any() else np.isnan(value))  # nan is not equal to itself
        return RefusedValue(edge, refused, tuple(int(index) for index in position))
    return None


def _accepted(executor: Executor, inputs: Inputs, edge: int, values: Array) -> Any:
    """A value with which the whole tensor of this edge may be filled; None if there is none among a few."""
    tensor = inputs[edge]
    for value in (values[len(values) // 2], values[0], values[-1], values.dtype.type(0), values.dtype.type(1)):
        if _runs(executor, inputs, edge, np.full_like(tensor, value)):
            return value
    return None


def _first_refused(executor: Executor, inputs: Inputs, edge: int, values: Array, substitute: Any) -> Any:
    """The last of the fewest smallest values whose replacement makes the run succeed."""
    tensor: Any = inputs[edge]
    low, high = 0, len(values)  # replacing `low` values is refused, replacing `high` is accepted
    while high - low > 1:
        middle = (low + high) // 2
        replaced = np.isin(tensor, values[:middle])
        if _runs(executor, inputs, edge, np.where(replaced, substitute, tensor).astype(tensor.dtype)):
            high = middle
        else:
            low = middle
    return values[high - 1]


def _runs(executor: Executor, inputs: Inputs, edge: int, tensor: Array) -> bool:
    try:
        executor.run((*inputs[:edge], tensor, *inputs[edge + 1 :]))
    except AgentError:
        return False
    return True


def _is_refusal(model: Model, error: AgentError) -> bool:
    """True if the data is the reason: tensors that do not fit, refused values, or an exception of a Python step."""
    return isinstance(error, InvalidInputError) or (model.step is not None and not isinstance(error, ModelError))


def _reference(workload: Workload, source: str) -> str:
    """The array of a source, in brackets; empty if it is not known."""
    return f" ({workload.references[source]})" if source in workload.references else ""


def _index(position: Sequence[int]) -> str:
    """A position in a request's tensor, without the leading dimension of 1."""
    return "[" + ", ".join(map(str, position[1:] if len(position) > 1 else position)) + "]"
