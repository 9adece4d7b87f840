"""One run of an operator's model: what its items go in as, and what each of them gets out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jellybean_agent.brain.messages import (
    DIRECT_CALL_ROUTE,
    GATEWAY,
    MAX_CHILDREN,
    Outputs,
    Payload,
    RunOperator,
    WorkItem,
)
from jellybean_agent.brain.plan_view import OperatorView
from jellybean_agent.errors import PermanentError
from jellybean_agent.execution.executor import Executor, RunResult
from jellybean_agent.tensors.stacking import split_batch, stack_requests
from jellybean_agent.tensors.tensors import Array


class RunOutputs(Outputs, Protocol):
    """What a run produced for one item, and all of it."""

    @property
    def by_downstream(self) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True)
class TensorOutputs:
    """What a run produced, as the brain asks for it."""

    by_downstream: Mapping[str, Array]

    def rows(self, downstream: str) -> int:
        return int(self.by_downstream[downstream].shape[0])

    def take(self, downstream: str, row: int | None) -> Payload:
        array = self.by_downstream[downstream]
        return array if row is None else array[row : row + 1]


@dataclass(frozen=True, slots=True)
class Done:
    """A finished run: what each item gets, and the sizes in which the model really ran."""

    outputs: Sequence[RunOutputs]
    sizes: Sequence[int]
    busy_s: float
    late_s: float


def is_asked(run: RunOperator) -> bool:
    """Whether a run is of an operator that was asked for by itself."""
    return run.items[0].route == DIRECT_CALL_ROUTE


def perform(operator: OperatorView, executor: Executor, items: Sequence[WorkItem]) -> Done:
    """All items in one run of the model, or one after another where their tensors do not fit together.

    Of an operator that was asked for by itself: all outputs of the model, by their own names.
    """
    alone = items[0].route == DIRECT_CALL_ROUTE or len(items) == 1
    inputs = None if alone else stack_requests([item.inputs for item in items])
    if inputs is None:
        return _each(operator, items, [executor.run(item.inputs) for item in items])
    return _apart(operator, items, executor.run(inputs, len(items)))


def collected(operator: OperatorView, run: RunOperator, results: Sequence[RunResult]) -> Done:
    """What a run gave: one result for each item, or one for all of them together."""
    if len(results) < len(run.items):
        return _apart(operator, run.items, results[0])
    return _each(operator, run.items, results)


def _each(operator: OperatorView, items: Sequence[WorkItem], results: Sequence[RunResult]) -> Done:
    asked = items[0].route == DIRECT_CALL_ROUTE
    outputs = [result.outputs if asked else _by_downstream(operator, result.outputs) for result in results]
    busy_s, late_s = sum(result.busy_s for result in results), sum(result.late_s for result in results)
    return Done([*map(TensorOutputs, outputs)], [1] * len(items), busy_s, late_s)


def _apart(operator: OperatorView, items: Sequence[WorkItem], result: RunResult) -> Done:
    outputs = split_batch(_by_downstream(operator, result.outputs), len(items))
    return Done([*map(TensorOutputs, outputs)], [len(items)], result.busy_s, result.late_s)


def _by_downstream(operator: OperatorView, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The output that each downstream gets. PermanentError when one is missing or has no rows to fan out."""
    first = next(iter(outputs))
    found: dict[str, Array] = {}
    for downstream, kind in operator.wiring.outputs or ((GATEWAY, "each"),):
        name = operator.output_names.get(downstream, first)
        if name not in outputs:
            raise PermanentError(f"the model has no output {name!r}; it has {', '.join(outputs)}")
        array = outputs[name]
        if array.ndim == 0 or (kind == "fan_out" and array.shape[0] > MAX_CHILDREN):
            raise PermanentError(f"output {name} of shape {list(array.shape)} cannot be split into requests")
        found[downstream] = array
    return found
