"""Built-in steps that make a tensor fit a model's input: its type first, then its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jellybean.documents.checks.tensors import Tensor, sizes_agree
from jellybean_agent import unserved_reason

_PICTURE_SIZES = 3  # height, width and channels


@dataclass(frozen=True, slots=True)
class Conversion:
    """A built-in step. `arguments`: in YAML. `on_array`: the method of an array that does the same."""

    step: str
    arguments: str
    on_array: str

    @property
    def code(self) -> str:
        """The keys of a variant that runs the step."""
        return f"python: jellybean_agent.steps:{self.step}, with: {{{self.arguments}}}"


def steps_between(given: Tensor, wanted: Tensor) -> tuple[Conversion, ...]:
    """The built-in steps that together make a tensor fit, in order; empty if there are none, or none is needed.

    A step that changes the shape is among them only if the number of values in a row can be that of the input.
    """
    if given.shape is None or unserved_reason(given.dtype) or unserved_reason(wanted.dtype):
        return ()
    steps: list[Conversion] = []
    rows = _sizes(given.shape)
    if given.dtype != wanted.dtype:
        arguments = f"to: {wanted.dtype}, dtype: {given.dtype}, shape: {rows}"
        steps.append(Conversion("cast", arguments, f".astype('{wanted.dtype}')"))
    if wanted.shape is not None and not sizes_agree(given.shape[1:], wanted.shape[1:]):
        rearranged = _rearranged(rows, _sizes(wanted.shape), f"dtype: {wanted.dtype}")
        if rearranged is None:
            return ()
        steps.append(rearranged)
    return tuple(steps)


def on_array(steps: Sequence[Conversion]) -> str:
    """The expression that does to `array` what the steps do to each row of it."""
    return "array" + "".join(step.on_array for step in steps)


def _rearranged(rows: Sequence[int], wanted: Sequence[int], kind: str) -> Conversion | None:
    """The step between shapes of other numbers of dimensions, or pictures with the channels first and last."""
    if len(rows) == len(wanted):
        return _moved_channels(rows, wanted, kind)
    if not _same_count(rows, wanted):
        return None
    step, to = ("flatten", "") if len(wanted) == 1 else ("reshape", f"to: {list(wanted)}, ")
    sizes = ", ".join(map(str, ("len(array)", *wanted)))
    return Conversion(step, f"{to}{kind}, shape: {rows}", f".reshape({sizes})")


def _same_count(rows: Sequence[int], wanted: Sequence[int]) -> bool:
    """True if a row of sizes `rows` can have as many values as one of `wanted`, of which one size may be open."""
    open_sizes = sum(size == -1 for size in wanted)
    if -1 in rows or open_sizes > 1:
        return open_sizes <= 1
    count, known = math.prod(rows), math.prod(size for size in wanted if size != -1)
    return count % known == 0 if open_sizes else count == known


def _moved_channels(rows: Sequence[int], shape: Sequence[int], kind: str) -> Conversion | None:
    """The step between pictures with the channels first and last, if that makes the sizes `rows` those of `shape`."""
    if len(rows) != _PICTURE_SIZES:
        return None
    for step, order, names in (
        ("channels_first", (2, 0, 1), ("height", "width", "channels")),
        ("channels_last", (1, 2, 0), ("channels", "height", "width")),
    ):
        moved = [rows[index] for index in order]
        if all(-1 in pair or pair[0] == pair[1] for pair in zip(moved, shape, strict=True)):
            sizes = ", ".join(f"{name}: {size}" for name, size in zip(names, rows, strict=True))
            axes = ", ".join(str(index + 1) for index in order)
            return Conversion(step, f"{sizes}, {kind}", f".transpose(0, {axes})")
    return None


def _sizes(shape: tuple[int | None, ...]) -> list[int]:
    """A shape without the batch, as steps take it; -1 is any size."""
    return [-1 if size is None else size for size in shape[1:]]
