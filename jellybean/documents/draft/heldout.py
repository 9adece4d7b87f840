"""Held-out data of a draft: the user's own, or random inputs of the right types and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean.documents.checks.tensors import Port, Tensor, misfits
from jellybean.documents.draft.wiring import DraftSource
from jellybean.errors import InputError
from jellybean.tensor_files import read_archive
from jellybean_agent import unserved_reason
from jellybean_solver import EdgeKind

Array = npt.NDArray[Any]

LABELS = "labels"
RANDOM_ROWS = 64
OPEN_SIZE = 16  # size of a dimension that a model leaves open
_SMALL_INTEGERS = 10  # random integers are below: they may be indices of words or classes


@dataclass(frozen=True)
class HeldOutDraft:
    """The arrays of a draft's held-out data, and which of them is each source's.

    `array_of`: source -> its array. `guesses`: sources whose array follows from type and shape only. `candidates`:
    source without an array -> arrays that fit its shape; empty for random data.
    """

    arrays: Mapping[str, Array]
    array_of: Mapping[str, str]
    guesses: frozenset[str] = frozenset()
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_random: bool = False

    @property
    def labels(self) -> Array | None:
        """The labels; None without them, or where the array of that name feeds a model input of that name."""
        return None if LABELS in self.array_of.values() else self.arrays.get(LABELS)


def random_inputs(sources: Sequence[DraftSource], seed: int = 0) -> HeldOutDraft:
    """Random requests, one per row; none for sources of other types than numbers, or of unknown dimensions."""
    generator = np.random.default_rng(seed)
    drawn = {source.name: _random(source, generator) for source in sources}
    arrays = {name: array for name, array in drawn.items() if array is not None}
    return HeldOutDraft(arrays, {name: name for name in arrays}, is_random=True)


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


def read_data(file: Path, sources: Sequence[DraftSource]) -> HeldOutDraft:
    """The user's arrays: that of a source has its name, or is the only one of its type and shape.

    An array that only one source can take is that source's, as a guess. For a source that several arrays fit, or none,
    the draft has candidates instead. InputError if the file is no archive.
    """
    arrays = read_archive(file)
    inputs_called_labels = any(source.name == LABELS for source in sources)
    given = [name for name in arrays if name != LABELS or inputs_called_labels]
    array_of = {source.name: source.name for source in sources if source.name in given}
    if len(sources) == len(given) == 1:
        array_of = {sources[0].name: given[0]}
    missing = [source for source in sources if source.name not in array_of]
    free = [name for name in given if name not in array_of.values()]
    fitting = {source.name: [name for name in free if _fits(arrays[name], source)] for source in missing}
    guesses: dict[str, str] = {}
    for name, names in fitting.items():
        if len(names) == 1 and all(names[0] not in others for other, others in fitting.items() if other != name):
            guesses[name] = names[0]
    candidates = {
        source.name: tuple(name for name in free if _fits(arrays[name], source, of_any_type=True))
        for source in missing
        if source.name not in guesses
    }
    array_of = {
        source.name: {**array_of, **guesses}[source.name] for source in sources if source.name not in candidates
    }
    kept = dict.fromkeys([*array_of.values(), *(name for names in candidates.values() for name in names), LABELS])
    used = {name: arrays[name] for name in kept if name in arrays}
    if single := next((name for name, array in used.items() if array.ndim == 0), None):
        raise InputError(f"{file}#{single} is a single value: save an array with one row per request")
    return HeldOutDraft(used, array_of, frozenset(guesses), candidates)


def _fits(array: Array, source: DraftSource, *, of_any_type: bool = False) -> bool:
    """True if each row of the array is a request of the source. `of_any_type`: numbers of another type fit too."""
    dtype = array.dtype.name
    if array.ndim == 0 or unserved_reason(dtype):
        return False
    given = Tensor(source.tensor.dtype if of_any_type else dtype, (1, *array.shape[1:]))
    return not misfits(given, Port(source.name, source.tensor), EdgeKind.EACH)


def request_bytes(source: DraftSource, data: HeldOutDraft) -> float | None:
    """Size of one request's data; None without data."""
    array = data.arrays[data.array_of[source.name]] if source.name in data.array_of else None
    return None if array is None or not len(array) else array.nbytes / len(array)
