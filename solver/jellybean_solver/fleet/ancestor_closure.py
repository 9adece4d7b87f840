"""Prunes placements whose ancestor closure exceeds the memory (or the workers) of the source tier.

Data cannot enter a tier that no link leads to. So an operator can run there only if all its ancestors run there as
well, and their models must fit together; with few workers they often do not. Without this pruning, relaxations serve a
small fraction of the requests in such a tier, with small fractions of all models in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.integer_counts import FEW, Box
from jellybean_solver.fleet.joint_lp import RelaxedLp
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.workflow import Operator

SPARE = 1e-9


Tiered = tuple[int, int]  # index of an operator, index of a tier


def where_possible(joint_lp: RelaxedLp, target: float | None, fixed: Mapping[str, str], pace: Pace | None) -> RelaxedLp:
    """The joint LP without the (operator, tier) pairs that no plan can use; `joint_lp` itself if there are none."""
    if not joint_lp.possible:
        return joint_lp
    nowhere, network = AncestorClosure(joint_lp).nowhere, joint_lp.network
    if not nowhere:
        return joint_lp
    number, tiers = {name: index for index, name in enumerate(network.names)}, list(enumerate(joint_lp.tiers))
    operators = tuple(
        replace(one, tiers=tuple(t for i, t in tiers if (number[one.name], i) not in nowhere and _may(one, t)))
        for one in network.problem.operators
    )
    return RelaxedLp(Network(replace(network.problem, operators=operators), network.crossings), target, fixed, pace)


def _may(operator: Operator, tier: str) -> bool:
    return operator.tiers is None or tier in operator.tiers


class AncestorClosure:
    """Tightens boxes: removes integer counts that no plan can have, because an ancestor closure does not fit.

    Applies to tiers that no link leads to and whose worker classes all have few workers.
    """

    def __init__(self, joint_lp: RelaxedLp) -> None:
        self._integer_counts, self._kinds = joint_lp.integer_counts, joint_lp.kinds
        network = joint_lp.network
        place = {name: index for index, name in enumerate(network.names)}
        self._before = np.eye(len(place), dtype=bool)  # [o, a]: a is o or one of its ancestors
        for upstream, downstream in network.inner:
            self._before[place[downstream]] |= self._before[place[upstream]]
        ends = {link.downstream_tier for link in network.problem.links}
        self._groups = [
            group
            for index, tier in enumerate(joint_lp.tiers)
            if tier not in ends and (group := self._uniform(np.flatnonzero(self._kinds.tier == index))) is not None
        ]

    @property
    def nowhere(self) -> set[Tiered]:
        """The (operator, tier) pairs that no plan can use."""
        most = self._integer_counts.most
        box = self.tightened(Box(np.ones(len(self._kinds.choices), bool), np.zeros(len(most)), most))
        found = set()
        for kinds, _, _ in self._groups:
            at = self._integer_counts.at[:, kinds]
            gone = (at >= 0).any(axis=1) & ~((at >= 0) & (box.most[at] > 0.0)).any(axis=1)
            found |= {(int(operator), int(self._kinds.tier[kinds[0]])) for operator in np.flatnonzero(gone)}
        return found

    def tightened(self, box: Box) -> Box:
        """The box with upper limit 0 for the counts that no plan in it can have."""
        for kinds, sizes, memory in self._groups:
            box = self._without(box, kinds, sizes, memory)
        return box

    def _uniform(self, kinds: Indices) -> tuple[Indices, Floats, Floats] | None:
        """A tier's classes, the capacity of a worker of each, and what each choice takes of it.

        The unit is operators if all classes are exclusive, bytes if all are shared and have limited memory. None for
        any other tier, or if a class has many workers.
        """
        found = [self._kinds.kinds[kind] for kind in kinds.tolist()]
        if not found or any(kind.count > FEW for kind in found):
            return None
        if all(kind.exclusive for kind in found):
            return kinds, np.ones(len(found)), np.ones(len(self._kinds.choices))
        limits = [kind.memory_bytes for kind in found]
        if any(kind.exclusive for kind in found) or None in limits:
            return None
        runs = self._kinds.runs[:, kinds]
        memory = np.where(runs, self._kinds.memory_bytes[:, kinds], np.inf).min(axis=1)
        return kinds, np.array(limits, float), memory

    def _without(self, box: Box, kinds: Indices, sizes: Floats, memory: Floats) -> Box:
        integer_counts = self._integer_counts
        room = sum(
            float(size * box.most[: integer_counts.pools][integer_counts.kind_of == kind].sum())
            for kind, size in zip(kinds.tolist(), sizes.tolist(), strict=True)
        )
        least = np.full(len(self._before), np.inf)
        np.minimum.at(least, self._kinds.owner, np.where(box.allowed, memory, np.inf))
        at = integer_counts.at[:, kinds]
        forced = np.flatnonzero(((at >= 0) & (box.least[at] > 0.0)).any(axis=1))
        there = np.flatnonzero(self._before[forced].any(axis=0))
        together = self._before.copy()
        together[:, there] = True
        over = np.where(together, least, 0.0).sum(axis=1) > room * (1.0 + SPARE)
        gone = at[over]
        most = box.most.copy()
        most[gone[gone >= 0]] = 0.0
        return replace(box, most=np.maximum(most, box.least))
