"""Compares the first update of a run with the plain module: the stages must compute what the module computes.

A stage may run a graph of the model, and a graph drops what its tracer does not see: hooks, regions of another
precision, branches on the number of rows or on values, numbers that Python counts. So before the first epoch the first
rank runs one update twice, by the module itself and by its stages: every size of a micro-batch that occurs, in
training and in evaluation mode, in the run's precision, and once more with other weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from jellybean.pipeline.torch_gradients import tensor_digest
from jellybean.pipeline.torch_state import ModuleState, seed_generators, state_kept
from jellybean.pipeline.torch_trace import flat_tensors
from jellybean.training.compared_runs import (
    GRADIENT,
    ComparedRows,
    ComparedStages,
    Digest,
    Outcome,
    PlainRun,
    StagedRun,
    autocast_of,
    outcomes,
)
from jellybean.training.samples import Samples

_NOT_SAVED = (
    "forward changes {} in Python, which no checkpoint has: a run that resumes begins with the value of the start; "
    "a buffer would be saved"
)


@dataclass(frozen=True)
class Comparison:
    """`difference`: why the stages are another model; empty if they are not. `note`: what the user must know."""

    difference: str = ""
    note: str = ""


@dataclass(frozen=True)
class Difference:
    """The first value that the stages compute otherwise, in call number `call`.

    `what`: for messages. `by`: relative to the norm.
    """

    mode: str
    rows: int
    what: str
    by: float
    call: int = 0

    @property
    def in_gradients(self) -> bool:
        """Whether the forward pass was the same."""
        return self.what.startswith(GRADIENT)

    def __str__(self) -> str:
        amount = f"differs by {self.by:.2g}" if self.by < float("inf") else "is there only once"
        return f"{self.mode}, with a micro-batch of {self.rows} rows, {self.what} {amount}"


def compare_update(module: nn.Module, stages: ComparedStages, rows: ComparedRows) -> Comparison:
    """Compare the module with its stages, and say what differs first.

    The module is afterwards as it was. TrainingError if the module cannot be run on these rows.
    """
    module.zero_grad()  # a loss that reads the model's weights gets gradients to them in trials of copies, too
    state = ModuleState(module)
    try:
        expected, changes = _expected(module, stages, rows)
        state.restore()
        if refused := _why_refused(changes, stages):
            return Comparison(refused)
        difference = _first_difference(expected, outcomes(StagedRun(module, stages), module, rows))
        state.restore()
        if difference is not None:
            return _judged(difference, expected, module, stages, rows)
    finally:
        state.restore()
        module.train()
    return Comparison(note=_NOT_SAVED.format(changes[0][1]) if changes else "")


def _judged(
    difference: Difference, expected: Sequence[Outcome], module: nn.Module, stages: ComparedStages, rows: ComparedRows
) -> Comparison:
    """What a difference means: nothing if only random numbers differ, which stages may draw in another order."""
    state = ModuleState(module)
    other = _first_difference(expected, outcomes(PlainRun(module, stages), module, rows))
    state.restore()
    if other is not None:
        return Comparison(note=f"the model computes something else each time: {other}")
    with NumbersByShape() as numbers:
        alike = list(outcomes(PlainRun(module, stages), module, rows))
        state.restore()
        if numbers.drawn and _first_difference(alike, outcomes(StagedRun(module, stages), module, rows)) is None:
            return Comparison()
    state.restore()
    return Comparison(f"{difference}{_place(module, stages, rows, difference)}")


class NumbersByShape(TorchDispatchMode):  # type: ignore[misc]  # mypy does not follow torch
    """Has each operation of torch that draws random numbers draw those of its arguments' sizes, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn += 1
            sizes = [tuple(one.shape) if isinstance(one, torch.Tensor) else str(one) for one in args]
            torch.default_generator.manual_seed(zlib.crc32(f"{func} {sizes}".encode()))
        return func(*args, **(kwargs or {}))


Change: TypeAlias = tuple[nn.Module | None, str]


