"""The inputs and outputs of models and steps, and the names that a workflow's variants give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_CONSTANT, _EQUALS = "constant ", " = "  # around a model input that takes the same value in each run; that follows
_STATE, _STATE_FROM = "state ", " from "  # around a model input that takes a stream's state; the output follows
Size = TypeVar("Size", bound=int | None)
_ROWS_OF = "rows of "  # before an upstream: what feeds the input with the number of rows that each request gathers


@dataclass(frozen=True, slots=True)
class TensorPort:
    """An input or output of a model; -1 in a shape is any size."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PortNames:
    """A variant's own names for what the workflow's edges carry, as exporters name the tensors of models differently.

    `inputs`: upstream -> model input; others are matched by name, then by position. `output`: the model output that is
    sent where an edge names none; None: the first. `outputs`: an edge's `output` -> model output, where they differ.
    `rows`: of a model that fans out in batches, its output with the number of rows of each request. `rows_of`: the same
    for each output that is fanned out, where their numbers differ. `gathered_rows`: upstream that is gathered -> the
    model input that takes the number of its rows of each request, so that the model can run in batches. `constants`:
    model input -> the value that it takes in each run, as JSON: a number, or lists of numbers.
    """

    inputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    output: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: str | None = None
    rows_of: Mapping[str, str] = field(default_factory=dict, hash=False)
    gathered_rows: Mapping[str, str] = field(default_factory=dict, hash=False)
    constants: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def counts_rows(self) -> bool:
        """True if the rows of a batch that the model fans out can be told apart by request."""
        return bool(self.rows or self.rows_of)

    def can_batch(self, *, fans_out: bool, gathers: bool) -> bool:
        """True if the rows of a batch can be told apart by request, where an operator fans out or gathers."""
        return (self.counts_rows or not fans_out) and (bool(self.gathered_rows) or not gathers)

    def counter_of(self, output: str) -> str | None:
        """The model output with the number of rows of each request in an output that is fanned out; None: none."""
        return self.rows_of.get(output) or self.rows

    def input_by_upstream(self, upstreams: Iterable[str]) -> dict[str, str]:
        """Upstream -> model input, in the order of the upstreams; "" where the variant names none.

        After them come the inputs with numbers of rows (`counted_upstream`) and constants (`constant_value`).
        """
        fed = {upstream: self.inputs.get(upstream, "") for upstream in upstreams}
        fed |= {f"{_ROWS_OF}{upstream}": name for upstream, name in self.gathered_rows.items()}
        return fed | {f"{_CONSTANT}{name}{_EQUALS}{text}": name for name, text in self.constants.items()}

    def output_of(self, edge_output: str | None) -> str | None:
        """The model output for an edge with this `output` (None: it names none); None is the model's first."""
        return self.output if not edge_output else self.outputs.get(edge_output, edge_output)


def counted_upstream(upstream: str) -> str | None:
    """The upstream whose rows an input counts; None for what an upstream itself feeds (`input_by_upstream`)."""
    return upstream.removeprefix(_ROWS_OF) if upstream.startswith(_ROWS_OF) else None


def constant_value(upstream: str, name: str) -> str | None:
    """The value, as JSON, that the model input `name` takes in each run; None if an upstream feeds it."""
    start = f"{_CONSTANT}{name}{_EQUALS}"
    return upstream.removeprefix(start) if upstream.startswith(start) else None


def state_inputs(state: Mapping[str, str]) -> dict[str, str]:
    """Upstream -> model input for the inputs that take a state, as of `input_by_upstream`. `state`: input -> output."""
    return {f"{_STATE}{name}{_STATE_FROM}{output}": name for name, output in state.items()}


def state_output(upstream: str, name: str) -> str | None:
    """The model output that the state input `name` takes from the chunk before; None if this upstream is no state."""
    start = f"{_STATE}{name}{_STATE_FROM}"
    return upstream.removeprefix(start) if upstream.startswith(start) else None


def rows_axis(shape: Sequence[int | None]) -> int:
    """The axis along which the states of several streams are stacked, by the sizes of a state (-1, None: any size).

    The first, unless its size or another one says otherwise: recurrent layers have it behind their number of layers.
    """
    sizes = [-1 if size is None else size for size in shape]
    if sizes[:1] in ([-1], [1]) and -1 not in sizes[1:]:
        return 0
    for size in (-1, 1):
        if size in sizes:
            return sizes.index(size) if sizes.count(size) == 1 else 0
    return 0


def rows_first(shape: Sequence[Size], axis: int) -> tuple[Size, ...]:
    """A shape with its axis of rows moved to the front."""
    return (*shape[axis : axis + 1], *shape[:axis], *shape[axis + 1 :])
