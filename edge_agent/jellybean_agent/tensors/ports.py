"""The inputs and outputs of models and steps, and the names that a workflow's variants give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    model input that takes the number of its rows of each request, so that the model can run in batches.
    """

    inputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    output: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: str | None = None
    rows_of: Mapping[str, str] = field(default_factory=dict, hash=False)
    gathered_rows: Mapping[str, str] = field(default_factory=dict, hash=False)

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

        After them come the inputs with numbers of rows (`counted_upstream`).
        """
        counters = {f"{_ROWS_OF}{upstream}": name for upstream, name in self.gathered_rows.items()}
        return {**{upstream: self.inputs.get(upstream, "") for upstream in upstreams}, **counters}

    def output_of(self, edge_output: str | None) -> str | None:
        """The model output for an edge with this `output` (None: it names none); None is the model's first."""
        return self.output if not edge_output else self.outputs.get(edge_output, edge_output)


def counted_upstream(upstream: str) -> str | None:
    """The upstream whose rows an input counts; None for what an upstream itself feeds (`input_by_upstream`)."""
    return upstream.removeprefix(_ROWS_OF) if upstream.startswith(_ROWS_OF) else None
