"""Batches: stacks the inputs of several requests along the leading dimension, and splits the outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jellybean_agent.errors import PermanentError
from jellybean_agent.tensors.tensors import Array

OperatorInput = Array | tuple[Array, ...]  # a tuple of the children's tensors for a gather
OperatorInputs = Sequence[OperatorInput]  # one per input edge


def stack_requests(requests: Sequence[OperatorInputs]) -> tuple[Array, ...] | None:
    """One tensor per edge with the requests' rows in their order; None when they cannot be stacked.

    Each request must have one row, and all rows the same dtype and shape, as a model may treat padding as data.
    """
    found: list[Array] = []
    for values in zip(*requests, strict=True):
        arrays = [value for value in values if not isinstance(value, tuple)]
        kinds = {(array.dtype, array.shape) for array in arrays}
        if len(arrays) < len(values) or len(kinds) != 1 or arrays[0].shape[:1] != (1,):
            return None
        found.append(np.concatenate(arrays))
    return tuple(found)


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
