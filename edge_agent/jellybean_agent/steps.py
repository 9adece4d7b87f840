"""Built-in steps, which every agent may run: pure numpy functions for pre- and postprocessing.

A step takes and returns tensors by name, each with the batch as its first dimension; its decorator declares them. A
dtype or size there may be the name of the argument that has it. Steps of your own are written the same way, in a module
that is installed where the agent runs, and allowed by its `--allow-python`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
Declared = Mapping[str, tuple[str, Sequence[int | str]]]  # name -> (dtype, sizes), -1: any size
Step = TypeVar("Step", bound=Callable[..., Mapping[str, Any]])


def step(*, inputs: Declared, outputs: Declared) -> Callable[[Step], Step]:
    """Declare a function's inputs and outputs. Both must be literals, as they are read from the source."""

    def same(function: Step) -> Step:
        return function

    return same


@step(inputs={"data": ("dtype", (-1, "shape"))}, outputs={"data": ("float32", (-1, "shape"))})
def normalise(
    inputs: Tensors,
    *,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    divisor: float = 255.0,
    dtype: str = "uint8",
    shape: int | Sequence[int] = (-1, -1, 3),
) -> Tensors:
    """(data / divisor - mean) / std; mean and std are numbers, or one for each entry of the last dimension."""
    factor = (1.0 / (divisor * np.asarray(std, np.float64))).astype(np.float32)
    offset = (np.asarray(mean, np.float64) / np.asarray(std, np.float64)).astype(np.float32)
    return {"data": inputs["data"].astype(np.float32) * factor - offset}


@step(
    inputs={"picture": ("dtype", (-1, -1, -1, "channels"))},
    outputs={"picture": ("dtype", (-1, "height", "width", "channels"))},
)
def resize(
    inputs: Tensors,
    *,
    height: int,
    width: int,
    method: str = "bilinear",
    dtype: str = "uint8",
    channels: int | Sequence[int] = 3,
) -> Tensors:
    """Pictures [n, height, width, channels], resized; `channels` [] for grey pictures [n, height, width].

    `method`: `bilinear` (between pixel centres, without antialiasing) or `nearest`.
    """
    picture = inputs["picture"]
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"method {method!r}; known: bilinear, nearest")
    if method == "nearest":
        rows, columns = (_nearest(size, to) for size, to in zip(picture.shape[1:3], (height, width), strict=True))
        return {"picture": np.ascontiguousarray(picture[:, rows][:, :, columns])}
    found = _along(_along(picture, 1, height), 2, width)
    if picture.dtype.kind in "iu":
        found = np.rint(found)
    return {"picture": found.astype(picture.dtype)}


@step(
    inputs={"picture": ("dtype", (-1, "height", "width", "channels"))},
    outputs={"picture": ("dtype", (-1, "channels", "height", "width"))},
)
def channels_first(
    inputs: Tensors, *, height: int = -1, width: int = -1, channels: int = 3, dtype: str = "float32"
) -> Tensors:
    """Pictures [n, height, width, channels] as [n, channels, height, width]."""
    return {"picture": np.ascontiguousarray(inputs["picture"].transpose(0, 3, 1, 2))}


@step(
    inputs={"picture": ("dtype", (-1, "channels", "height", "width"))},
    outputs={"picture": ("dtype", (-1, "height", "width", "channels"))},
)
def channels_last(
    inputs: Tensors, *, height: int = -1, width: int = -1, channels: int = 3, dtype: str = "float32"
) -> Tensors:
    """Pictures [n, channels, height, width] as [n, height, width, channels]."""
    return {"picture": np.ascontiguousarray(inputs["picture"].transpose(0, 2, 3, 1))}


@step(inputs={"data": ("dtype", (-1, "shape"))}, outputs={"data": ("to", (-1, "shape"))})
def cast(inputs: Tensors, *, to: str, dtype: str = "uint8", shape: int | Sequence[int] = (-1, -1, 3)) -> Tensors:
    """The data in another dtype; conversion to integers truncates and clips to the dtype's range."""
    data, wanted = inputs["data"], np.dtype(to)
    if wanted.kind in "iu" and data.dtype.kind in "iuf":
        limits = np.iinfo(wanted)
        whole = np.trunc(np.nan_to_num(data)) if data.dtype.kind == "f" else data
        low, high = whole <= limits.min, whole >= limits.max
        found = np.where(low | high, whole.dtype.type(0), whole).astype(wanted)
        return {"data": np.where(low, wanted.type(limits.min), np.where(high, wanted.type(limits.max), found))}
    return {"data": data.astype(wanted)}


@step(inputs={"data": ("dtype", (-1, "shape"))}, outputs={"data": ("dtype", (-1, -1))})
def flatten(inputs: Tensors, *, dtype: str = "float32", shape: int | Sequence[int] = (-1, -1)) -> Tensors:
    """Each row's values in one dimension, in C order: [n, 28, 28] as [n, 784]."""
    data = inputs["data"]
    return {"data": data.reshape(len(data), math.prod(data.shape[1:]))}


