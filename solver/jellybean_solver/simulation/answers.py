"""When a request is answered: the answers of all its sinks are there, one per child where a sink is fanned out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Path = tuple[tuple[int, int], ...]  # (index, count) per open fan-out, outermost first; count 0: no child at all


class Answers:
    """Collects the answers of one request.

    Each answer stands for a share of its sink: all of it without fan-outs, else 1 / count per open fan-out, and 'no
    child' for all that its parent stands for. A sink is answered when its shares sum to 1, whatever their order.
    """

    def __init__(self, sinks: Sequence[str]) -> None:
        self._missing = {sink: Fraction(1) for sink in sinks}
        self._seen: set[tuple[str, Path]] = set()

    @property
    def complete(self) -> bool:
        """True when no sink misses an answer."""
        return not self._missing

    def add(self, sink: str, path: Path) -> bool:
        """Count an answer; False when it is a repetition or of no sink of this request."""
        if sink not in self._missing or (sink, path) in self._seen:
            return False
        self._seen.add((sink, path))
        self._missing[sink] -= share(path)
        if self._missing[sink] <= 0:
            del self._missing[sink]
        return True


def share(path: Path) -> Fraction:
    """The part of a request that an answer at `path` stands for."""
    part = Fraction(1)
    for _, count in path:
        if count == 0:
            break
        part /= count
    return part
