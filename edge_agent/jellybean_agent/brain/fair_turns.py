"""Whose turn it is among queues that share a worker: weighted fair queueing in virtual time.

A queue's virtual time is the seconds of the worker that it has used, divided by its share. The queue with the least is
next. One that has just become busy starts at the least virtual time of the others: a flooded queue delays it by two
runs at most, and it gets nothing for the time in which it was empty (start-time fair queueing: Goyal, Vin and Cheng,
SIGCOMM 1996).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MIN_SHARE = 0.01  # least share, as a fraction of their sum: a queue with planned load 0 must not starve


class FairTurns:
    """Turns of queues by their planned `shares` of the time; equal turns if no share is above 0."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        least = sum(shares.values()) * _MIN_SHARE
        self._shares = {name: max(share, least) or 1.0 for name, share in shares.items()}
        self._virtual_times: dict[str, float] = {}  # of the queues that compete

    def reset(self) -> None:
        """Nobody competes any more: what was used is forgotten."""
        self._virtual_times.clear()

    def choose(self, heads: Sequence[tuple[int, str]]) -> tuple[int, str]:
        """Of `heads`, the (number of the first item, name) of each queue, the one with the least virtual time."""
        known = self._virtual_times
        current = min((known[name] for _, name in heads if name in known), default=0.0)
        self._virtual_times = {name: known.get(name, current) for _, name in heads}
        return min(heads, key=lambda head: (self._virtual_times[head[1]], head[0]))

    def charge(self, name: str, run_time: float) -> None:
        """Count a finished run of a queue that competes."""
        if name in self._virtual_times:
            self._virtual_times[name] += run_time / self._shares.get(name, 1.0)
