"""Shapes that built-in steps give for the shapes that reach them, where their declarations leave sizes open.

`flatten` declares that it gives [any, any]; of [n, 28, 28] it gives [n, 784]. Without that, an edge after a step would
not be checked, as an open size fits every other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from jellybean.documents.checks.tensors import ModelSignature, Port, Sizes, Tensor

_STEPS = "jellybean_agent.steps:"


def with_given_shapes(
    function: str, arguments: Mapping[str, Any], declared: ModelSignature, given: Iterable[Tensor]
) -> ModelSignature:
    """The signature of a built-in step, with the sizes of its output that follow from the tensors that it may be given.

    Other functions, and steps whose output has the declared sizes in any case, keep their signature.
    """
    rule = _ROWS.get(function.removeprefix(_STEPS)) if function.startswith(_STEPS) else None
    if rule is None or len(declared.inputs) != 1 or len(declared.outputs) != 1:
        return declared
    shapes = [tensor.shape for tensor in given]
    taken = _narrowed(declared.inputs[0].tensor.shape, reduce(_common, shapes) if shapes else None)
    (output,) = declared.outputs
    if not taken or output.tensor.shape is None:
        return declared
    shape = _narrowed(output.tensor.shape, (None, *rule(taken[1:], arguments)))
    return replace(declared, outputs=(Port(output.name, Tensor(output.tensor.dtype, shape)),))


def _common(one: Sizes | None, other: Sizes | None) -> Sizes | None:
    """The sizes that two shapes agree on, the others open; None if they have unlike numbers of dimensions."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(left if left == right else None for left, right in zip(one, other, strict=True))


def _narrowed(declared: Sizes | None, known: Sizes | None) -> Sizes | None:
    """The declared shape with known sizes in place of open ones; unchanged if the dimensions are not as many."""
    if declared is None or known is None or len(declared) != len(known):
        return declared
    return tuple(other if size is None else size for size, other in zip(declared, known, strict=True))


def _product(rows: Sizes) -> int | None:
    known = [size for size in rows if size is not None]
    return math.prod(known) if len(known) == len(rows) else None


def _same(rows: Sizes, _: Mapping[str, Any]) -> Sizes:
    return rows


def _flattened(rows: Sizes, _: Mapping[str, Any]) -> Sizes:
    return (_product(rows),)


def _reshaped(rows: Sizes, arguments: Mapping[str, Any]) -> Sizes:
    to, count = arguments.get("to"), _product(rows)
    sizes = list(to) if isinstance(to, list | tuple) else [to]
    known = math.prod(size for size in sizes if isinstance(size, int) and size > 0)
    return tuple((count // known if count is not None else None) if size == -1 else size for size in sizes)


def _selected(rows: Sizes, _: Mapping[str, Any]) -> Sizes:
    return rows[1:]


def _channels_first(rows: Sizes, _: Mapping[str, Any]) -> Sizes:
    height, width, channels = rows
    return channels, height, width


def _channels_last(rows: Sizes, _: Mapping[str, Any]) -> Sizes:
    channels, height, width = rows
    return height, width, channels


_ROWS: Mapping[str, Callable[[Sizes, Mapping[str, Any]], Sizes]] = {
    "cast": _same,
    "channels_first": _channels_first,
    "channels_last": _channels_last,
    "flatten": _flattened,
    "normalise": _same,
    "reshape": _reshaped,
    "select": _selected,
    "softmax": _same,
}
