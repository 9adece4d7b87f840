"""A worker's state of each request in flight, and a bounded record of past requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from jellybean_agent.brain.messages import FanOutPath, Payload

JoinKey = tuple[str, tuple[int, ...]]  # operator, child index per fan-out open at it


@dataclass(slots=True)
class PendingInputs:
    """Inputs of one request at one operator that have arrived so far, by input edge and child index."""

    path: FanOutPath
    arrived: dict[str, dict[int, Payload]] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)  # input edge -> number of messages expected
    claims: dict[str, int] = field(default_factory=dict)  # sender -> bytes that they keep, above 0


@dataclass(slots=True, eq=False)
class RequestState:
    """One request in flight on this worker; removed once no input is pending and no item is queued or running.

    `sender`: of its first message.
    """

    until: float
    sender: str = ""
    pending: dict[JoinKey, PendingInputs] = field(default_factory=dict)
    queued: set[tuple[str, int]] = field(default_factory=set)  # (operator, item number) of its queued items


class RecentSet:
    """A set of the last `limit` items added, so that memory is bounded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Hashable) -> None:
        self._items[item] = None
        if len(self._items) > self._limit:
            self._items.popitem(last=False)

    def __contains__(self, item: Hashable) -> bool:
        return item in self._items
