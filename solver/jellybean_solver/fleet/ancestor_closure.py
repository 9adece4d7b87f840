"""What cannot run where data is born, by what must run there with it.

Nothing flows down: an operator in a tier that no link leads to has all that it reads from there as well. So its model
is there only together with those of all operators before it, and where workers are few, they often do not fit: without
this, relaxations let a small part of the requests run there altogether, with small parts of all models in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.integer_counts import FEW, Box
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.problem import Operator

SPARE = 1e-9


Tiered = tuple[int, int]  # operator, tier


def where_possible(joint_lp: JointLp, target: float | None, fixed: Mapping[str, str], pace: Pace | None) -> JointLp:
    """The joint LP of the same problem without places where no plan has an operator."""
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
    return JointLp(Network(replace(network.problem, operators=operators), network.crossings), target, fixed, pace)


def _may(operator: Operator, tier: str) -> bool:
    return operator.tiers is None or tier in operator.tiers


class AncestorClosure:
    """Rules counts out of boxes that no plan has. Of tiers without links from below whose workers are all few."""

    def __init__(self, joint_lp: JointLp) -> None:
        self._integer_counts, self._kinds = joint_lp.integer_counts, joint_lp.kinds
        network = joint_lp.network
        place = {name: index for index, name in enumerate(network.names)}
        self._before = np.eye(len(place), dtype=bool)  # operator by those that are there whenever it is, itself too
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
        """Operators and tiers in which no plan has them."""
        most = self._integer_counts.most
        box = self.tightened(Box(np.ones(len(self._kinds.choices), bool), np.zeros(len(most)), most))
        found = set()
        for kinds, _, _ in self._groups:
            at = self._integer_counts.at[:, kinds]
            gone = (at >= 0).any(axis=1) & ~((at >= 0) & (box.most[at] > 0.0)).any(axis=1)
            found |= {(int(operator), int(self._kinds.tier[kinds[0]])) for operator in np.flatnonzero(gone)}
        return found

    def tightened(self, box: Box) -> Box:
        """The box without what cannot be."""
        for kinds, sizes, memory in self._groups:
            box = self._without(box, kinds, sizes, memory)
        return box

    def _uniform(self, kinds: Indices) -> tuple[Indices, Floats, Floats] | None:
        """A tier's classes, what each worker holds, and what each choice takes of that: operators or bytes."""
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
