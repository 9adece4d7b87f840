"""What makes a request's tensor fit the model that takes it: the NumPy expression of what to send instead."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_agent import tensor_mismatch

ONE_ROW = "[:1]"  # the change of an array of several rows, each of which may be a request
_ADVICE = re.compile(
    r"(?P<problem>source (?P<source>[^\s:]+): .*); send array"
    r"(?P<cast>\.astype\('(?P<dtype>\w+)'\))?(?P<reshape>\[None\]|\[:1\]|\.reshape\((?P<shape>[-\d, ]+)\))?(, or .*)?"
)


@dataclass(frozen=True, slots=True)
class InputAdvice:
    """The advice at the end of a refusal, and the `problem` before it.

    `dtype`: to convert to, empty for none. `reshape`: an expression, as `[None]`; `shape`: that of `.reshape(...)`.
    """

    source: str
    problem: str
    dtype: str
    reshape: str
    shape: tuple[int, ...] | None

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
    shape = None if match["shape"] is None else tuple(map(int, match["shape"].split(",")))
    return InputAdvice(match["source"], match["problem"], match["dtype"] or "", match["reshape"] or "", shape)


def what_to_send(dtype: str, shape: Sequence[int], wanted_dtype: str, wanted_shape: Sequence[int]) -> str:
    """The expression of `array` that fits, as the end of a sentence; empty if none is certain. -1 is any size.

    An array without the leading dimension of one request gets it; one with as many values is reshaped.
    """
    cast = "" if dtype == wanted_dtype else f".astype('{wanted_dtype}')"
    wanted = tuple(wanted_shape)
    wanted = (1, *wanted[1:]) if wanted[:1] == (-1,) else wanted

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
