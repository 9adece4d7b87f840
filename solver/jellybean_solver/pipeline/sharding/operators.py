"""Operators with named dimensions, which a mesh can split.

The description is that of Mesh-TensorFlow (Shazeer et al. 2018). A matrix product is an operator of the dimensions
sample, in and out: its input has (sample, in), its weight (in, out), its output (sample, out). Splitting `sample` is
data parallelism; `out` splits the weight's columns, `in` its rows. FlexFlow (Jia et al. 2019) calls these two
parameter dimensions; the height of a picture would be an attribute dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean_solver.errors import SolverError

SAMPLE, IN, OUT = "sample", "in", "out"


@dataclass(frozen=True, slots=True)
class DimensionedTensor:
    """A tensor of an operator: its dimensions in order, by the operator's names, and its bytes on one device.

    `gradient`: its gradient is computed (not for the input of a model, or for a frozen weight).
    """

    dimensions: tuple[str, ...]
    size_bytes: float
    gradient: bool = True


@dataclass(frozen=True)
class Operator:
    """`compute_s`: forward and backward seconds on one device. `sizes`: lengths of dimensions, where they are known.

    A dimension whose length is not a multiple of the number of devices is not split; one without a length may be.
    `whole`: dimensions that cannot be split.
    """

    name: str
    compute_s: float
    inputs: tuple[DimensionedTensor, ...]
    output: DimensionedTensor
    weights: tuple[DimensionedTensor, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()

    @property
    def dimensions(self) -> tuple[str, ...]:
        """All dimensions, each once, in order of appearance."""
        tensors = (*self.inputs, *self.weights, self.output)
        return tuple(dict.fromkeys(name for tensor in tensors for name in tensor.dimensions))


@dataclass(frozen=True, slots=True)
class TensorEdge:
    """Operator `consumer` reads the output of operator `producer` as its input number `input_index`."""

    producer: int
    consumer: int
    input_index: int


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order, and the tensors between them. SolverError if an edge does not fit its ends."""

    operators: tuple[Operator, ...]
    edges: tuple[TensorEdge, ...]

    def __post_init__(self) -> None:
        for edge in self.edges:
            if not 0 <= edge.producer < edge.consumer < len(self.operators):
                raise SolverError(f"the edge {edge.producer} -> {edge.consumer} is not between operators in order")
            producer, consumer = self.operators[edge.producer], self.operators[edge.consumer]
            if edge.input_index >= len(consumer.inputs):
                raise SolverError(
                    f"{consumer.name} has {len(consumer.inputs)} inputs, none of index {edge.input_index}"
                )
            read = consumer.inputs[edge.input_index].dimensions
            if len(read) != len(producer.output.dimensions):
                raise SolverError(
                    f"{producer.name} gives a tensor of {len(producer.output.dimensions)} dimensions, and "
                    f"{consumer.name} takes one of {len(read)}"
                )


def matrix_product(
    name: str,
    rows: int,
    inputs: int,
    outputs: int,
    compute_s: float,
    *,
    element_bytes: int = 4,
    first: bool = False,
) -> Operator:
    """A linear layer of `rows` samples, `inputs` to `outputs` features. `first`: its input takes no gradient."""
    return Operator(
        name,
        compute_s,
        (DimensionedTensor((SAMPLE, IN), element_bytes * rows * inputs, gradient=not first),),
        DimensionedTensor((SAMPLE, OUT), element_bytes * rows * outputs),
        (DimensionedTensor((IN, OUT), element_bytes * inputs * outputs),),
        {SAMPLE: rows, IN: inputs, OUT: outputs},
    )
