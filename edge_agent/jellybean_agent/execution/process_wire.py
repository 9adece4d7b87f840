"""Messages between the agent and a model process: headers over a socket, tensors in shared memory.

A message is a JSON header with the places of its tensors in the shared memory. Runs repeat the same shapes, so headers
are cached in encoded and in parsed form. Incoming data is checked like data from a network.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import socket
import struct
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from jellybean_agent.tensors.dtypes import WIRE_DTYPES
from jellybean_agent.tensors.tensors import MAX_TENSOR_RANK, Array

MAX_OUTPUT_BYTES = 2**30  # limit for all inputs, and for all outputs, of one run
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 2**20
_CACHED_HEADERS, _CACHED_HEADER_BYTES = 64, 2**14  # number of cached headers; largest header that is cached
_READ_BYTES = 2**16
_SIZE = struct.Struct("<I")
_TensorPlace = tuple[str, tuple[int, ...], int]  # dtype, shape, byte offset in the shared memory


@dataclass(frozen=True, slots=True)
class SpinSettings:
    """When a model process busy-waits for its next request: for fast models that costs less than a wake-up.

    `longest_s`: longest busy-wait; long enough for a client that calls in a closed loop. After `max_failed` futile
    busy-waits in a row, the process busy-waits only for every `retry_every`-th request.
    """

    longest_s: float = 600e-6
    max_failed: int = 3
    retry_every: int = 64


_DEFAULT_SPIN = SpinSettings()


@dataclass(frozen=True, slots=True)
class ProcessMessage:
    """A received message. `arrays` are views of the shared memory, valid until either side sends the next message."""

    header: Mapping[str, Any]
    arrays: tuple[Array, ...]


class SharedMemory:
    """Memory mapped by agent and model process: holds a run's inputs, then its outputs. It grows, never shrinks."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map: mmap.mmap | None = None
        self._size = 0

    @classmethod
    def create(cls) -> Self:
        """New memory, which a model process that gets its file cannot truncate."""
        file = os.memfd_create("jellybean-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(file)

    def lay_out(self, arrays: Sequence[Array]) -> tuple[list[_TensorPlace], list[Array]]:
        """(places, views) for arrays like these. ValueError for too many bytes or a dtype that cannot be sent."""
        places: list[_TensorPlace] = []
        end = 0
        for array in arrays:
            if array.dtype.name not in WIRE_DTYPES:
                raise ValueError(f"a tensor of {array.dtype.name}; known: {', '.join(WIRE_DTYPES)}")
            places.append((array.dtype.name, array.shape, end))
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return places, [self._array(place, end) for place in places]

    def views(self, places: Sequence[Any]) -> tuple[Array, ...]:
        """Views of the arrays at the places. ValueError, TypeError or KeyError for invalid places."""
        return tuple(self._array((str(dtype), tuple(map(int, shape)), int(at)), 0) for dtype, shape, at in places)

    def _array(self, place: _TensorPlace, min_bytes: int) -> Array:
        (name, shape, at), dtype = place, WIRE_DTYPES[place[0]]
        if len(shape) > MAX_TENSOR_RANK:
            raise ValueError(f"a tensor of {len(shape)} dimensions; {MAX_TENSOR_RANK} are the limit")
        if any(size < 0 for size in shape) or at < 0 or at % _ALIGNMENT:
            raise ValueError(f"{name} {shape[:MAX_TENSOR_RANK]} at {at}")
        size = math.prod(shape) * dtype.itemsize
        view = self._mapped(max(at + size, min_bytes))
        return np.frombuffer(view, dtype, math.prod(shape), at).reshape(shape) if size else np.empty(shape, dtype)

    def _mapped(self, size: int) -> mmap.mmap:
        if size > MAX_OUTPUT_BYTES:
            raise ValueError(f"tensors of {size} bytes in one run; {MAX_OUTPUT_BYTES} are the limit")
        if self._map is None or size > self._size:
            self._size = max(os.fstat(self.file).st_size, 1 << max(16, (size - 1).bit_length()))
            if os.fstat(self.file).st_size < self._size:
                os.ftruncate(self.file, self._size)
            self._map = mmap.mmap(self.file, self._size)
        return self._map


class Conversation:
    """One end of the connection between agent and model process.

    Invariant: arrays of equal shapes get equal places, so cached headers stay valid.
    """

    def __init__(self, connection: socket.socket, memory: SharedMemory, spin: SpinSettings = _DEFAULT_SPIN) -> None:
        self.connection, self.memory, self._spin = connection, memory, spin
        self._encoded: dict[Hashable, tuple[bytes, list[Array]]] = {}
        self._parsed: dict[bytes, ProcessMessage] = {}
        self._data = b""
        self._spins = self._failed_spins = 0  # busy-waits in total; consecutive futile ones

    @property
    def failed_spins(self) -> int:
        """Futile busy-waits in a row."""
        return self._failed_spins

    def send(self, key: Hashable, header: Mapping[str, Any], arrays: Sequence[Array]) -> None:
        """Send a message. `key`: hashable, equal for equal headers. ValueError, before anything is sent, for arrays
        that are too large or of a dtype that cannot be sent.
        """
        whole_key = (key, tuple((array.dtype, array.shape) for array in arrays))
        encoded = self._encoded.get(whole_key)
        if encoded is None:
            places, views = self.memory.lay_out(arrays)
            text = json.dumps({**header, "arrays": places}).encode()
            encoded = (_SIZE.pack(len(text)) + text, views)
            _cache(self._encoded, whole_key, encoded, len(text))
        for view, array in zip(encoded[1], arrays, strict=True):
            view[...] = array
        self.connection.sendall(encoded[0])

    def receive(self) -> ProcessMessage:
        """Wait for a message. ConnectionError if the other end is gone; ValueError, TypeError, KeyError if invalid."""
        while True:
            message = self._next()
            if message is not None:
                return message
            self._read()

    def receive_spinning(self) -> ProcessMessage:
        """Like `receive`, but first busy-waits as `SpinSettings` say, yielding the processor in each round."""
        if (message := self._next()) is not None:
            return message
        self._spins += 1
        if self._failed_spins < self._spin.max_failed or self._spins % self._spin.retry_every == 0:
            until_s = time.monotonic() + self._spin.longest_s
            while time.monotonic() < until_s:
                try:
                    self._append(self.connection.recv(_READ_BYTES, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    os.sched_yield()
                else:
                    self._failed_spins = 0
                    return self.receive()
            self._failed_spins += 1
        return self.receive()

    def poll(self) -> ProcessMessage | None:
        """Read once from a socket that has data; returns the message if it is complete, else None."""
        self._read()
        return self._next()

    def close(self) -> None:
        """Close the socket and the file of the shared memory."""
        self.connection.close()
        os.close(self.memory.file)

    def _read(self) -> None:
        self._append(self.connection.recv(_READ_BYTES))

    def _append(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("the other end is gone")
        self._data = self._data + data if self._data else data

    def _next(self) -> ProcessMessage | None:
        data = self._data
        if len(data) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(data)
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        end = _SIZE.size + size
        if len(data) < end:
            return None
        text, self._data = data[_SIZE.size : end], data[end:]
        message = self._parsed.get(text)
        if message is None:
            message = self._message(text)
            _cache(self._parsed, text, message, len(text))
        return message

    def _message(self, text: bytes) -> ProcessMessage:
        """The message of a header. ValueError, TypeError or KeyError if it is invalid."""
        try:
            header = json.loads(text)
            if not isinstance(header, dict):
                raise ValueError("a header that is no object")
            return ProcessMessage(header, self.memory.views(header.pop("arrays")))
        except (OverflowError, RecursionError) as error:  # numbers and depth without a bound
            raise ValueError(f"a header with {error}") from error


def _cache(cache: dict[Any, Any], key: Any, value: Any, header_bytes: int) -> None:
    """Cache a header unless it is large; a full cache is emptied first."""
    if header_bytes <= _CACHED_HEADER_BYTES:
        if len(cache) >= _CACHED_HEADERS:
            cache.clear()
        cache[key] = value
