"""A conflict with the fewest requirements.

Every correction set (requirements whose removal makes the problem feasible) intersects every conflict. So the size of a
minimum hitting set of the known correction sets is a lower bound on the size of a conflict; if the hitting set is a
conflict, it is a smallest one (Ignatiev, Previti, Liffiton, Marques-Silva: Smallest MUS Extraction with Minimal Hitting
Set Dualization, CP 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from jellybean_solver.planning.requirements import Requirement

Conflicting = Callable[[Sequence[Requirement]], bool | None]  # None: not known
Set = tuple[Requirement, ...]


def smallest_conflict(
    every: Sequence[Requirement], known: Set, conflicting: Conflicting, most_solves: int
) -> tuple[Set, bool]:
    """A smallest conflict among `every`, and whether it is proven smallest; `known` (a conflict) if none is smaller.

    `conflicting`: tells whether requirements conflict, with one solve; `most_solves`: limit on its calls.
    """
    search = _Search(every, conflicting, most_solves)
    try:
        return search.below(known), True
    except _Unknown:
        return known, False


class _Unknown(Exception):
    """A solve was inconclusive, or too many were needed."""


class _Search:
    def __init__(self, every: Sequence[Requirement], conflicting: Conflicting, most_solves: int) -> None:
        self.every, self._conflicting, self.left = every, conflicting, most_solves

    def below(self, known: Set) -> Set:
        corrections: list[frozenset[Requirement]] = []
        while (candidate := _hitting(self.every, corrections, len(known) - 1)) is not None:
            conflicts = self.ask(candidate)
            if conflicts is None:
                raise _Unknown
            if conflicts:
                return candidate
            corrections.append(frozenset(self.every) - self.grown(candidate))
        return known

    def ask(self, kept: Sequence[Requirement]) -> bool | None:
        if not self.left:
            raise _Unknown
        self.left -= 1
        return self._conflicting(kept)

    def grown(self, seed: Set) -> frozenset[Requirement]:
        """A maximal superset of `seed` that is known to be feasible; whole kinds and halves are added at once."""
        kept = list(seed)
        open_ = [r for r in self.every if r not in seed]
        groups = [list(group) for _, group in groupby(open_, key=lambda requirement: requirement.kind)]
        while groups:
            group = groups.pop(0)
            if self.ask([*kept, *group]) is False:
                kept += group
            elif len(group) > 1:
                groups[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
        return frozenset(kept)


def _hitting(every: Sequence[Requirement], sets: Sequence[frozenset[Requirement]], most: int) -> Set | None:
    """A minimum hitting set of `sets`; None if it needs more than `most` members. Ties: first in order of `every`."""
    for size in range(most + 1):
        if (found := _of_size(every, sets, size)) is not None:
            return tuple(r for r in every if r in found)
    return None


def _of_size(
    every: Sequence[Requirement], sets: Sequence[frozenset[Requirement]], size: int
) -> frozenset[Requirement] | None:
    if not sets:
        return frozenset()
    if not size:
        return None
    hardest = min(sets, key=len)
    for requirement in (r for r in every if r in hardest):
        found = _of_size(every, [one for one in sets if requirement not in one], size - 1)
        if found is not None:
            return found | {requirement}
    return None
