"""Bytes per worker and step of a network whose layers are data- or tensor-parallel by their kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.collectives.closed_forms import collective

VALUE_BYTES = 4  # float32, of gradients and of activations


class LayerKind(StrEnum):
    """What a layer computes: its kind decides how it is made parallel."""

    CONV = "conv"
    LINEAR = "linear"


class LayerStrategy(StrEnum):
    """DATA: each worker has the layer and its own samples. TENSOR: each has a part of the layer and all samples."""

    DATA = "data"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True)
class NetworkLayer:
    """A layer with weights; `inputs` and `outputs` are the values of one sample that it reads and writes."""

    name: str
    kind: LayerKind
    parameters: int
    inputs: int
    outputs: int


def sent_bytes(
    layers: Sequence[NetworkLayer], strategies: Mapping[LayerKind, LayerStrategy], workers: int, batch: int
) -> tuple[float, ...]:
    """Bytes that each worker sends per step for each layer of a chain; `batch`: samples of each worker.

    A data-parallel layer sums its gradients, parameters x 4 bytes, by a ring all-reduce: a worker sends 2 (N - 1) / N
    times as many bytes. A tensor-parallel layer divides its output, so each worker needs the inputs of all samples: an
    all-gather, and in the backward pass a reduce-scatter of their gradients. These are the two halves of a ring
    all-reduce. The samples themselves have no gradient. The outputs of a last tensor-parallel layer, before a
    data-parallel one or the loss, return to their samples in the same way. SolverError for fewer than one worker or
    sample.
    """
    if min(workers, batch) < 1:
        raise SolverError("workers and batch must be positive")
    all_reduce = collective("ring").sent(workers)
    chosen = [strategies[layer.kind] for layer in layers]
    sent = []
    for index, layer in enumerate(layers):
        if chosen[index] is LayerStrategy.DATA:
            values: float = layer.parameters
        else:
            values = layer.inputs * workers * batch * (1.0 if index else 0.5)
            if chosen[index + 1 : index + 2] != [LayerStrategy.TENSOR]:
                values += layer.outputs * workers * batch
        sent.append(all_reduce * values * VALUE_BYTES)
    return tuple(sent)
