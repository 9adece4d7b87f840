"""Held-out data of a draft: the user's own, or random inputs of the right types and shapes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean.documents.checks.tensors import BATCH_ADVICE, Port, Tensor, misfits
from jellybean.documents.draft.wiring import DraftSource
from jellybean.errors import InputError
from jellybean.quantities import SIZE, format_quantity
from jellybean.tensor_files import read_archive
from jellybean_agent import MAX_TENSOR_BYTES, unserved_reason
from jellybean_solver import EdgeKind

Array = npt.NDArray[Any]

LABELS = "labels"
STREAMS = "streams"  # the stream of each row
RANDOM_ROWS = 64
_LEAST_ROWS, _MAX_BYTES = 8, 2**26  # fewer rows where those of an array would take more than this
OPEN_SIZE = 16  # size of a dimension that a model leaves open
_SMALL_INTEGERS = 10  # random integers are below: they may be indices of words or classes
INTEGERS = ((0, _SMALL_INTEGERS), (0, 1), (0, 2), (1, 2))  # from, up to but not including: ranges that are tried


@dataclass(frozen=True)
class HeldOutDraft:
    """The arrays of a draft's held-out data, and which of them is each source's.

    `array_of`: source -> its array. `guesses`: sources whose array follows from type and shape only. `candidates`:
    source without an array -> arrays that fit its shape; empty for random data. `refusals`: source whose random inputs
    no model took -> why.
    """

    arrays: Mapping[str, Array]
    array_of: Mapping[str, str]
    guesses: frozenset[str] = frozenset()
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_random: bool = False
    refusals: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream_ids(self) -> str | None:
        """The array with the stream of each row; None if there is none, or it feeds a model input of that name."""
        return STREAMS if STREAMS in self.arrays and STREAMS not in self.array_of.values() else None

    @property
    def labels(self) -> Array | None:
        """The labels; None without them, or where the array of that name feeds a model input of that name."""
        return None if LABELS in self.array_of.values() else self.arrays.get(LABELS)


@dataclass(frozen=True)
class Drawing:
    """How random inputs are drawn: the size of dimensions that a model leaves open, the least integer, and the first
    that is too large.
    """

    size: int = OPEN_SIZE
    least: int = 0
    above: int = _SMALL_INTEGERS


def random_inputs(sources: Sequence[DraftSource], drawing: Drawing = Drawing()) -> HeldOutDraft:
    """Random requests, one per row; none for sources of other types than numbers, or of unknown dimensions."""
    drawn = {source.name: draw(source, drawing) for source in sources}
    arrays = {name: array for name, array in drawn.items() if array is not None}
    return HeldOutDraft(arrays, {name: name for name in arrays}, is_random=True)


def draw(source: DraftSource, drawing: Drawing) -> Array | None:
    """Random requests of a source, which depend on its name and the drawing only."""
    tensor = source.tensor
    if not tensor.shape or unserved_reason(tensor.dtype) or takes_other_rows(tensor):
        return None
    dtype, sizes = np.dtype(tensor.dtype), [drawing.size if size is None else size for size in tensor.shape[1:]]
    row_bytes = max(1, math.prod(sizes) * dtype.itemsize)
    if row_bytes > MAX_TENSOR_BYTES:
        return None
    shape = (min(RANDOM_ROWS, max(_LEAST_ROWS, _MAX_BYTES // row_bytes)), *sizes)
    if any("mask" in port for port in source.ports):
        return np.ones(shape, dtype)
    generator = np.random.default_rng(zlib.crc32(source.name.encode()))
    if dtype.kind == "f":
        return generator.random(shape).astype(dtype)
    least, above = drawing.least, drawing.above
    if dtype == np.bool_:
        least, above = 0, 2
    elif dtype == np.uint8 and above == _SMALL_INTEGERS:
        above = 256
    return generator.integers(least, above, shape).astype(dtype)


def drawn_by_init(name: str, array: Array) -> bool:
    """True if an array has the random numbers that `init` draws for a source of this name."""
    tensor = Tensor(array.dtype.name, (None, *array.shape[1:]))
    if array.ndim == 0 or not array.size or unserved_reason(tensor.dtype):
        return False
    drawings = (Drawing(least=least, above=above) for least, above in INTEGERS)
    drawn = (draw(DraftSource(name, tensor, ()), drawing) for drawing in drawings)
    return any(rows is not None and np.array_equal(rows[: len(array)], array[: len(rows)]) for rows in drawn)


def takes_other_rows(tensor: Tensor) -> bool:
    """True if a model takes another number of rows than the 1 of a request, so that no request fits."""
    return tensor.shape is not None and tensor.shape[:1] not in ((), (None,), (1,))


def undrawn_reason(tensor: Tensor) -> str:
    """Why there are no random requests of a tensor of numbers; empty for text, of which checks tell."""
    if unserved_reason(tensor.dtype):
        return ""
    if tensor.shape is None:
        return "the model does not state its number of dimensions"
    if takes_other_rows(tensor):
        return f"a request has 1 row, and the model takes exactly {tensor.shape[0]}: {BATCH_ADVICE}"
    row_bytes = math.prod(OPEN_SIZE if size is None else size for size in tensor.shape[1:])
    row_bytes *= np.dtype(tensor.dtype).itemsize
    if row_bytes > MAX_TENSOR_BYTES:
        limit = format_quantity(SIZE, MAX_TENSOR_BYTES, 3)
        return f"one has {format_quantity(SIZE, row_bytes, 3)}, and a tensor at most {limit}"
    return ""


def read_data(file: Path, sources: Sequence[DraftSource]) -> HeldOutDraft:
    """The user's arrays: that of a source has its name, or is the only one of its type and shape.

    An array that only one source can take is that source's, as a guess. For a source that several arrays fit, or none,
    the draft has candidates instead. InputError if the file is no archive.
    """
    arrays = read_archive(file)
    reserved = {LABELS, STREAMS} - {source.name for source in sources}
    given = [name for name in arrays if name not in reserved]
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
    kept = dict.fromkeys(
        [*array_of.values(), *(name for names in candidates.values() for name in names), LABELS, STREAMS]
    )
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
