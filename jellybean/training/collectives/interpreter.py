"""Interprets an all-reduce on a tensor: runs any way's rounds over point-to-point messages of torch.distributed.

The tensor is divided into segments, and each of them runs the whole all-reduce by itself. While one segment is added
up, the messages of the others are on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from jellybean_solver.pipeline import AllReduce, ParticipantRound, Transfer, chunk_bounds, participant_rounds


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """`message_bytes`: largest message. `in_flight`: segments of an all-reduce that are on their way at once.

    Smaller messages cost more calls and wake-ups; larger or fewer ones leave the processor idle while they travel. Of
    1/4 to 16 MiB and 4 to 16 segments these were among the fastest for rings of 100 MB on 2 and 4 processes of one
    machine. The receive buffers take `in_flight` messages per sender of a round.
    """

    message_bytes: int = 2**21
    in_flight: int = 8


@dataclass(frozen=True)
class Members:
    """The participants of an all-reduce: global ranks of `group`. `tag` separates it from others on the same group."""

    ranks: Sequence[int]
    group: dist.ProcessGroup
    tag: int = 0

    @classmethod
    def of(cls, group: dist.ProcessGroup, tag: int = 0) -> Members:
        """All ranks of a group."""
        return cls(dist.get_process_group_ranks(group), group, tag)


@dataclass
class _Segment:
    """A part of the tensor in some round. `buffers`: raw memory for what it adds in a round, one per message."""

    chunks: list[torch.Tensor]
    buffers: list[torch.Tensor]
    round: int = 0
    sends: list[Any] = field(default_factory=list)
    adds: dict[int, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)  # chunk -> (sender, received values)
    receives: list[Any] = field(default_factory=list)


class AllReduceInterpreter:
    """Runs this rank's part of an all-reduce. Keeps its receive buffers, so that later sums allocate nothing.

    Calls must not overlap, and all members must make them in the same order. `sent_bytes`: of all calls so far.
    """

    def __init__(self, way: AllReduce, members: Members, settings: MessageSettings = MessageSettings()) -> None:
        self._chunks, self._members, self._settings = way.chunks, members, settings
        self._participant = members.ranks.index(dist.get_rank())
        self._rounds = participant_rounds(way, self._participant)
        self._most_adds = max((sum(one.reduce for one in each.receives) for each in self._rounds), default=0)
        self._buffers: list[list[torch.Tensor]] = []
        self.sent_bytes = 0

    def run(self, values: torch.Tensor) -> None:
        """Replace a contiguous one-dimensional tensor in host memory by the sum over all members.

        All members work on segments and rounds in one order, so that every message meets its receive, and no member
        waits for one that waits for it.
        """
        if not self._rounds or not values.numel():
            return
        longest = max(1, self._settings.message_bytes // values.element_size())
        parts = deque(values.split(longest * self._chunks))
        at_once = min(len(parts), self._settings.in_flight)
        self._provide_buffers(at_once, min(longest, -(-values.numel() // self._chunks)) * values.element_size())
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
                    free.append(segment.buffers)
                    continue
            self._post(segment)
            current.append(segment)

    def _provide_buffers(self, segments: int, size_bytes: int) -> None:
        """Have receive buffers of this size for so many segments."""
        size_bytes = max([size_bytes, *(one.numel() for each in self._buffers for one in each)])
        if len(self._buffers) < segments or any(one.numel() < size_bytes for each in self._buffers for one in each):
            every, messages = range(max(segments, len(self._buffers))), range(self._most_adds)
            self._buffers = [[torch.empty(size_bytes, dtype=torch.uint8) for _ in messages] for _ in every]

    def _post(self, segment: _Segment) -> None:
        """Start the messages of a segment's round. Receives first: a send needs no wait when its receive is posted."""
        current: ParticipantRound = self._rounds[segment.round]
        buffers = iter(segment.buffers)
        segment.adds, segment.receives, segment.sends = {}, [], []
        for one in current.receives:
            chunk = segment.chunks[one.chunk]
            if not chunk.numel():
                continue
            if one.reduce:
                into = next(buffers).view(chunk.dtype)[: chunk.numel()]
                segment.adds.setdefault(one.chunk, []).append((one.sender, into))
            else:
                into = chunk
            segment.receives.append(self._receive(into, one))
        for one in current.sends:
            chunk = segment.chunks[one.chunk]
            if chunk.numel():
                segment.sends.append(self._send(chunk, one))
                self.sent_bytes += chunk.numel() * chunk.element_size()

    def _send(self, values: torch.Tensor, one: Transfer) -> Any:
        members = self._members
        return dist.isend(values, members.ranks[one.receiver], members.group, members.tag)

    def _receive(self, into: torch.Tensor, one: Transfer) -> Any:
        members = self._members
        return dist.irecv(into, members.ranks[one.sender], members.group, members.tag)

    def _finish(self, segment: _Segment) -> None:
        """Wait for the messages of a segment's round, and add what came once nothing sends the chunk any more."""
        for work in (*segment.receives, *segment.sends):
            work.wait()
        for number, received in segment.adds.items():
            self._add(segment.chunks[number], received)

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
