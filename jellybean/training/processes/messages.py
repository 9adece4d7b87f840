"""What crosses between stages: a few tensors, announced by a header of whole numbers.

The header says where the tensors belong and their shapes, so that these may differ from one micro-batch to the next.
Small tensors travel with their header in one message: a receiver always has a place for it, so nothing waits for an
answer. Floating tensors may travel in a shorter type; the receiver gives them their own again.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from jellybean.training.errors import TrainingError

_WORD = 8  # bytes of a whole number; tensors begin at multiples of it
MOST_HEADER = 256 * _WORD
MOST_WITHIN = 32 * 1024  # bytes of tensors that travel with their header
MESSAGE = 2 * MOST_HEADER + MOST_WITHIN  # bytes of the longest message, with the gaps between its tensors
_GOODBYE, _APART, _WITHIN = 0, 1, 2
_HEAD = struct.Struct("=7q")  # one of these, the key, the bytes that tell the parts
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


class Key(NamedTuple):
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

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * int(self.sent.itemsize)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tensors of a message travel. `told`: that as bytes. `places`: where in the message each begins and
    ends, if they travel within.
    """

    parts: tuple[Part | None, ...]
    told: bytes
    places: tuple[tuple[int, int], ...]
    tensor_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.places[-1][1] if self.places else _HEAD.size + len(self.told)


@dataclass(frozen=True, slots=True)
class Message:
    """What arrived. `tensors`: None where they come after it."""

    key: Key
    parts: tuple[Part | None, ...]
    tensors: Tensors | None


def layout_of(tensors: Tensors, compress: str) -> Layout:
    """How tensors travel. `compress`: one of COMPRESSIONS; only what is longer than that type gets shorter."""
    return _layout(tuple([None if one is None else (one.shape, one.dtype) for one in tensors]), compress)


@lru_cache(maxsize=1024)
def _layout(tensors: tuple[tuple[torch.Size, torch.dtype] | None, ...], compress: str) -> Layout:
    shorter = _SHORTER.get(compress)
    return _laid_out(tuple(None if one is None else _part(*one, shorter) for one in tensors))


def _part(shape: torch.Size, own: torch.dtype, shorter: torch.dtype | None) -> Part:
    if own not in _DTYPES:
        raise TrainingError(f"a tensor of {own} cannot cross between stages; cut the model elsewhere or convert it")
    long = shorter is not None and own.is_floating_point and own.itemsize > shorter.itemsize
    return Part(tuple(shape), own, shorter if shorter is not None and long else own)


def _laid_out(parts: tuple[Part | None, ...]) -> Layout:
    """A part is told by 0, or by 1 + its types and its sizes."""
    numbers: list[int] = []
    for part in parts:
        if part is None:
            numbers.append(0)
        else:
            numbers += [1 + _DTYPES.index(part.own), _DTYPES.index(part.sent), len(part.shape), *part.shape]
    if len(numbers) * _WORD + _HEAD.size > MOST_HEADER:
        raise TrainingError(f"{len(parts)} tensors cross one cut, more than a message can announce; cut elsewhere")
    places, begin = [], _HEAD.size + len(numbers) * _WORD
    for part in parts:
        end = begin + (0 if part is None else part.size_bytes)
        places.append((begin, end))
        begin = -(-end // _WORD) * _WORD
    size = sum(part.size_bytes for part in parts if part is not None)
    return Layout(parts, struct.pack(f"={len(numbers)}q", *numbers), tuple(places), size)


@lru_cache(maxsize=1024)
def _read(told: bytes) -> Layout:
    numbers = iter(struct.unpack(f"={len(told) // _WORD}q", told))
    parts: list[Part | None] = []
    for own in numbers:
        if own == 0:
            parts.append(None)
            continue
        sent, dimensions = next(numbers), next(numbers)
        shape = tuple(next(numbers) for _ in range(dimensions))
        parts.append(Part(shape, _DTYPES[own - 1], _DTYPES[sent]))
    return _laid_out(tuple(parts))


def encode(key: Key, layout: Layout, within: Sequence[torch.Tensor | None] | None = None) -> torch.Tensor:
    """A message as bytes. `within`: contiguous tensors in host memory, in the types that they travel in."""
    told = layout.told
    if within is None:
        return torch.frombuffer(bytearray(_HEAD.pack(_APART, *key, len(told)) + told), dtype=torch.uint8)
    found = bytearray(layout.size_bytes)
    _HEAD.pack_into(found, 0, _WITHIN, *key, len(told))
    found[_HEAD.size : _HEAD.size + len(told)] = told
    for tensor, (begin, end) in zip(within, layout.places, strict=True):
        if tensor is not None and end > begin:
            found[begin:end] = ctypes.string_at(tensor.data_ptr(), end - begin)
    return torch.frombuffer(found, dtype=torch.uint8)


def goodbye() -> torch.Tensor:
    """The message after which nothing follows."""
    return torch.full((_HEAD.size,), _GOODBYE, dtype=torch.uint8)


def decode(message: torch.Tensor) -> Message | None:
    """What its memory holds, copied; None for goodbye."""
    memory = message.numpy().data
    form, iteration, kind, stage, microbatch, pipe, size = _HEAD.unpack_from(memory)
    if form == _GOODBYE:
        return None
    layout = _read(bytes(memory[_HEAD.size : _HEAD.size + size]))
    tensors = None
    if form == _WITHIN:
        address = message.data_ptr()
        pairs = zip(layout.parts, layout.places, strict=True)
        tensors = tuple([None if part is None else _copied(part, address + begin) for part, (begin, _) in pairs])
    return Message(Key(iteration, kind, stage, microbatch, pipe), layout.parts, tensors)


def _copied(part: Part, address: int) -> torch.Tensor:
    tensor = torch.empty(part.shape, dtype=part.sent)
    if size := part.size_bytes:
        ctypes.memmove(tensor.data_ptr(), address, size)
    return tensor if part.sent is part.own else tensor.to(part.own)
