"""A device whose streams do their work late, in a random order that the streams' rules allow, and which checks memory.

Work is enqueued, and done by `advance` or when the host waits for an event. Memory holds nan until it is written. As
with torch's caching allocator, memory that the host releases may be reused once the stream that allocated it, and the
streams that it was recorded for, have done the work that they have then. Later work that touches it is a
`MemoryViolation`.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from jellybean.training.processes.streams import HostStreams

_PATIENCE_S = 60.0


class MemoryViolation(AssertionError):
    """Work touched memory that may have been reused."""


@dataclass
class _Memory:
    """Memory of a tensor; kept here, so that its address stays its own."""

    values: torch.Tensor
    users: set[str]  # the stream that allocated it, and those that it was recorded for
    holding: set[str] | None = None  # of a released tensor: users that have yet to reach the time of its release

    def touched_by(self, stream: str) -> torch.Tensor:
        if self.holding is not None and not self.holding:
            raise MemoryViolation(f"{stream} touches memory that was released")
        return self.values


@dataclass
class _Work:
    do: Callable[[], None]
    ready: Callable[[], bool] = lambda: True


@dataclass
class DelayedEvent:
    """An event; waiting for it lets the device work."""

    device: DelayedDevice
    complete: bool = False

    def synchronize(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not self.complete:
            if not self.device.advance():  # another thread has yet to enqueue something
                assert time.monotonic() < until, "the host waits for an event that never completes"
                time.sleep(0.001)


class DelayedDevice:
    """The streams of all ranks in this process, and all memory."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.RLock()
        self._queues: dict[str, deque[_Work]] = {}
        self._memory: dict[int, _Memory] = {}

    def enqueue(self, stream: str, work: _Work) -> None:
        with self._lock:
            self._queues.setdefault(stream, deque()).append(work)

    def head(self, stream: str) -> _Work | None:
        queue = self._queues.get(stream)
        return queue[0] if queue else None

    def finish_head(self, stream: str) -> None:
        self._queues[stream].popleft()

    def advance(self) -> bool:
        """Do one piece of work of a random stream. False if none can be done."""
        with self._lock:
            ready = [name for name, queue in self._queues.items() if queue and queue[0].ready()]
            if not ready:
                return False
            name = self._random.choice(ready)
            work = self._queues[name][0]
            work.do()
            self._queues[name].popleft()
            return True

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, home: str | None) -> torch.Tensor:
        """`home`: the stream that allocates it; None: pinned memory, which torch protects while copies use it."""
        tensor = torch.full(tuple(shape), torch.nan, dtype=dtype)
        memory = self._memory[tensor.data_ptr()] = _Memory(tensor.detach(), {home} if home is not None else set())
        if home is not None:
            weakref.finalize(tensor, self._release, memory)
        return tensor

    def _release(self, memory: _Memory) -> None:
        with self._lock:
            memory.holding = set(memory.users)
            for stream in memory.users:
                self.enqueue(stream, _Work(lambda stream=stream: memory.holding.discard(stream)))

    def memory(self, tensor: torch.Tensor) -> _Memory:
        return self._memory[tensor.data_ptr()]


class DelayedStreams(HostStreams):
    """The streams of one rank (`Streams`). `name`: of the rank."""

    def __init__(self, device: DelayedDevice, name: str) -> None:
        self.device, self._name = device, name
        self._made, self._current = itertools.count(1), threading.local()
        self.inputs = self.new()

    def _of(self, stream: Any) -> str:
        return stream or f"{self._name} computation"

    @property
    def stream(self) -> str:
        return str(getattr(self._current, "stream", self._of(None)))

    def new(self) -> str:
        return f"{self._name} stream {next(self._made)}"

    @contextmanager
    def current(self, stream: Any) -> Iterator[None]:
        before, self._current.stream = self.stream, self._of(stream)
        try:
            yield
        finally:
            self._current.stream = before

    def mark(self, stream: Any = None) -> DelayedEvent:
        event = DelayedEvent(self.device)
        self.device.enqueue(self._of(stream), _Work(lambda: setattr(event, "complete", True)))
        return event

    def wait(self, event: Any, stream: Any = None) -> None:
        self.device.enqueue(self._of(stream), _Work(lambda: None, lambda: event.complete))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.device.allocate(shape, dtype, self.stream)

    def host_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.device.allocate(shape, dtype, None)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        stream, to, of = self.stream, self.device.memory(target), self.device.memory(source)
        self.device.enqueue(stream, _Work(lambda: _copy(to.touched_by(stream), of.touched_by(stream))))

    def used_by_computation(self, tensor: torch.Tensor) -> None:
        self.device.memory(tensor).users.add(self._of(None))

    def computed(self, value: float, size: int = 3) -> torch.Tensor:
        """A tensor that the computation fills with a value, later."""
        tensor = self.empty((size,), torch.float32)
        memory, stream = self.device.memory(tensor), self.stream
        self.device.enqueue(stream, _Work(lambda: _fill(memory.touched_by(stream), value)))
        return tensor

    def read(self, tensor: torch.Tensor, found: list[list[float]]) -> None:
        """Let the computation append the tensor's values to `found`, later."""
        memory, stream = self.device.memory(tensor), self.stream
        self.device.enqueue(stream, _Work(lambda: found.append(memory.touched_by(stream).tolist())))


class DelayedCommunicator:
    """NCCL from one rank to another: a send and its receive are done together, in order, behind the current stream."""

    def __init__(self, name: str, sender: DelayedStreams, receiver: DelayedStreams) -> None:
        self._sides = {"send": (sender, f"send {name}"), "receive": (receiver, f"receive {name}")}

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        streams, own = self._sides["send"]
        _, other = self._sides["receive"]
        device, memory = streams.device, streams.device.memory(tensor)

        def transfer() -> None:
            receive = device.head(other)
            assert isinstance(receive, _Receive)
            _copy(receive.memory.touched_by(other), memory.touched_by(own))
            device.finish_head(other)

        return self._start("send", _Work(transfer, lambda: isinstance(device.head(other), _Receive)))

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        memory = self._sides["receive"][0].device.memory(tensor)
        return self._start("receive", _Receive(lambda: None, lambda: False, memory))

    def _start(self, side: str, work: _Work) -> Any:
        streams, own = self._sides[side]
        streams.wait(streams.mark(streams.stream), own)
        streams.device.enqueue(own, work)
        return _Started(streams, streams.mark(own))


@dataclass
class _Receive(_Work):
    """A receive; its send does the work."""

    memory: _Memory = None  # type: ignore[assignment]


@dataclass
class _Started:
    """A transfer in flight; `wait` holds up the current stream."""

    streams: DelayedStreams
    event: DelayedEvent

    def wait(self, *timeout: Any) -> None:
        self.streams.wait(self.event, self.streams.stream)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _fill(target: torch.Tensor, value: float) -> None:
    target.fill_(value)
