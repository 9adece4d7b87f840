"""Interprets an all-reduce on a tensor: runs any way's rounds over point-to-point messages of torch.distributed.

The tensor is divided into segments, and each of them runs the whole all-reduce by itself. While one segment is added
up, the messages of the others are on their way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from jellybean_solver.pipeline import AllReduce, chunk_bounds, participant_rounds

_ALIGNMENT = 16  # bytes of the largest numbers (complex128)


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """`message_bytes`: largest message. `in_flight`: segments of an all-reduce that are on their way at once.

    Smaller messages cost more calls and wake-ups, larger ones leave less to do while others travel; with few in flight
    a rank waits for each of them when the machine is busy. Of 1/4 to 16 MiB and 4 to 32 segments these are near the
    best for rings of 100 MB on 2 and 4 processes, on idle cores and on busy ones (benchmark `all_reduce`). Where the
    processor is the limit (4 processes alone on 2 cores), calls from Python leave 0.7 of gloo's throughput. The receive
    buffers take `in_flight` messages per sender of a round.
    """

    message_bytes: int = 2 * 2**20
    in_flight: int = 16

    def longest(self, element_bytes: int) -> int:
        """Elements of the largest message."""
        return max(1, self.message_bytes // element_bytes)

    def segments(self, elements: int, element_bytes: int, chunks: int) -> tuple[int, int]:
        """(segments on their way at once, bytes of their largest message) of a sum of so many elements."""
        longest = self.longest(element_bytes)
        at_once = min(-(-elements // (longest * chunks)), self.in_flight)
        size_bytes = min(longest, -(-elements // chunks)) * element_bytes
        return at_once, -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


@dataclass
class _Segment:
    """A part of the tensor in some round. `buffers`: raw memory for what it adds in a round, one per message."""

    chunks: list[torch.Tensor]
    buffers: list[torch.Tensor]
    round: int = 0
    sends: dict[int, list[Any]] = field(default_factory=dict)  # chunk -> messages that read it
    adds: dict[int, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)  # chunk -> (sender, received values)
    receives: list[Any] = field(default_factory=list)

    def release(self, chunk: int) -> None:
        """Wait until no message reads the chunk any more, so that it may change."""
        for work in self.sends.pop(chunk, ()):
            work.wait()


class AllReduceInterpreter:
    """Runs this rank's part of an all-reduce, whose participants are the ranks of `group` in their order.

    Keeps its receive buffers, so that later sums allocate nothing. Calls must not overlap, and all ranks must make them
    in the same order. `tag`: separates it from others on the group. `sent_bytes`: of all calls so far.
    """

    def __init__(
        self, way: AllReduce, group: dist.ProcessGroup, tag: int = 0, settings: MessageSettings = MessageSettings()
    ) -> None:
        self._chunks, self._group, self._tag, self._settings = way.chunks, group, tag, settings
        self._participant = group.rank()
        self._rounds = participant_rounds(way, self._participant)
        self._most_adds = max((sum(one.reduce for one in each.receives) for each in self._rounds), default=0)
        self._buffers: list[list[torch.Tensor]] = []
        self.sent_bytes = 0

    def run(self, values: torch.Tensor) -> None:
        """Replace a contiguous one-dimensional tensor in host memory by the sum over the group.

        All ranks work on segments and rounds in one order, so that every message meets its receive, and no rank waits
        for one that waits for it.
        """
        if not self._rounds or not values.numel():
            return
        parts = deque(values.split(self._settings.longest(values.element_size()) * self._chunks))
        at_once, size_bytes = self._settings.segments(values.numel(), values.element_size(), self._chunks)
        self._provide_buffers(at_once, size_bytes)
        free = deque(self._buffers[:at_once])
        current: deque[_Segment] = deque()
        while parts or current:
            if parts and free:
                part = parts.popleft()
                bounds = chunk_bounds(part.numel(), self._chunks)
                segment = _Segment([part[begin:end] for begin, end in bounds], free.popleft())
            else:
                segment = current.popleft()
                self._finish(segment)
                segment.round += 1
                if segment.round == len(self._rounds):
                    for chunk in list(segment.sends):
                        segment.release(chunk)
                    free.append(segment.buffers)
                    continue
            self._post(segment)
            current.append(segment)

    def _provide_buffers(self, segments: int, size_bytes: int) -> None:
        """Have receive buffers of at least this size for so many segments, which numbers of any type fill."""
        held = [one.numel() for each in self._buffers for one in each]
        size_bytes = max([size_bytes, *held])
        if len(self._buffers) < segments or min(held, default=size_bytes) < size_bytes:
            every, messages = range(max(segments, len(self._buffers))), range(self._most_adds)
            self._buffers = [[torch.empty(size_bytes, dtype=torch.uint8) for _ in messages] for _ in every]

    def _post(self, segment: _Segment) -> None:
        """Start the messages of a segment's round. Receives first: a send needs no wait when its receive is posted."""
        current, group, tag = self._rounds[segment.round], self._group, self._tag
        buffers = iter(segment.buffers)
        segment.adds, segment.receives = {}, []
        for one in current.receives:
            into = chunk = segment.chunks[one.chunk]
            if not chunk.numel():
                continue
            if one.reduce:
                into = next(buffers).view(chunk.dtype)[: chunk.numel()]
                segment.adds.setdefault(one.chunk, []).append((one.sender, into))
            else:
                segment.release(one.chunk)
            segment.receives.append(group.recv([into], one.sender, tag))
        for one in current.sends:
            chunk = segment.chunks[one.chunk]
            if chunk.numel():
                segment.sends.setdefault(one.chunk, []).append(group.send([chunk], one.receiver, tag))
                self.sent_bytes += chunk.nbytes

    def _finish(self, segment: _Segment) -> None:
        """Wait for what a segment receives in its round, and add it."""
        for work in segment.receives:
            work.wait()
        for chunk, received in segment.adds.items():
            segment.release(chunk)
            self._add(segment.chunks[chunk], received)

    def _add(self, values: torch.Tensor, received: list[tuple[int, torch.Tensor]]) -> None:
        """Add in the order of participants, so that all get the same bits. Two addends have only one order."""
        if len(received) == 1:
            values.add_(received[0][1])
            return
        first, *others = [one for _, one in sorted([*received, (self._participant, values)], key=lambda pair: pair[0])]
        for other in others:
            first.add_(other)
        if first is not values:
            values.copy_(first)
