"""The messages of a peer that wait to be sent, in the order of their due times."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jellybean_agent.admission.shares import PeerShare
from jellybean_agent.transport.message_wire import Data
from jellybean_protos.agent.v1 import agent_pb2


class OutgoingMessage(NamedTuple):
    """A message to be sent, not before `due_s` and not after `until_s` (CLOCK_MONOTONIC seconds)."""

    due_s: float
    order: int
    until_s: float
    message: agent_pb2.Message
    data: Data = b""  # its tensor's bytes, if they are not in the message

    @property
    def needs_credit(self) -> bool:
        """False for a failure, which is due at minus infinity and leaves first."""
        return self.due_s > -math.inf

    def set_time_left(self, now_s: float) -> bool:
        """Put the time until the deadline into the message; False when the deadline has passed."""
        if self.until_s < math.inf:
            left_s = self.until_s - now_s
            if left_s <= 0:
                return False
            self.message.left_s = left_s
        return True


class OutgoingQueue:
    """A heap of messages; messages with equal due times leave in the order in which they were made.

    `share`: of the bytes that may wait, which the queue alone uses. Invariant: the sizes of the tensors are held of it.
    """

    def __init__(self, share: PeerShare) -> None:
        self._share = share
        self._heap: list[OutgoingMessage] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def has_room(self, size: int) -> bool:
        """True if a message with `size` bytes of a tensor may wait; always if it has none, or nothing else waits."""
        return not (size and self._share.held) or self._share.may_take(size)

    def make(self, message: agent_pb2.Message, due_s: float, until_s: float, data: Data) -> OutgoingMessage:
        """Create a message with the next sequence number; it is not queued yet."""
        if message.HasField("failure"):
            due_s = -math.inf
        return OutgoingMessage(due_s, next(self._order), until_s, message, data)

    @property
    def first_due_s(self) -> float:
        """Due time of the first message; infinity when the queue is empty."""
        return self._heap[0].due_s if self._heap else math.inf

    def push(self, outgoing: OutgoingMessage) -> None:
        self._share.add(len(outgoing.data))
        heapq.heappush(self._heap, outgoing)

    def push_all(self, messages: Iterable[OutgoingMessage]) -> None:
        for outgoing in messages:
            self.push(outgoing)

    def pop(self) -> OutgoingMessage:
        """Remove and return the first message."""
        outgoing = heapq.heappop(self._heap)
        self._share.give(len(outgoing.data))
        return outgoing

    def take_all(self) -> list[OutgoingMessage]:
        """Remove and return all messages, in their order."""
        messages, self._heap = sorted(self._heap, key=lambda outgoing: outgoing[:2]), []
        self._share.give(self._share.held)
        return messages

    def remove(self, unwanted: Callable[[OutgoingMessage], bool]) -> int:
        """Remove the messages for which `unwanted` is true; returns how many."""
        kept = [outgoing for outgoing in self._heap if not unwanted(outgoing)]
        removed = len(self._heap) - len(kept)
        if removed:
            self._heap = kept
            self._share.give(self._share.held - sum(len(outgoing.data) for outgoing in kept))
            heapq.heapify(kept)
        return removed
