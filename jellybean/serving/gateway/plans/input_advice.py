"""What makes a request's tensor fit the model that takes it: the NumPy expression of what to send instead."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from jellybean_agent import Array, tensor_mismatch

ONE_ROW = "[:1]"  # the change of an array of several rows, each of which may be a request
_ADVICE = re.compile(
    r"(?P<problem>source (?P<source>[^\s:]+): .*); send array"
    r"(?P<cast>\.astype\('(?P<dtype>\w+)'\))?"
    r"(?P<reshape>\[None\]|\[:1\]|\.reshape\((?P<shape>[-\d, ]+)\)|\.transpose\((?P<axes>[\d, ]+)\))?(, or .*)?"
)
_MAX_TRANSPOSED = 6  # dimensions of an array whose axes are permuted in search of the wanted shape: at most 720 orders


@dataclass(frozen=True, slots=True)
class InputAdvice:
    """The advice at the end of a refusal, and the `problem` before it.

    `dtype`: to convert to, empty for none. `reshape`: an expression, as `[None]`; `shape`: that of `.reshape(...)`.
    `axes`: those of `.transpose(...)`.
    """

    source: str
    problem: str
    dtype: str
    reshape: str
    shape: tuple[int, ...] | None
    axes: tuple[int, ...] | None

    @property
    def expression(self) -> str:
        """The NumPy expression of what to send instead of `array`."""
        cast = f".astype('{self.dtype}')" if self.dtype else ""
        return f"array{cast}{self.reshape}"


def read_advice(refusal: str) -> InputAdvice | None:
    """The advice of a refusal that `check_inputs` made; None if it has none."""
    match = _ADVICE.fullmatch(refusal)
    if match is None:
        return None
    shape, axes = (None if match[key] is None else tuple(map(int, match[key].split(","))) for key in ("shape", "axes"))
    return InputAdvice(match["source"], match["problem"], match["dtype"] or "", match["reshape"] or "", shape, axes)


def what_to_send(dtype: str, shape: Sequence[int], wanted_dtype: str, wanted_shape: Sequence[int]) -> str:
    """The expression of `array` that fits, as the end of a sentence; empty if none is certain. -1 is any size.

    An array without the leading dimension of one request gets it. One with the wanted sizes in another order is
    transposed, if only one order of its axes fits. It is reshaped only where no value can get to a wrong place: to add
    or remove dimensions of size 1, and to flatten a request to one dimension, or the reverse.
    """
    cast = "" if dtype == wanted_dtype else f".astype('{wanted_dtype}')"
    wanted = tuple(wanted_shape)
    wanted = (1, *wanted[1:]) if wanted[:1] == (-1,) else wanted
    if _fits(shape, wanted):
        change = ""
    elif tuple(shape[:1]) != (1,) and _fits((1, *shape), wanted):
        change = "[None]"
    elif _keeps_order(shape, wanted):
        change = f".reshape({', '.join(map(str, wanted))})"
    elif (axes := _only_transposition(shape, wanted)) is not None:
        change = f".transpose({', '.join(map(str, axes))})"
    else:
        return ""
    return f"; send array{cast}{change}" if cast or change else ""


def why_not_cast(array: Array, dtype: str) -> str:
    """Why values cannot be cast to a dtype, as the end of a sentence; empty if they can.

    Floats may be rounded to the nearest float; all other values must stay the same.
    """
    wanted = np.dtype(dtype)
    if array.dtype == wanted or not array.size:
        return ""
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
        if array.dtype.kind == wanted.kind == "f":
            fits = np.array_equal(np.isfinite(cast), np.isfinite(array))
        else:
            fits = np.array_equal(cast.astype(array.dtype), array) and np.array_equal(cast, array)
    if fits:
        return ""
    return f"; its values, {array.min()} to {array.max()}, are not all {dtype}: scale or round them first"


def _fits(shape: Sequence[int], wanted: tuple[int, ...]) -> bool:
    return tensor_mismatch("float32", tuple(shape), "float32", wanted) is None


def _keeps_order(shape: Sequence[int], wanted: tuple[int, ...]) -> bool:
    """True if reshaping adds or removes dimensions of size 1, or flattens all others to one, or the reverse."""
    sizes, targets = [size for size in shape if size != 1], [size for size in wanted if size != 1]
    open_sizes = targets.count(-1)
    values, known = math.prod(sizes), math.prod(size for size in targets if size != -1)
    if open_sizes > 1 or not known or values % known or (not open_sizes and values != known):
        return False
    resolved = [values // known if size == -1 else size for size in targets]
    if sizes == [size for size in resolved if size != 1]:
        return True
    return len(sizes) == 1 or (len(targets) == 1 and not open_sizes)


def _only_transposition(shape: Sequence[int], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of axes that gives the wanted shape; None if none does, or several with different orders of values."""
    if len(shape) != len(wanted) or len(shape) > _MAX_TRANSPOSED:
        return None
    orders: dict[tuple[int, ...], tuple[int, ...]] = {}
    for axes in permutations(range(len(shape))):
        if _fits([shape[axis] for axis in axes], wanted):
            orders.setdefault(tuple(axis for axis in axes if shape[axis] != 1), axes)
    return next(iter(orders.values())) if len(orders) == 1 else None
