"""One run of an operator's model: stacks the items' inputs, and splits the outputs between the items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """The outputs of a run for one item."""

    @property
    def by_downstream(self) -> Mapping[str, Array]:
        """Downstream -> output; for a direct call, output name of the model -> output."""
        ...


@dataclass(frozen=True, slots=True)
class TensorOutputs:
    """The outputs of a run for one item, as the brain asks for them."""

    by_downstream: Mapping[str, Array]

    def rows(self, downstream: str) -> int:
        return int(self.by_downstream[downstream].shape[0])

    def take(self, downstream: str, row: int | None) -> Payload:
        array = self.by_downstream[downstream]
        return array if row is None else array[row : row + 1]


@dataclass(frozen=True, slots=True)
class RunDone:
    """A finished run: the outputs of each item, and the batch sizes in which the model really ran."""

    outputs: Sequence[RunOutputs]
    sizes: Sequence[int]
    busy_s: float
    late_s: float
    states: Sequence[Mapping[str, Array]] = ()  # of each item, if the operator keeps one: model output -> tensor


def is_direct_call(run: RunOperator) -> bool:
    """True if the items of a run are direct calls, not requests of the pipeline."""
    return run.items[0].route == DIRECT_CALL_ROUTE


def run_items(operator: OperatorView, executor: Executor, items: Sequence[WorkItem]) -> RunDone:
    """Run all items as one batch, or one after another where their tensors cannot be stacked."""
    is_single = items[0].route == DIRECT_CALL_ROUTE or len(items) == 1
    inputs = None if is_single else stack_requests([item.inputs for item in items])
    if inputs is None:
        return _one_result_each(operator, items, [executor.run(item.inputs) for item in items])
    return _split_result(operator, items, executor.run(inputs, len(items)))


def run_done(operator: OperatorView, run: RunOperator, results: Sequence[RunResult]) -> RunDone:
    """Convert the results of a run, one per item or one for the whole batch, into each item's outputs."""
    if len(results) < len(run.items):
        return _split_result(operator, run.items, results[0])
    return _one_result_each(operator, run.items, results)


def _one_result_each(operator: OperatorView, items: Sequence[WorkItem], results: Sequence[RunResult]) -> RunDone:
    is_direct = items[0].route == DIRECT_CALL_ROUTE
    outputs = [result.outputs if is_direct else _by_downstream(operator, result.outputs) for result in results]
    busy_s, late_s = sum(result.busy_s for result in results), sum(result.late_s for result in results)
    states = [] if is_direct else [_states(operator, result.outputs) for result in results]
    return RunDone([*map(TensorOutputs, outputs)], [1] * len(items), busy_s, late_s, states)


def _split_result(operator: OperatorView, items: Sequence[WorkItem], result: RunResult) -> RunDone:
    rows = dict(_rows(operator, result.outputs, len(items)))
    outputs = split_batch(_by_downstream(operator, result.outputs), len(items), rows)
    states = split_batch(_states(operator, result.outputs), len(items))
    return RunDone([*map(TensorOutputs, outputs)], [len(items)], result.busy_s, result.late_s, states)


def _rows(operator: OperatorView, outputs: Mapping[str, Array], items: int) -> Iterator[tuple[str, Sequence[int]]]:
    """Downstream of a fan-out -> the number of rows of each item in it. PermanentError if the model counts none."""
    first = next(iter(outputs))
    for downstream, kind in operator.wiring.outputs:
        if kind == "fan_out":
            name = operator.output_names.get(downstream, first)
            counter = operator.ports.counter_of(name)
            if counter is None:
                raise PermanentError(
                    f"output {name} fans out to {downstream}, but no output counts its rows of each of the {items} "
                    "requests in the run: take batch sizes above 1 out of the model's profile and plan again"
                )
            yield downstream, _rows_of_each(counter, outputs, items)


def _rows_of_each(counter: str, outputs: Mapping[str, Array], items: int) -> Sequence[int]:
    """The number of rows of each item, as the model counts them in the output `counter`."""
    counts = outputs.get(counter)
    if counts is None:
        raise PermanentError(f"the model has no output {counter!r}; it has {', '.join(outputs)}")
    if counts.size != items or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise PermanentError(
            f"output {counter} ({counts.dtype}, shape {list(counts.shape)}) is not the number of rows of each of "
            f"the {items} requests in the run"
        )
    return [int(count) for count in counts.reshape(-1)]


def _states(operator: OperatorView, outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: outputs[name] for name in operator.state.values()}


def _by_downstream(operator: OperatorView, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The output for each downstream. PermanentError when one is missing or has no rows to fan out."""
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
