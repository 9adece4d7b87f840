"""Wire format of tensors between stages: an integer header, then the tensors.

The header holds the key and the shapes, so shapes may differ between micro-batches. Small tensors travel in the same
message as their header: receivers always have a buffer posted for it, so senders never wait for an answer. Floating
tensors may be sent in a lower precision; the receiver converts them back.
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

_WORD = 8  # bytes of an integer; tensors are aligned to it
MAX_HEADER_BYTES = 2048 * _WORD  # announces 290 tensors of four dimensions; a rank posts two of these per peer
MAX_INLINE_BYTES = 32 * 1024  # tensors up to this size in total travel with their header
MAX_MESSAGE_BYTES = 2 * MAX_HEADER_BYTES + MAX_INLINE_BYTES  # including padding between aligned tensors
_GOODBYE, _SEPARATE, _INLINE = 0, 1, 2  # forms of a message
_HEAD = struct.Struct("=7q")  # form, the key's five fields, bytes of the description
_TORCH_TYPES = (
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
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_SHORTER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
COMPRESSIONS = ("none", *_SHORTER)
ACTIVATIONS, GRADIENTS, EVALUATION = 0, 1, 2  # kinds of messages
StageTensors = tuple[torch.Tensor | None, ...]  # outputs or gradients of a stage; None: no gradient


class MessageKey(NamedTuple):
    """Address of a message. `kind`: activations, gradients or EVALUATION. `stage`: the receiver; in training, where
    several stages may send to one, sender x stages + receiver.
    """

    iteration: int
    kind: int
    stage: int
    microbatch: int
    pipe: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape of one tensor, its type `own` at sender and receiver, and its type `sent` on the wire."""

    shape: tuple[int, ...]
    own: torch.dtype
    sent: torch.dtype

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * int(self.sent.itemsize)


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """Layout of a message. `description`: the encoded specs. `places`: byte range of each inline tensor."""

    parts: tuple[TensorSpec | None, ...]
    description: bytes
    places: tuple[tuple[int, int], ...]
    tensor_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.places[-1][1] if self.places else _HEAD.size + len(self.description)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A received message. `tensors`: None if they follow separately."""

    key: MessageKey
    parts: tuple[TensorSpec | None, ...]
    tensors: StageTensors | None


def layout_of(tensors: StageTensors, compress: str) -> MessageLayout:
    """The layout for these tensors. `compress`: one of COMPRESSIONS; only wider floating types are converted."""
    return _layout(tuple([None if one is None else (one.shape, one.dtype) for one in tensors]), compress)


@lru_cache(maxsize=1024)
def _layout(tensors: tuple[tuple[torch.Size, torch.dtype] | None, ...], compress: str) -> MessageLayout:
    shorter = _SHORTER.get(compress)
    return _lay_out(tuple(None if one is None else _part(*one, shorter) for one in tensors))


def _part(shape: torch.Size, own: torch.dtype, shorter: torch.dtype | None) -> TensorSpec:
    if own not in _TORCH_TYPES:
        raise TrainingError(f"a tensor of {own} cannot cross between stages; cut the model elsewhere or convert it")
    long = shorter is not None and own.is_floating_point and own.itemsize > shorter.itemsize
    return TensorSpec(tuple(shape), own, shorter if shorter is not None and long else own)


def _lay_out(parts: tuple[TensorSpec | None, ...]) -> MessageLayout:
    """The layout, with parts as integers: 0 for None, else 1 + type index, sent type index, dimensions, sizes."""
    numbers: list[int] = []
    for part in parts:
        if part is None:
            numbers.append(0)
        else:
            numbers += [1 + _TORCH_TYPES.index(part.own), _TORCH_TYPES.index(part.sent), len(part.shape), *part.shape]
    if len(numbers) * _WORD + _HEAD.size > MAX_HEADER_BYTES:
        raise TrainingError(f"{len(parts)} tensors cross one cut, more than a message can announce; cut elsewhere")
    places, begin = [], _HEAD.size + len(numbers) * _WORD
    for part in parts:
        end = begin + (0 if part is None else part.size_bytes)
        places.append((begin, end))
        begin = -(-end // _WORD) * _WORD
    size = sum(part.size_bytes for part in parts if part is not None)
    return MessageLayout(parts, struct.pack(f"={len(numbers)}q", *numbers), tuple(places), size)


@lru_cache(maxsize=1024)
def _parse_description(description: bytes) -> MessageLayout:
    numbers = iter(struct.unpack(f"={len(description) // _WORD}q", description))
    parts: list[TensorSpec | None] = []
    for own in numbers:
        if own == 0:
            parts.append(None)
            continue
        sent, dimensions = next(numbers), next(numbers)
        shape = tuple(next(numbers) for _ in range(dimensions))
        parts.append(TensorSpec(shape, _TORCH_TYPES[own - 1], _TORCH_TYPES[sent]))
    return _lay_out(tuple(parts))


def encode(key: MessageKey, layout: MessageLayout, inline: Sequence[torch.Tensor | None] | None = None) -> torch.Tensor:
    """The message as bytes. `inline`: contiguous tensors in host memory, already converted, for the inline form."""
    description = layout.description
    if inline is None:
        return torch.frombuffer(
            bytearray(_HEAD.pack(_SEPARATE, *key, len(description)) + description), dtype=torch.uint8
        )
    found = bytearray(layout.size_bytes)
    _HEAD.pack_into(found, 0, _INLINE, *key, len(description))
    found[_HEAD.size : _HEAD.size + len(description)] = description
    for tensor, (begin, end) in zip(inline, layout.places, strict=True):
        if tensor is not None and end > begin:
            found[begin:end] = ctypes.string_at(tensor.data_ptr(), end - begin)
    return torch.frombuffer(found, dtype=torch.uint8)


def goodbye() -> torch.Tensor:
    """The message that tells a peer that no further ones follow."""
    return torch.full((_HEAD.size,), _GOODBYE, dtype=torch.uint8)


def decode(message: torch.Tensor) -> ReceivedMessage | None:
    """Parse a message, copying its tensors; None for goodbye."""
    memory = message.numpy().data
    form, iteration, kind, stage, microbatch, pipe, size = _HEAD.unpack_from(memory)
    if form == _GOODBYE:
        return None
    layout = _parse_description(bytes(memory[_HEAD.size : _HEAD.size + size]))
    tensors = None
    if form == _INLINE:
        address = message.data_ptr()
        pairs = zip(layout.parts, layout.places, strict=True)
        tensors = tuple([None if part is None else _copy_inline(part, address + begin) for part, (begin, _) in pairs])
    return ReceivedMessage(MessageKey(iteration, kind, stage, microbatch, pipe), layout.parts, tensors)


def _copy_inline(part: TensorSpec, address: int) -> torch.Tensor:
    tensor = torch.empty(part.shape, dtype=part.sent)
    if size := part.size_bytes:
        ctypes.memmove(tensor.data_ptr(), address, size)
    return tensor if part.sent is part.own else tensor.to(part.own)
