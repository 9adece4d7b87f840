"""Streams of a device: the order of its work, and the life of its memory.

On a GPU work is enqueued and runs later. Work of one stream runs in order; between streams only events order it. So
memory may be read on another stream only behind an event, and reused only when no stream reads it any more. All code
that handles transfers does so by this interface; on the CPU everything is done when a call returns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias

import torch

Stream: TypeAlias = Any  # opaque; None is the stream of the computation
Timestamp: TypeAlias = Any


class Event(Protocol):
    """A place in a stream; complete when all work before it is done."""

    def synchronize(self) -> None:
        """Block the host until the event is complete."""


class Streams(Protocol):
    """The streams of one device. Work goes to the calling thread's current stream."""

    @property
    def inputs(self) -> Stream:
        """The stream on which inputs are copied to the device; always the same, so that its memory is reused."""

    def new(self) -> Stream:
        """A stream beside the computation."""

    def current(self, stream: Stream) -> AbstractContextManager[Any]:
        """Context in which `stream` is this thread's current stream."""

    def mark(self, stream: Stream = None) -> Event:
        """An event behind the work of `stream` so far."""

    def wait(self, event: Event, stream: Stream = None) -> None:
        """Let later work of `stream` wait for an event. Does not block the host."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory on the device. Once released it may be reused at once by the stream that is current now."""

    def host_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host from which and to which the device copies by itself (pinned)."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy, converting the type, as work of the current stream."""

    def used_by_computation(self, tensor: torch.Tensor) -> None:
        """Once released, the memory is not reused before the computation enqueued until then is done."""

    def timestamp(self) -> Timestamp:
        """The time when the computation gets here."""

    def seconds(self, timestamps: Sequence[Timestamp]) -> list[float]:
        """Timestamps in seconds of the host's clock (`time.perf_counter`). May block the host."""


class _Complete:
    """The event of a device whose calls return when the work is done."""

    def synchronize(self) -> None:
        return None


class HostStreams:
    """The CPU: work is done when the call returns, so there is nothing to order."""

    inputs: Stream = None

    def new(self) -> Stream:
        return None

    def current(self, stream: Stream) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Stream = None) -> Event:
        return _Complete()

    def wait(self, event: Event, stream: Stream = None) -> None:
        return None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def host_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def used_by_computation(self, tensor: torch.Tensor) -> None:
        return None

    def timestamp(self) -> Timestamp:
        return time.perf_counter()

    def seconds(self, timestamps: Sequence[Timestamp]) -> list[float]:
        return list(timestamps)


class CudaStreams:
    """A GPU. The computation's stream is the current one of the thread that makes this object."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self.inputs: Stream = torch.cuda.Stream(device)

    def new(self) -> Stream:
        return torch.cuda.Stream(self._device)

    def current(self, stream: Stream) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(self._of(stream))
        return context

    def mark(self, stream: Stream = None) -> Event:
        event = torch.cuda.Event(blocking=True)  # the host sleeps in `synchronize` and does not spin
        event.record(self._of(stream))
        made: Event = event
        return made

    def wait(self, event: Event, stream: Stream = None) -> None:
        self._of(stream).wait_event(event)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=self._device)

    def host_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # torch's allocator of pinned memory waits for copies that use a block before it reuses the block.
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def used_by_computation(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._compute)

    def timestamp(self) -> Timestamp:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._compute)
        return event

    def seconds(self, timestamps: Sequence[Timestamp]) -> list[float]:
        if not timestamps:
            return []
        now = self.timestamp()
        now.synchronize()
        now_s = time.perf_counter()
        return [now_s - one.elapsed_time(now) / 1e3 for one in timestamps]

    def _of(self, stream: Stream) -> Any:
        return self._compute if stream is None else stream


def streams_of(device: torch.device) -> Streams:
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else HostStreams()
