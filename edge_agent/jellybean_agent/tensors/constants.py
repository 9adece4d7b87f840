"""The value that an input of a model takes in each run, converted exactly to the input's type.

But fractions, which no type of numbers has exactly, are rounded to it.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from jellybean_agent.errors import ModelError
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array


def constant_tensor(text: str, port: TensorPort) -> Array:
    """The tensor of a constant, as JSON: a number, true, false, or lists. ModelError if it does not fit the input."""
    where, dtype = f"constant {port.name}", np.dtype(port.dtype)
    try:
        value = json.loads(text)
        given = np.array(value, dtype=object)  # whose integers keep all digits beside fractions
        _require_range(given, dtype)
        with np.errstate(all="ignore"):  # `_is_exact` compares
            tensor = given.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{where}: {text} is no {port.dtype}: {error}") from error
    if dtype.kind == "b" and not _holds(value, bool):
        raise ModelError(f"{where}: {text} is no {port.dtype}: write true or false")
    if dtype.kind != "b" and ((given.size and _holds(value, bool)) or not _holds(value, int, float)):
        raise ModelError(f"{where}: {text} is no {port.dtype}: write a number")
    if not _is_exact(given, tensor):
        raise ModelError(f"{where}: {text} is no {port.dtype}, which would have {tensor.tolist()!r}")
    if tensor.ndim != len(port.shape) or any(
        size not in (-1, have) for size, have in zip(port.shape, tensor.shape, strict=True)
    ):
        raise ModelError(f"{where}: {text} has shape {list(tensor.shape)}, the model takes {_shape(port.shape)}")
    return tensor


def _require_range(given: Array, dtype: np.dtype[Any]) -> None:
    """OverflowError for an integer that the type does not have: numpy 1 warns of it, and takes another one."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for value in given.flat:
            if isinstance(value, int) and not limits.min <= value <= limits.max:
                raise OverflowError(f"its integers are {limits.min} to {limits.max}")


def _holds(value: Any, *kinds: type) -> bool:
    """True if all numbers of nested lists are of one of these types."""
    return all(_holds(item, *kinds) for item in value) if isinstance(value, list) else type(value) in kinds


def _is_exact(given: Array, tensor: Array) -> bool:
    """True if no integer was changed, no finite number became infinite, and none became zero."""
    return all(_is_kept(value, kept) for value, kept in zip(given.flat, tensor.ravel().tolist(), strict=True))


def _is_kept(value: float, kept: float) -> bool:
    if isinstance(value, int) or isinstance(kept, int):
        return value == kept
    return math.isfinite(kept) >= math.isfinite(value) and (kept != 0.0 or value == 0.0)


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if size == -1 else str(size) for size in shape) + "]"
