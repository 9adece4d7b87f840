"""Links: transfers of large tensors between this rank and another one.

NCCL runs the operations of a communicator one after the other, and a send ends only when the peer receives. With one
communicator for both directions, two ranks that first send to each other wait forever. So each direction has a
communicator and streams of its own, on which the k-th send meets the k-th receive: a transfer waits for its data and
for earlier transfers of the same direction, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from jellybean.training.processes.ranks import NO_TIMEOUT
from jellybean.training.processes.streams import Event, Streams
from jellybean.training.processes.tensor_messages import StageTensors, TensorSpec

_TENSOR_TAG = 2
# Messages in flight to a peer above which sending waits. The host runs ahead of a GPU, and the peer reserves memory for
# every message announced: more hides longer pauses of the host, fewer save the peer's memory. Not tuned on a GPU.
MAX_PENDING_MESSAGES = 8
Completion = Callable[[], None]  # blocks the host until what a transfer reads may be released


class Work(Protocol):
    """A transfer in flight. `wait` blocks the host (gloo) or the current stream (NCCL)."""

    def wait(self, *timeout: Any) -> Any: ...


class Communicator(Protocol):
    """Point-to-point transfers with other ranks, matched in order by peer and tag."""

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work: ...

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work: ...


class GroupCommunicator:
    """Transfers in a process group, by global rank, without the lookups of dist.isend on every call (0.1 ms).

    Tensors travel as bytes: NCCL and gloo lack some types, such as complex ones.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group: Any = group if group is not None else dist.group.WORLD
        self._ranks = {rank: place for place, rank in enumerate(dist.get_process_group_ranks(self._group))}

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        work: Work = self._group.send([_bytes(tensor)], self._ranks[peer], tag)
        return work

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        work: Work = self._group.recv([_bytes(tensor)], self._ranks[peer], tag)
        return work


