"""How an agent and a host talk: one question, one answer, over a socket; tensors lie in memory that both map.

What is said is a header and where the tensors lie. A worker says the same over and over: a header for tensors of shapes
that were seen before is neither written nor read again. What comes is checked like what comes from a network.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import struct
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jellybean_agent.tensors.tensors import MAX_TENSOR_RANK, WIRE_DTYPES, Array

MAX_OUTPUT_BYTES = 2**30  # of the inputs, and of the outputs, of one run
_ALIGNED = 64
_MAX_HEADER_BYTES = 2**20
_KEPT, _KEPT_BYTES = 64, 2**14  # headers that are remembered, and of one
_READ_BYTES = 2**16
_SIZE = struct.Struct("<I")
_PATIENCE_S = 600e-6  # a client that asks again as soon as it is answered takes no longer
_VAIN, _AGAIN = 3, 64  # looks in vain in a row after which only every so many-th question is looked for
_Item = tuple[str, tuple[int, ...], int]  # dtype, shape, where it begins


@dataclass(frozen=True, slots=True)
class Heard:
    """What the other end said. `arrays` lie in the memory, until either says the next thing."""

    header: Mapping[str, Any]
    arrays: tuple[Array, ...]


class Memory:
    """Memory that agent and host map: the inputs of a run, and after it its outputs. It only grows."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map: mmap.mmap | None = None
        self._size = 0

    def lay_out(self, arrays: Sequence[Array]) -> tuple[list[_Item], list[Array]]:
        """Where such arrays go, and the places. ValueError when they are too many bytes or of a dtype not sent."""
        items: list[_Item] = []
        at = 0
        for array in arrays:
            if array.dtype.name not in WIRE_DTYPES:
                raise ValueError(f"a tensor of {array.dtype.name}; known: {', '.join(WIRE_DTYPES)}")
            items.append((array.dtype.name, array.shape, at))
            at += -(-array.nbytes // _ALIGNED) * _ALIGNED
        return items, [self._array(item, at) for item in items]

    def places(self, items: Sequence[Any]) -> tuple[Array, ...]:
        """The arrays that lie there. ValueError and the like for nonsense."""
        return tuple(self._array((str(dtype), tuple(map(int, shape)), int(at)), 0) for dtype, shape, at in items)

    def _array(self, item: _Item, at_least: int) -> Array:
        (name, shape, at), dtype = item, WIRE_DTYPES[item[0]]
        if len(shape) > MAX_TENSOR_RANK or any(size < 0 for size in shape) or at < 0 or at % _ALIGNED:
            raise ValueError(f"{name} {shape[:MAX_TENSOR_RANK]} at {at}")
        size = math.prod(shape) * dtype.itemsize
        view = self._view(max(at + size, at_least))
        return np.frombuffer(view, dtype, math.prod(shape), at).reshape(shape) if size else np.empty(shape, dtype)

    def _view(self, size: int) -> mmap.mmap:
        if size > MAX_OUTPUT_BYTES:
            raise ValueError(f"tensors of {size} bytes in one run; {MAX_OUTPUT_BYTES} are the limit")
        if self._map is None or size > self._size:
            self._size = max(os.fstat(self.file).st_size, 1 << max(16, (size - 1).bit_length()))
            if os.fstat(self.file).st_size < self._size:
                os.ftruncate(self.file, self._size)
            self._map = mmap.mmap(self.file, self._size)
        return self._map


class Talk:
    """One end of the conversation. Places of arrays stay where they are: what is remembered of them stays true."""

    def __init__(self, connection: socket.socket, memory: Memory) -> None:
        self.connection, self.memory = connection, memory
        self._said: dict[Hashable, tuple[bytes, list[Array]]] = {}
        self._heard: dict[bytes, Heard] = {}
        self._data = b""
        self._turn = self._in_vain = 0  # of looking for a question: how often, and how often in vain in a row

    def say(self, key: Hashable, header: Mapping[str, Any], arrays: Sequence[Array]) -> None:
        """`key`: equal for equal headers. ValueError when the arrays cannot be sent: then nothing is."""
        whole = (key, tuple((array.dtype, array.shape) for array in arrays))
        found = self._said.get(whole)
        if found is None:
            items, places = self.memory.lay_out(arrays)
            told = json.dumps({**header, "arrays": items}).encode()
            found = (_SIZE.pack(len(told)) + told, places)
            _keep(self._said, whole, found, len(told))
        for place, array in zip(found[1], arrays, strict=True):
            place[...] = array
        self.connection.sendall(found[0])

    def hear(self) -> Heard:
        """Wait for what the other end says. ConnectionError when it is gone, ValueError and the like for nonsense."""
        while True:
            found = self._next()
            if found is not None:
                return found
            self.read()

    def hear_soon(self) -> Heard:
        """As `hear`, of who is asked again at once: to look for the next question costs less than to be woken by it.

        It is looked for without waiting for as long as that has paid of late; others get the processor meanwhile.
        """
        if (found := self._next()) is not None:
            return found
        self._turn += 1
        if self._in_vain < _VAIN or self._turn % _AGAIN == 0:
            until_s = time.monotonic() + _PATIENCE_S
            while time.monotonic() < until_s:
                try:
                    self._take(self.connection.recv(_READ_BYTES, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    os.sched_yield()
                else:
                    self._in_vain = 0
                    return self.hear()
            self._in_vain += 1
        return self.hear()

    def heard(self) -> Heard | None:
        """What the other end said, if all of it is there; for a socket that has something to read."""
        self.read()
        return self._next()

    def read(self) -> None:
        self._take(self.connection.recv(_READ_BYTES))

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("the other end is gone")
        self._data = self._data + data if self._data else data

    def _next(self) -> Heard | None:
        data = self._data
        if len(data) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(data)
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        end = _SIZE.size + size
        if len(data) < end:
            return None
        told, self._data = data[_SIZE.size : end], data[end:]
        found = self._heard.get(told)
        if found is None:
            header = json.loads(told)
            found = Heard(header, self.memory.places(header.pop("arrays")))
            _keep(self._heard, told, found, len(told))
        return found


def _keep(kept: dict[Any, Any], key: Any, value: Any, size: int) -> None:
    """Remember a header of a size, for as long as there are not too many."""
    if size <= _KEPT_BYTES:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = value
