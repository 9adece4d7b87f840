"""Search of conflicts: recursive halving (QuickXplain), then a smaller one (`minimum_conflict.py`).

All requirements of a kind are dropped together first, so that a hundred irrelevant pools cost one solve.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from jellybean_solver.explanation.counterfactuals import Resolved
from jellybean_solver.explanation.minimum_conflict import smallest_conflict
from jellybean_solver.explanation.resolver import Resolve, Resolver
from jellybean_solver.model.problem import Problem
from jellybean_solver.planning.requirements import Requirement, drop


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
        self.known: tuple[Requirement, ...] = ()  # a conflict, while a smaller one is sought

    def irreducible(self, suspects: Sequence[Requirement]) -> tuple[Requirement, ...]:
        """An irreducible conflict among `suspects`, with all other requirements dropped.

        Empty if structure alone is infeasible, or if that is unknown.
        """
        kept = list(suspects)
        kinds = [list(group) for _, group in groupby(suspects, key=lambda requirement: requirement.kind)]
        self.resolver.expect(len(kinds))
        if not self._conflicting([]):
            for group in reversed(kinds):  # kinds that users care least about are dropped first
                others = [requirement for requirement in kept if requirement not in group]
                needed = self._needed(others, group)
                kept = [requirement for requirement in kept if requirement not in group or requirement in needed]
        else:
            kept = []
        return tuple(kept)

    def _needed(self, kept: list[Requirement], group: list[Requirement]) -> list[Requirement]:
        """An irreducible subset of `group` that conflicts with `kept`; `group` and `kept` together must conflict."""
        if self._conflicting(kept):
            return []
        if len(group) == 1:
            return group
        middle = len(group) // 2
        left, right = group[:middle], group[middle:]
        self.resolver.expect(2)
        right = self._needed(kept + left, right)
        left = self._needed(kept + right, left)
        return left + right

    def smallest(self, known: tuple[Requirement, ...]) -> tuple[tuple[Requirement, ...], bool]:
        """A conflict with as few members as found, and whether it is proven smallest. `known`: some conflict."""
        if not self.proven:
            return known, False
        self.known = known
        most_solves = self.resolver.settings.conflict_solves
        return smallest_conflict(self.every, known, self._known_to_conflict, most_solves)

    def _conflicting(self, kept: Sequence[Requirement]) -> bool:
        conflicts, proven = self._outcome(kept)
        self.proven = self.proven and proven
        return conflicts

    def _known_to_conflict(self, kept: Sequence[Requirement]) -> bool | None:
        conflicts, proven = self._outcome(kept)
        return conflicts if proven else None

    def _outcome(self, kept: Sequence[Requirement]) -> tuple[bool, bool]:
        """Whether requirements conflict, and whether that is proven; solved only if no set solved before decides it."""
        members = frozenset(kept)
        if any(members <= feasible for feasible in self.feasible):
            return False, True
        if members and any(conflict <= members for conflict in self.conflicts):
            return True, True
        answer = self._answer(kept)
        if answer.proven:
            (self.feasible if answer.holds else self.conflicts).append(members)
        return not answer.holds, answer.proven

    def _answer(self, kept: Sequence[Requirement]) -> Resolved:
        dropped = [requirement for requirement in self.every if requirement not in kept]
        label = "what conflicts" if not kept else f"what conflicts: {len(kept)} requirements"
        if self.known:
            label = f"a smaller conflict than {', '.join(member.words for member in self.known)}"
        return self.ask(drop(self.problem, *dropped), label)
