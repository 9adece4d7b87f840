"""Held-out data of a draft: the user's own, or random inputs of the right types and shapes."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean.documents.checks.tensors import Tensor
from jellybean.documents.draft.wiring import DraftSource
from jellybean.errors import InputError
from jellybean.quantities import did_you_mean
from jellybean_agent import describe_error, unserved_reason

Array = npt.NDArray[Any]

LABELS = "labels"
RANDOM_ROWS = 64
OPEN_SIZE = 16  # size of a dimension that a model leaves open
_SMALL_INTEGERS = 10  # random integers are below: they may be indices of words or classes


def random_inputs(sources: Sequence[DraftSource], seed: int = 0) -> dict[str, Array]:
    """Source -> random requests, one per row; without sources of other types than numbers, or of unknown dimensions."""
    generator = np.random.default_rng(seed)
    arrays = {source.name: _random(source, generator) for source in sources}
    return {name: array for name, array in arrays.items() if array is not None}


def _random(source: DraftSource, generator: np.random.Generator) -> Array | None:
    tensor = source.tensor
    if tensor.shape is None or unserved_reason(tensor.dtype):
        return None
    shape = (RANDOM_ROWS, *(size or OPEN_SIZE for size in tensor.shape[1:]))
    dtype = np.dtype(tensor.dtype)
    if any("mask" in port for port in source.ports):
        return np.ones(shape, dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype == np.uint8:
        return generator.integers(0, 256, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(0, _SMALL_INTEGERS, shape).astype(dtype)
    return generator.random(shape).astype(dtype) if np.issubdtype(dtype, np.floating) else None


def open_sizes(tensor: Tensor) -> bool:
    """True if the model leaves a size other than the number of rows open."""
    return tensor.shape is not None and None in tensor.shape[1:]


def read_data(file: Path, sources: Sequence[DraftSource], *, may_rename: bool = True) -> dict[str, Array]:
    """The user's arrays: one for each source, and `labels` if there are any.

    `may_rename`: if there is one source, the only array may have any name. InputError if an array is missing.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise InputError(f"{file} is no NumPy archive (.npz): {describe_error(error)}") from error
    given = [name for name in arrays if name != LABELS]
    if may_rename and len(sources) == len(given) == 1:
        arrays[sources[0].name] = arrays.pop(given[0])
    names = [source.name for source in sources]
    missing = [name for name in names if name not in arrays]
    if missing:
        hint = did_you_mean(missing[0], given) or f"it has {', '.join(arrays) or 'none'}"
        raise InputError(f"{file} has no array {missing[0]}; {hint}. Save one for each source: {', '.join(names)}")
    return {name: arrays[name] for name in (*names, LABELS) if name in arrays}


def request_bytes(source: DraftSource, arrays: Mapping[str, Array]) -> float | None:
    """Size of one request's data; None without data."""
    array = arrays.get(source.name)
    return None if array is None or not len(array) else array.nbytes / len(array)
