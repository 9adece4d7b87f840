"""Batches: stacks the inputs of several requests along the leading dimension, and splits the outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from jellybean_agent.errors import PermanentError
from jellybean_agent.tensors.tensors import Array


@dataclass(frozen=True, slots=True)
class GatheredBatch:
    """What a gather takes in a batch: the children's tensors of all its requests in their order.

    `rows`: how many rows each request has in them.
    """

    children: tuple[Array, ...]
    rows: tuple[int, ...]


OperatorInput = Array | tuple[Array, ...]  # of one request: a tuple of the children's tensors for a gather
RunInput = OperatorInput | GatheredBatch  # of one or more requests
OperatorInputs = Sequence[OperatorInput]  # one per input edge


def arrays_of(value: RunInput) -> tuple[Array, ...]:
    """The tensors of a run's input: one, or all children's."""
    if isinstance(value, GatheredBatch):
        return value.children
    return value if isinstance(value, tuple) else (value,)


def stack_requests(requests: Sequence[OperatorInputs]) -> tuple[RunInput, ...] | None:
    """One input per edge with the requests' rows in their order; None when they cannot be stacked.

    Each request must have one row, or any number for a gather, and all rows the same dtype and shape, as a model may
    treat padding as data.
    """
    found = [_stacked(values) for values in zip(*requests, strict=True)]
    known = tuple(value for value in found if value is not None)
    return known if len(known) == len(found) else None


def _stacked(values: Sequence[OperatorInput]) -> RunInput | None:
    """What one edge brings for all requests; None if that does not fit together."""
    gathered = [value for value in values if isinstance(value, tuple)]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(gathered) == len(values):
        children = tuple(itertools.chain.from_iterable(gathered))
        kinds = {(child.dtype, child.shape[1:]) for child in children}
        rows = tuple(sum(len(child) for child in each) for each in gathered)
        return GatheredBatch(children, rows) if len(kinds) <= 1 else None
    alike = len({(array.dtype, array.shape) for array in arrays}) == 1
    if len(arrays) < len(values) or not alike or arrays[0].shape[:1] != (1,):
        return None
    return np.concatenate(arrays)


def split_batch(
    outputs: Mapping[str, Array], requests: int, rows: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> list[dict[str, Array]]:
    """The outputs of each request. PermanentError when an output does not have the rows of these requests.

    `rows`: output -> number of rows of each request in it; outputs that it does not name have one row per request.
    """
    for name, array in outputs.items():
        counts = rows.get(name)
        if counts is not None and array.shape[0] != sum(counts):
            raise PermanentError(
                f"the output for {name} has {array.shape[0]} rows, the model counts {sum(counts)} for the "
                f"{requests} requests in the run"
            )
        if counts is None and array.shape[:1] != (requests,):
            raise PermanentError(
                f"the output for {name or 'the answer'} has shape {list(array.shape)}, not one row for each of the "
                f"{requests} requests in the run: take batch sizes above 1 out of the model's profile and plan again"
            )
    parts = {name: _parts(rows.get(name, [1] * requests)) for name in outputs}
    return [{name: array[parts[name][index]] for name, array in outputs.items()} for index in range(requests)]


def _parts(counts: Sequence[int]) -> list[slice]:
    """Where the rows of each request are."""
    return [slice(end - count, end) for end, count in zip(itertools.accumulate(counts), counts, strict=True)]
