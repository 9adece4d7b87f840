"""Whose turn it is among queues that share a worker: start-time fair queueing, in virtual time.

A run of a queue has a start tag, the later of the virtual time and the queue's finish tag, and the queue's next finish
tag lies behind it by the run's time divided by the queue's share. The queue with the least start tag is next, and
virtual time is the start tag of the run under way. So a queue that has just become busy is next after two runs at most,
one that was empty has saved nothing up, and one that asks for a long run each time it is empty owes for it (Goyal, Vin
and Cheng, SIGCOMM 1996).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MIN_SHARE = 0.01  # least share, as a fraction of their sum: a queue with planned load 0 must not starve


class FairTurns:
    """Turns of queues by their planned `shares` of the time; equal turns if no share is above 0."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        least = sum(shares.values()) * _MIN_SHARE
        self._shares = {name: max(share, least) or 1.0 for name, share in shares.items()}
        self._now = 0.0  # virtual
        self._finished: dict[str, float] = {}  # finish tags, of queues that have run

    def reset(self) -> None:
        """Begin anew: nobody waits, so nobody is owed anything."""
        self._now = 0.0
        self._finished.clear()

    def choose(self, heads: Sequence[tuple[int, str]]) -> tuple[int, str]:
        """Of `heads`, the (number of the first item, name) of each queue, the one whose turn it is."""
        starts = {name: max(self._now, self._finished.get(name, 0.0)) for _, name in heads}
        first = min(heads, key=lambda head: (starts[head[1]], head[0]))
        self._now = starts[first[1]]
        return first

    def charge(self, name: str, run_time: float) -> None:
        """Count a finished run."""
        start = max(self._now, self._finished.get(name, 0.0))
        self._finished[name] = start + run_time / self._shares.get(name, 1.0)