@step(inputs={"data": ("dtype", (-1, "shape"))}, outputs={"data": ("dtype", (-1, "to"))})
def reshape(
    inputs: Tensors, *, to: int | Sequence[int], dtype: str = "float32", shape: int | Sequence[int] = -1
) -> Tensors:
    """Each row's values in the shape `to`, in C order; one of its sizes may be -1."""
    data = inputs["data"]
    sizes = [to] if isinstance(to, int) else list(to)
    if -1 in sizes:
        open_size = sizes.index(-1)
        sizes[open_size] = math.prod(data.shape[1:]) // max(1, -math.prod(sizes))
    return {"data": data.reshape(len(data), *sizes)}


@step(inputs={"data": ("dtype", (-1, -1, "shape"))}, outputs={"data": ("dtype", (-1, "shape"))})
def select(inputs: Tensors, *, index: int, dtype: str = "float32", shape: int | Sequence[int] = ()) -> Tensors:
    """Entry `index` of the first dimension after the batch, -1 for the last: one class's score, or one token."""
    return {"data": np.ascontiguousarray(inputs["data"][:, index])}


@step(inputs={"scores": ("dtype", (-1, "classes"))}, outputs={"scores": ("dtype", (-1, "classes"))})
def softmax(inputs: Tensors, *, classes: int | Sequence[int] = -1, dtype: str = "float32") -> Tensors:
    """Softmax of scores over the last dimension."""
    scores = inputs["scores"]
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return {"scores": shares / shares.sum(axis=-1, keepdims=True)}


@step(inputs={"scores": ("dtype", (-1, "classes"))}, outputs={"label": ("int64", (-1,))})
def argmax(inputs: Tensors, *, classes: int = -1, dtype: str = "float32") -> Tensors:
    """Index of each row's highest score; the first of equal ones."""
    return {"label": inputs["scores"].argmax(axis=-1).astype(np.int64)}


@step(
    inputs={"scores": ("dtype", (-1, "classes"))},
    outputs={"labels": ("int64", (-1, "k")), "scores": ("dtype", (-1, "k"))},
)
def top_k(inputs: Tensors, *, k: int, classes: int = -1, dtype: str = "float32") -> Tensors:
    """The k highest scores of each row and their indices, highest first; equal scores by ascending index."""
    scores = inputs["scores"]
    labels = np.argsort(-scores, axis=-1, kind="stable")[:, :k].astype(np.int64)
    return {"labels": labels, "scores": np.take_along_axis(scores, labels, axis=-1)}


@step(
    inputs={"found": ("float32", (1, -1, "columns"))},
    outputs={"found": ("float32", (-1, "columns"))},
)
def keep_above(inputs: Tensors, *, threshold: float, column: int, columns: int) -> Tensors:
    """The rows of one request [1, n, columns] whose value in `column` exceeds the threshold, for a fan-out."""
    rows = inputs["found"][0]
    return {"found": np.ascontiguousarray(rows[rows[:, column] > threshold])}


@step(
    inputs={"scores": ("score_dtype", (-1, "classes")), "data": ("dtype", (-1, "shape"))},
    outputs={"data": ("dtype", (-1, "shape")), "rows": ("int64", (-1,))},
)
def unsure(
    inputs: Tensors,
    *,
    below: float,
    softmax: bool = False,
    classes: int | Sequence[int] = -1,
    score_dtype: str = "float32",
    dtype: str = "uint8",
    shape: int | Sequence[int] = (),
) -> Tensors:
    """The rows of the data whose highest score is below `below`, for a fan-out; scores that are no numbers are too.

    `softmax`: compares the highest of the softmax of the scores. `rows`: 1 for each row that is kept, 0 for the others.
    The first half of a cascade.
    """
    scores = inputs["scores"].astype(np.float64)
    of_row = tuple(range(1, scores.ndim))
    highest = scores.max(axis=of_row, initial=-np.inf, keepdims=True)
    if softmax:
        with np.errstate(invalid="ignore"):  # infinite scores give no number, which is not sure either
            highest = 1.0 / np.exp(scores - highest).sum(axis=of_row, keepdims=True)
    kept = ~(highest.reshape(len(scores)) >= below)
    return {"data": inputs["data"][kept], "rows": kept.astype(np.int64)}


@step(
    inputs={"first": ("dtype", (-1, "shape")), "then": ("dtype", (-1, "shape"))},
    outputs={"answer": ("dtype", (-1, "shape"))},
)
def later_answer(inputs: Tensors, *, dtype: str = "float32", shape: int | Sequence[int] = ()) -> Tensors:
    """The answer of the second variant of a cascade to one request, or of the first if the second was not asked."""
    return {"answer": inputs["then"] if len(inputs["then"]) else inputs["first"]}


def _nearest(size: int, to: int) -> Array:
    """For each index of the new size, the nearest index of the old size (by pixel centres)."""
    centres = (np.arange(to) + 0.5) * size / to
    return np.minimum(centres.astype(np.intp), size - 1)


def _along(picture: Array, axis: int, to: int) -> Array:
    """Resize along one axis by linear interpolation between pixel centres."""
    size = picture.shape[axis]
    at = np.clip((np.arange(to) + 0.5) * size / to - 0.5, 0, size - 1)
    low = np.floor(at).astype(np.intp)
    high = np.minimum(low + 1, size - 1)
    share = (at - low).astype(np.float32).reshape([-1 if one == axis else 1 for one in range(picture.ndim)])
    found: Array = picture.take(high, axis).astype(np.float32)
    first = picture.take(low, axis).astype(np.float32, copy=False)
    found -= first
    found *= share
    found += first
    return found
