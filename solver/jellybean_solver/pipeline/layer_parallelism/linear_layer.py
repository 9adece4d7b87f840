"""What one linear layer sends per step, divided by its outputs, by its inputs, or replicated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.collectives.closed_forms import collective


class LinearStrategy(StrEnum):
    """How N devices share Y = X A, where A has Cin rows and Cout columns.

    PARTITION_OUTPUT: columns of A, Y = [X A1, X A2]. REDUCE_OUTPUT: rows of A, Y = X1 A1 + X2 A2. DATA: rows of X.
    """

    PARTITION_OUTPUT = "partition-output"
    REDUCE_OUTPUT = "reduce-output"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A layer with Cin `inputs` and Cout `outputs` per row of the batch; its bias is left out."""

    inputs: int
    outputs: int

    def __post_init__(self) -> None:
        if min(self.inputs, self.outputs) < 1:
            raise SolverError("a linear layer's inputs and outputs must be positive")


@dataclass(frozen=True, slots=True)
class SentValues:
    """Numbers that each device sends in one step, in the forward pass and in the backward pass."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def sent_values(layer: LinearLayer, strategy: LinearStrategy, devices: int, batch: int) -> SentValues:
    """What each of the devices sends per step for a batch of B rows over all devices, by ring collectives.

    Partition of the output: an all-gather of Y, an all-reduce of X's gradient. Reduction: an all-reduce of Y, an
    all-gather of X's gradient. Data: an all-reduce of A's gradient. On two devices these are the published costs:
    B Cout/2 and B Cin; B Cout and B Cin/2; Cout Cin.
    """
    all_reduce = collective("ring").sent(devices)
    match strategy:
        case LinearStrategy.PARTITION_OUTPUT:
            return SentValues(all_reduce / 2 * batch * layer.outputs, all_reduce * batch * layer.inputs)
        case LinearStrategy.REDUCE_OUTPUT:
            return SentValues(all_reduce * batch * layer.outputs, all_reduce / 2 * batch * layer.inputs)
        case LinearStrategy.DATA:
            return SentValues(0.0, all_reduce * layer.outputs * layer.inputs)


def least_sending(layer: LinearLayer, batch: int) -> LinearStrategy:
    """The strategy that sends least, on any number of devices; of equal ones the first of `LinearStrategy`."""
    return min(LinearStrategy, key=lambda strategy: _half_all_reduces(layer, strategy, batch))


def data_from_batch(layer: LinearLayer) -> int:
    """The smallest batch at which data parallelism sends less than either division, on any number of devices."""
    divided = min(
        _half_all_reduces(layer, strategy, 1)
        for strategy in (LinearStrategy.PARTITION_OUTPUT, LinearStrategy.REDUCE_OUTPUT)
    )
    return _half_all_reduces(layer, LinearStrategy.DATA, 1) // divided + 1


def _half_all_reduces(layer: LinearLayer, strategy: LinearStrategy, batch: int) -> int:
    """Values in the all-gathers and reduce-scatters of a step. Each sends the same share of its values, (N - 1) / N."""
    return {
        LinearStrategy.PARTITION_OUTPUT: batch * (layer.outputs + 2 * layer.inputs),
        LinearStrategy.REDUCE_OUTPUT: batch * (2 * layer.outputs + layer.inputs),
        LinearStrategy.DATA: 2 * layer.outputs * layer.inputs,
    }[strategy]