def _expected(module: nn.Module, stages: ComparedStages, rows: ComparedRows) -> tuple[list[Outcome], list[Change]]:
    """(what the module computes, the Python values that it changes again after its first call)."""
    calls = outcomes(PlainRun(module, stages), module, rows)
    expected = [next(calls)]
    later = ModuleState(module)
    expected += calls
    return expected, later.changes()


def _why_refused(changes: Sequence[Change], stages: ComparedStages) -> str:
    """Why Python values that forward changes make the stages another model; empty if they do not."""
    called = stages.called
    for owner, name in changes:
        place = f"forward changes {name}{f' of {type(owner).__name__}' if owner is not None else ''} in Python"
        if owner is None and len(stages.training.stages) > 1:
            return f"{place}, and each of the {len(stages.training.stages)} stages would have a value of its own"
        if owner is not None and id(owner) not in called:
            return f"{place}, which no stage follows, as a cut lies inside this module"
        if stages.copies > 1:
            return (
                f"{place}, and each of {stages.copies} copies would count its own micro-batches: take `replicas: 1`, "
                "and a schedule with one copy of each stage"
            )
        if stages.settings.recompute:
            return f"{place}, and `recompute` runs forward twice: leave it out"
    return ""


def _place(module: nn.Module, stages: ComparedStages, rows: ComparedRows, difference: Difference) -> str:
    """The first module whose result no operation of the graph computes, for messages; empty if there is none."""
    if difference.in_gradients or difference.call >= len(rows.training):
        return ""
    with suppress(Exception):  # whatever the graph or the module raises, the difference is known
        return _first_module(module, stages, rows.training[difference.call], difference)
    return ""


def _first_module(module: nn.Module, stages: ComparedStages, batch: Samples, difference: Difference) -> str:
    values: list[torch.Tensor] = []
    with state_kept(module), torch.no_grad(), autocast_of(stages.settings):
        seed_generators(difference.call)
        _Values(stages.graph, values).run(*(value.clone() for value in batch.inputs.tensors))
    with state_kept(module), torch.no_grad(), autocast_of(stages.settings):
        seed_generators(difference.call)
        for name, part, digests in _module_results(module, batch):
            missing = [one for one in digests if not any(_apart(one, other) <= 1e-6 for other in values)]
            if missing:
                return f"; the first module that differs is {name or 'the model'} ({type(part).__name__})"
    return ""


class _Values(fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
    """Runs a graph and digests every value."""

    def __init__(self, graph: fx.GraphModule, values: list[torch.Tensor]) -> None:
        super().__init__(graph)
        self._values = values

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self._values += map(tensor_digest, flat_tensors(value))
        return value


def _module_results(module: nn.Module, batch: Samples) -> list[tuple[str, nn.Module, list[torch.Tensor]]]:
    """Digests of what each submodule returns, in the order in which they do."""
    results: list[tuple[str, nn.Module, list[torch.Tensor]]] = []

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda part, _, result: results.append((name, part, list(map(tensor_digest, flat_tensors(result)))))

    hooks = [part.register_forward_hook(keep(name)) for name, part in module.named_modules()]
    try:
        batch.inputs.call(module)
    finally:
        for hook in hooks:
            hook.remove()
    return results


def _first_difference(expected: Sequence[Outcome], calls: Iterator[Outcome]) -> Difference | None:
    for call, (one, other) in enumerate(zip(expected, calls, strict=True)):
        for what in one.values | other.values:
            by = _apart(one.values.get(what), other.values.get(what))
            if not by <= one.tolerance(what):
                return Difference(one.mode, one.rows, what, by, call)
    return None


def _apart(one: Digest, other: Digest) -> float:
    """How far digests are apart, relative to the norm; infinite if only one is there."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    if one.shape != other.shape:
        return float("inf")
    undefined = ~torch.isfinite(one) & ~torch.isfinite(other)
    apart = torch.where(undefined, 0.0, (one - other).abs()).max()
    scale = torch.where(torch.isfinite(one), one.abs(), 0.0).max()
    return float(apart / scale.clamp(min=1e-30)) if apart else 0.0
