"""Validates an all-reduce: what the training runtime relies on.

Checked: participants and chunks exist; no round replaces a chunk that its receiver also sends, adds to or replaces a
second time; every worker ends with every vector added exactly once; all workers add in the same order, so that their
sums are equal to the last bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jellybean_solver.pipeline.collectives.all_reduce import AllReduce, Transfer

_NOTHING = -1  # the value of a server before it receives anything


def all_reduce_violations(way: AllReduce) -> tuple[str, ...]:
    """All violations, as messages; empty if the all-reduce is valid."""
    violations = [text for number, transfers in enumerate(way.rounds) for text in _check_round(way, number, transfers)]
    return tuple(violations or _check_sums(way))


def _check_round(way: AllReduce, number: int, transfers: tuple[Transfer, ...]) -> Iterator[str]:
    received = Counter((one.receiver, one.chunk) for one in transfers)
    sent = {(one.sender, one.chunk) for one in transfers}
    for one in transfers:
        known = 0 <= one.sender < way.participants and 0 <= one.receiver < way.participants
        place = (one.receiver, one.chunk)
        if not known or one.sender == one.receiver or not 0 <= one.chunk < way.chunks:
            yield f"round {number}: {one} has no such participants or chunk"
        elif not one.reduce and (received[place] > 1 or place in sent):
            yield f"round {number}: chunk {one.chunk} of participant {one.receiver} is replaced while it is in use"
    if len(set(transfers)) < len(transfers):
        yield f"round {number} has a transfer twice"


def _check_sums(way: AllReduce) -> Iterator[str]:
    """Follow the chunks as expressions: numbers for sums, so that equal sums in equal order have equal numbers."""
    sums = _Sums(way.workers)
    held = [[worker if worker < way.workers else _NOTHING] * way.chunks for worker in range(way.participants)]
    for transfers in way.rounds:
        before = [list(chunks) for chunks in held]
        adds: dict[tuple[int, int], list[int]] = {}
        for one in transfers:
            if one.reduce:
                adds.setdefault((one.receiver, one.chunk), []).append(one.sender)
            else:
                held[one.receiver][one.chunk] = before[one.sender][one.chunk]
        for (receiver, chunk), senders in adds.items():
            total = _NOTHING
            for participant in sorted({receiver, *senders}):
                total = sums.add(total, before[participant][chunk])
            held[receiver][chunk] = total
    once = Counter(range(way.workers))
    for chunk in range(way.chunks):
        for worker in range(way.workers):
            if sums.addends(held[worker][chunk]) != once:
                yield f"worker {worker} does not end with every vector once in chunk {chunk}"
            elif held[worker][chunk] != held[0][chunk]:
                yield f"worker {worker} adds chunk {chunk} in another order than worker 0"


class _Sums:
    """Numbers of sums. Vectors have the numbers of their workers. a + b and b + a are one sum, as in floating point."""

    def __init__(self, workers: int) -> None:
        self._addends = [Counter([worker]) for worker in range(workers)]
        self._numbers: dict[tuple[int, int], int] = {}

    def add(self, one: int, other: int) -> int:
        """Number of the sum."""
        if _NOTHING in (one, other):
            return max(one, other)
        key = (min(one, other), max(one, other))
        if key not in self._numbers:
            self._numbers[key] = len(self._addends)
            self._addends.append(self._addends[one] + self._addends[other])
        return self._numbers[key]

    def addends(self, number: int) -> Counter[int]:
        """How often each worker's vector is in the sum."""
        return Counter() if number == _NOTHING else self._addends[number]
