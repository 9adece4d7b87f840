"""Completion of a request: all sinks have answered, with one answer per child if a sink is fanned out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Path = tuple[tuple[int, int], ...]  # per open fan-out, outermost first: (child's index, child count); count 0: no child


class Answers:
    """Collects the answers of one request.

    Below one fan-out a sink is complete with as many answers as there are children, or one that says that there is
    none. Below several, each answer has a share of its sink: 1 divided by the numbers of children of all open fan-outs,
    and a "no child" answer the whole share of its parent. The sink is complete when the shares sum to 1, in any order.
    """

    def __init__(self, sinks: Sequence[str]) -> None:
        self._missing: dict[str, Fraction | int | None] = dict.fromkeys(sinks)  # None: no answer yet
        self._seen: set[tuple[str, Path]] = set()

    @property
    def complete(self) -> bool:
        """True if every sink has answered completely."""
        return not self._missing

    def add(self, sink: str, path: Path) -> bool:
        """Count an answer; False if it is a duplicate or not of a sink of this request."""
        key = sink, path
        if sink not in self._missing or key in self._seen:
            return False
        self._seen.add(key)
        missing = self._missing[sink]
        if len(path) > 1:
            missing = (Fraction(1) if missing is None else missing) - share(path)
        else:
            missing = ((path[0][1] or 1 if path else 1) if missing is None else missing) - 1
        self._missing[sink] = missing
        if missing <= 0:
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
