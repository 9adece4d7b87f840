"""What crosses between stages: a few tensors, announced by a header of whole numbers.

The header says where the tensors belong and their shapes, so that these may differ from one micro-batch to the next.
Floating tensors may travel in a shorter type; the receiver gives them their own again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jellybean.training.errors import TrainingError

HEADER = 256  # whole numbers
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_SHORTER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
COMPRESSIONS = ("none", *_SHORTER)
Tensors = tuple[torch.Tensor | None, ...]  # None: no gradient


@dataclass(frozen=True, slots=True)
class Key:
    """Whom a message is for: of an iteration the action's kind, stage, micro-batch and pipe."""

    iteration: int
    kind: int
    stage: int
    microbatch: int
    pipe: int


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor as it travels; `own` is what it is before and after."""

    shape: tuple[int, ...]
    own: torch.dtype
    sent: torch.dtype


def parts_of(tensors: Tensors, compress: str) -> tuple[Part | None, ...]:
    """How tensors travel. `compress`: one of COMPRESSIONS; only what is longer than that type gets shorter."""
    shorter = _SHORTER.get(compress)
    return tuple(None if tensor is None else _part(tensor, shorter) for tensor in tensors)


def _part(tensor: torch.Tensor, shorter: torch.dtype | None) -> Part:
    own = tensor.dtype
    if own not in _DTYPES:
        raise TrainingError(f"a tensor of {own} cannot cross between stages; cut the model elsewhere or convert it")
    long = shorter is not None and own.is_floating_point and own.itemsize > shorter.itemsize
    return Part(tuple(tensor.shape), own, shorter if long else own)


def encode(key: Key, parts: Sequence[Part | None]) -> torch.Tensor:
    """The header. A part: 0, or 1 + its types and its sizes."""
    numbers = [1, key.iteration, key.kind, key.stage, key.microbatch, key.pipe, len(parts)]
    for part in parts:
        if part is None:
            numbers.append(0)
        else:
            numbers += [1 + _DTYPES.index(part.own), _DTYPES.index(part.sent), len(part.shape), *part.shape]
    if len(numbers) > HEADER:
        raise TrainingError(f"{len(parts)} tensors cross one cut, more than a message can announce; cut elsewhere")
    return torch.tensor(numbers + [0] * (HEADER - len(numbers)), dtype=torch.int64)


def goodbye() -> torch.Tensor:
    """The header after which nothing follows."""
    return torch.zeros(HEADER, dtype=torch.int64)


def decode(header: torch.Tensor) -> tuple[Key, tuple[Part | None, ...]] | None:
    """What follows; None for goodbye."""
    numbers = iter(header.tolist())
    if not next(numbers):
        return None
    key = Key(*(next(numbers) for _ in range(5)))
    parts: list[Part | None] = []
    for _ in range(next(numbers)):
        own = next(numbers)
        if own == 0:
            parts.append(None)
            continue
        sent, dimensions = next(numbers), next(numbers)
        shape = tuple(next(numbers) for _ in range(dimensions))
        parts.append(Part(shape, _DTYPES[own - 1], _DTYPES[sent]))
    return key, tuple(parts)
