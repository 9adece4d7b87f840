"""Search of conflicts: an irreducible one, then one with the fewest requirements.

Every correction set (requirements whose removal makes the problem feasible) intersects every conflict. So the size of a
minimum hitting set of the known correction sets is a lower bound on the size of a conflict; if the hitting set is a
conflict, it is a smallest one (Ignatiev, Previti, Liffiton, Marques-Silva: Smallest MUS Extraction with Minimal Hitting
Set Dualization, CP 2015). Conflicts and correction sets are found by one recursive halving (QuickXplain), which drops
all requirements of a kind together first, so that a hundred irrelevant pools cost one solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from jellybean_solver.explanation.counterfactuals import Resolved
from jellybean_solver.explanation.resolver import Resolve, Resolver
from jellybean_solver.model.problem import Problem
from jellybean_solver.planning.requirements import Requirement, drop

Set = tuple[Requirement, ...]
Test = Callable[[Sequence[Requirement]], bool]  # true of a set, and of all that contain it


class _Unknown(Exception):
    """A solve was inconclusive, or too many were needed."""


class ConflictSearch:
    """Searches conflicts by solving problems with only some requirements.

    `feasible`, `conflicts`: sets of requirements of which that is proven. Dropping a requirement never makes a problem
    infeasible, so a feasible set decides its subsets, and a conflict its supersets, without a solve. `proven`: every
    answer used so far was conclusive.
    """

    def __init__(
        self, problem: Problem, every: Sequence[Requirement], resolver: Resolver, ask: Resolve, answer: Resolved
    ) -> None:
        self.problem, self.every, self.resolver, self.ask = problem, every, resolver, ask
        self.feasible: list[frozenset[Requirement]] = []
        self.conflicts = [frozenset(every)] if answer.status == "infeasible" else []
        self.proven = True
        self.known: Set = ()  # a conflict, while a smaller one is sought
        self.solves_left = math.inf

    def irreducible(self, suspects: Sequence[Requirement]) -> Set:
        """An irreducible conflict among `suspects`, with all other requirements dropped.

        Empty if structure alone is infeasible, or if that is unknown.
        """
        return () if self._conflicting([]) else self._minimal(suspects, self._conflicting)

    def smallest(self, known: Set) -> tuple[Set, bool]:
        """A conflict with as few members as found, and whether it is proven smallest. `known`: some conflict."""
        if not self.proven:
            return known, False
        self.known, self.solves_left = known, self.resolver.settings.conflict_solves
        try:
            return self._smaller() or known, True
        except _Unknown:
            return known, False
        finally:
            self.known, self.solves_left = (), math.inf

    def _smaller(self) -> Set | None:
        """A smallest conflict; None if none has fewer members than the known one."""
        corrections: list[Set] = []
        for size in range(len(self.known)):
            while (found := _hitting(corrections, size)) is not None:
                candidate = tuple(one for one in self.every if one in found)
                if self._conflicting(candidate):
                    return candidate
                others = [one for one in reversed(self.every) if one not in found]
                corrections.append(self._minimal(others, self._corrects)[::-1])
        return None

    def _minimal(self, suspects: Sequence[Requirement], holds: Test) -> Set:
        """A minimal one of the sets of `suspects` of which `holds` is true, as it is of all of them together."""
        kept = list(suspects)
        kinds = [list(group) for _, group in groupby(suspects, key=lambda one: one.kind)]
        self.resolver.expect(len(kinds))
        for group in reversed(kinds):  # of a conflict, kinds that users care least about are dropped first
            others = [one for one in kept if one not in group]
            needed = self._needed(others, group, holds)
            kept = [one for one in kept if one not in group or one in needed]
        return tuple(kept)

    def _needed(self, kept: list[Requirement], group: list[Requirement], holds: Test) -> list[Requirement]:
        """A minimal subset of `group` with which `holds` is true of `kept`."""
        if holds(kept):
            return []
        if len(group) == 1:
            return group
        left, right = group[: len(group) // 2], group[len(group) // 2 :]
        self.resolver.expect(2)
        right = self._needed(kept + left, right, holds)
        left = self._needed(kept + right, left, holds)
        return left + right

    def _corrects(self, dropped: Sequence[Requirement]) -> bool:
        return not self._conflicting([one for one in self.every if one not in dropped])

    def _conflicting(self, kept: Sequence[Requirement]) -> bool:
        """Whether requirements conflict; solved only if no set solved before decides it."""
        members = frozenset(kept)
        if any(members <= feasible for feasible in self.feasible):
            return False
        if members and any(conflict <= members for conflict in self.conflicts):
            return True
        if not self.solves_left:
            raise _Unknown
        self.solves_left -= 1
        answer = self._answer(kept)
        if answer.proven:
            (self.feasible if answer.holds else self.conflicts).append(members)
        elif self.known:
            raise _Unknown
        self.proven = self.proven and answer.proven
        return not answer.holds

    def _answer(self, kept: Sequence[Requirement]) -> Resolved:
        dropped = [requirement for requirement in self.every if requirement not in kept]
        label = "what conflicts" if not kept else f"what conflicts: {len(kept)} requirements"
        if self.known:
            label = f"a smaller conflict than {', '.join(member.words for member in self.known)}"
        return self.ask(drop(self.problem, *dropped), label)


def _hitting(sets: Sequence[Set], size: int) -> frozenset[Requirement] | None:
    """At most `size` requirements that intersect all `sets`, those that come first in them; None if more are needed."""
    if not sets:
        return frozenset()
    for requirement in min(sets, key=len) if size else ():
        found = _hitting([one for one in sets if requirement not in one], size - 1)
        if found is not None:
            return found | {requirement}
    return None