def _bytes(contiguous: torch.Tensor) -> torch.Tensor:
    return contiguous.view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tensors on their way: in place when `event` is complete."""

    tensors: StageTensors
    event: Event | None = None
    streams: Streams | None = None

    def take(self) -> StageTensors:
        """The tensors, for use by the computation from now on."""
        if self.event is not None and self.streams is not None:
            self.streams.wait(self.event)
            for tensor in self.tensors:
                if tensor is not None:
                    self.streams.used_by_computation(tensor)
        return self.tensors


class Link(Protocol):
    """Transfers with one peer."""

    @property
    def max_pending(self) -> int | None:
        """Messages in flight above which sending waits; None: no limit."""

    def send(self, tensors: Sequence[torch.Tensor]) -> Completion:
        """Start to send tensors that the computation makes. The caller keeps them until the completion returns."""

    def receive(self, parts: Sequence[TensorSpec | None]) -> Arrival:
        """Receive tensors that the peer has announced."""


class HostLink:
    """Tensors in host memory, by gloo."""

    max_pending: int | None = None

    def __init__(self, peer: int, communicator: Communicator) -> None:
        self._peer, self._communicator = peer, communicator

    def send(self, tensors: Sequence[torch.Tensor]) -> Completion:
        works = [self._communicator.send(value, self._peer, _TENSOR_TAG) for value in tensors if value.numel()]
        return lambda: _wait_all(works)

    def receive(self, parts: Sequence[TensorSpec | None]) -> Arrival:
        return Arrival(tuple(None if part is None else self._receive(part) for part in parts))

    def _receive(self, part: TensorSpec) -> torch.Tensor:
        tensor = torch.empty(part.shape, dtype=part.sent)
        if tensor.numel():
            self._communicator.receive(tensor, self._peer, _TENSOR_TAG).wait()
        return tensor.to(part.own)


class DeviceLink:
    """Tensors in device memory, by NCCL. `outgoing`, `incoming`: a communicator for each direction."""

    max_pending: int | None = MAX_PENDING_MESSAGES

    def __init__(self, peer: int, outgoing: Communicator, incoming: Communicator, streams: Streams) -> None:
        self._peer, self._outgoing, self._incoming, self._streams = peer, outgoing, incoming, streams
        self._sends, self._receives = streams.new(), streams.new()

    def send(self, tensors: Sequence[torch.Tensor]) -> Completion:
        streams = self._streams
        streams.wait(streams.mark(), self._sends)
        with streams.current(self._sends):
            _wait_all([self._outgoing.send(value, self._peer, _TENSOR_TAG) for value in tensors if value.numel()])
        return streams.mark(self._sends).synchronize

    def receive(self, parts: Sequence[TensorSpec | None]) -> Arrival:
        streams = self._streams
        with streams.current(self._receives):
            tensors = tuple(None if part is None else self._receive(part) for part in parts)
        return Arrival(tensors, streams.mark(self._receives), streams)

    def _receive(self, part: TensorSpec) -> torch.Tensor:
        tensor = self._streams.empty(part.shape, part.sent)
        if tensor.numel():
            self._incoming.receive(tensor, self._peer, _TENSOR_TAG).wait()
        return _converted(tensor, part, self._streams)


class StagedLink:
    """Tensors in device memory, by gloo through pinned host memory: for ranks that share a GPU, which NCCL refuses."""

    max_pending: int | None = MAX_PENDING_MESSAGES

    def __init__(self, peer: int, communicator: Communicator, streams: Streams) -> None:
        self._peer, self._communicator, self._streams = peer, communicator, streams
        self._sends, self._receives = streams.new(), streams.new()

    def send(self, tensors: Sequence[torch.Tensor]) -> Completion:
        streams = self._streams
        streams.wait(streams.mark(), self._sends)
        staged = []
        with streams.current(self._sends):
            for value in tensors:
                staged.append(streams.host_empty(value.shape, value.dtype))
                streams.copy(staged[-1], value)
        copied = streams.mark(self._sends)

        def complete() -> None:
            copied.synchronize()
            _wait_all([self._communicator.send(value, self._peer, _TENSOR_TAG) for value in staged if value.numel()])

        return complete

    def receive(self, parts: Sequence[TensorSpec | None]) -> Arrival:
        tensors = tuple(None if part is None else self._receive(part) for part in parts)
        return Arrival(tensors, self._streams.mark(self._receives), self._streams)

    def _receive(self, part: TensorSpec) -> torch.Tensor:
        streams = self._streams
        staged = streams.host_empty(part.shape, part.sent)
        if staged.numel():
            self._communicator.receive(staged, self._peer, _TENSOR_TAG).wait()
        with streams.current(self._receives):
            tensor = streams.empty(part.shape, part.sent)
            streams.copy(tensor, staged)
            return _converted(tensor, part, streams)


def _converted(tensor: torch.Tensor, part: TensorSpec, streams: Streams) -> torch.Tensor:
    if part.own is part.sent:
        return tensor
    converted = streams.empty(part.shape, part.own)
    streams.copy(converted, tensor)
    return converted


def _wait_all(works: Iterable[Work]) -> None:
    for work in works:
        work.wait()


def device_links(
    pairs: Iterable[tuple[int, int]], rank: int, streams: Streams, backend: str = "nccl"
) -> dict[int, Link]:
    """A rank's links in device memory. A collective call: all ranks must make it, with the same `pairs`.

    `pairs`: (sender, receiver) of every direction in which messages go, or may go. `backend`: of the communicators.
    """
    groups: dict[tuple[int, int], Any] = {
        pair: dist.new_group(sorted(pair), timeout=NO_TIMEOUT, backend=backend) for pair in sorted(set(pairs))
    }
    communicators: Mapping[tuple[int, int], Communicator] = {
        pair: GroupCommunicator(group) for pair, group in groups.items() if rank in pair
    }
    return {
        peer: DeviceLink(peer, communicators[rank, peer], communicators[peer, rank], streams)
        for peer in sorted({sum(pair) - rank for pair in communicators})
    }
