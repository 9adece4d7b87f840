"""Completion of a request: all sinks have answered, with one answer per child if a sink is fanned out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Path = tuple[tuple[int, int], ...]  # per open fan-out, outermost first: (child's index, child count); count 0: no child


class Answers:
    """Collects the answers of one request.

    Each answer has a share of its sink: 1 divided by the numbers of children of all open fan-outs. A "no child" answer
    has the whole share of its parent. A sink is complete when the shares of its answers sum to 1, in any order.
    """

    def __init__(self, sinks: Sequence[str]) -> None:
        self._missing = {sink: Fraction(1) for sink in sinks}
        self._seen: set[tuple[str, Path]] = set()

    @property
    def complete(self) -> bool:
        """True if every sink has answered completely."""
        return not self._missing

    def add(self, sink: str, path: Path) -> bool:
        """Count an answer; False if it is a duplicate or not of a sink of this request."""
        if sink not in self._missing or (sink, path) in self._seen:
            return False
        self._seen.add((sink, path))
        self._missing[sink] -= share(path)
        if self._missing[sink] <= 0:
            del self._missing[sink]
        return True


def share(path: Path) -> Fraction:
    """The share of its sink that an answer at `path` has."""
    part = Fraction(1)
    for _, count in path:
        if count == 0:
            break
        part /= count
    return part
