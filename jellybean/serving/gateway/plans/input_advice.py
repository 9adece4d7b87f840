"""What makes a request's tensor fit the model that takes it, as the NumPy expression of what to send instead."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jellybean_agent import tensor_mismatch


def what_to_send(dtype: str, shape: Sequence[int], wanted_dtype: str, wanted_shape: Sequence[int]) -> str:
    """The expression of `array` that fits, as the end of a sentence; empty if none is certain. -1 is any size.

    An array without the leading dimension of one request gets it; one with as many values is reshaped.
    """
    cast = "" if dtype == wanted_dtype else f".astype('{wanted_dtype}')"
    wanted = (1, *wanted_shape[1:]) if wanted_shape[:1] == (-1,) else tuple(wanted_shape)

    def fits(candidate: Sequence[int]) -> bool:
        return tensor_mismatch(wanted_dtype, tuple(candidate), wanted_dtype, wanted) is None

    open_sizes = wanted.count(-1)
    values, known = math.prod(shape), math.prod(size for size in wanted if size != -1)
    if fits(shape):
        reshape = ""
    elif tuple(shape[:1]) != (1,) and fits((1, *shape)):
        reshape = "[None]"
    elif (open_sizes == 0 and values == known) or (open_sizes == 1 and known and values % known == 0):
        reshape = f".reshape({', '.join(map(str, wanted))})"
    else:
        return ""
    return f"; send array{cast}{reshape}" if cast or reshape else ""
