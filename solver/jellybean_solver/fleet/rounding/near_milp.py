"""The exact MILP of one selection, restricted to what is near a relaxed point, so that HiGHS solves it at once.

It has the worker classes that the point uses and a few cheap ones more. The workers of an operator on exclusive classes
are those of one of many rounding patterns per tier (rounding_patterns.py), and a shared class has one group of workers
per chain (packing/chains.py). Classes of few shared workers keep their exact groups. Flows are free to change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.integer_counts import FEW
from jellybean_solver.fleet.joint_lp import JointLp, RelaxedLp
from jellybean_solver.fleet.packing.chains import Chain, chains_of
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.fleet.relaxation import Point
from jellybean_solver.fleet.rounding.rounding_patterns import ways_near
from jellybean_solver.fleet.worker_classes import Mask
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats

CLASSES = 1  # shared classes per operator and tier beside those that the point uses
WAYS = 40  # most rounding patterns per operator and tier


class NearMilp(ExactMilp):
    """The MILP near a point of the relaxed program `relaxed`; `links`: share of every link's bandwidth to use."""

    def __init__(self, relaxed: RelaxedLp, point: Point, links: float) -> None:
        made = point.chosen > 0.5
        joint_lp = JointLp(relaxed.network, None, relaxed.selection(made), relaxed.pace)
        joint_lp.program.change_rows(joint_lp.link_rows.tolist(), -math.inf, links)
        kinds = joint_lp.kinds
        # With one variant per operator, more pools are alike: a class here is one or several of the point's.
        class_of = {pool.name: index for index, kind in enumerate(kinds.kinds) for pool in kind.pools}
        at = np.array([class_of[kind.pools[0].name] for kind in relaxed.kinds.kinds])
        self.point_served, scarcity = np.zeros(kinds.workers.shape), np.zeros(len(kinds.kinds))
        np.add.at(self.point_served.T, at, point.served[made].T)
        np.maximum.at(scarcity, at, point.scarcity)
        prices = np.maximum(scarcity, kinds.price)
        paid = np.bincount(at[relaxed.pools_kind], point.values[relaxed.paid], len(kinds.kinds))
        self.chains: dict[int, tuple[Chain, ...]] = {}
        patterns = list(self._patterns(joint_lp, prices, kinds.counts - paid))
        near = self._near_shared(joint_lp, prices)
        for operator, ways in patterns:
            near[operator] |= ways.any(axis=0)
        joint_lp.open &= near
        super().__init__(joint_lp)
        for operator, ways in patterns:
            self._add_patterns(operator, ways)

    def make_room(self, staff: Staff) -> bool:
        """Keep workers of chains idle that need more because of memory. Returns whether there are any."""
        extras = staff.extras()
        for kind, number, extra in extras:
            self.program.row_high[self.groups[kind, number].load] -= extra
        return bool(extras)

    def staff(self, values: Floats) -> Staff:
        staff = super().staff(values)
        known = {kind: groups for kind, groups in staff.known.items() if kind not in self.chains}
        return replace(staff, known=known, chains=self.chains)

    def _near_shared(self, joint_lp: JointLp, prices: Floats) -> Mask:
        """By operator and shared class, true if the point uses it, or if it is among the cheapest others of a tier."""
        kinds, used = joint_lp.kinds, self.point_served > FEASIBILITY_TOLERANCE
        others = joint_lp.open & ~used & ~kinds.exclusive & (kinds.counts > FEW)
        cost = np.where(others, np.where(others, kinds.needed, 0.0) * prices, math.inf)
        near = used & ~kinds.exclusive
        for tier in range(len(joint_lp.tiers)):
            here = np.flatnonzero(kinds.tier == tier)
            for operator in np.flatnonzero(near[:, here].any(axis=1)).tolist():
                order = here[np.argsort(cost[operator, here], kind="stable")]
                near[operator, order[:CLASSES]] |= others[operator, order[:CLASSES]]
        return near

    def _patterns(self, joint_lp: JointLp, prices: Floats, room: Floats) -> Sequence[tuple[int, Floats]]:
        """Operators with the patterns of exclusive workers for what they serve in one tier. `room`: unused workers."""
        kinds, found = joint_lp.kinds, []
        for tier in range(len(joint_lp.tiers)):
            here = joint_lp.open & kinds.exclusive & (kinds.tier == tier)
            for operator, share in enumerate(np.where(here, self.point_served, 0.0).sum(axis=1).tolist()):
                if share > FEASIBILITY_TOLERANCE:
                    needed = np.where(here[operator], kinds.needed[operator], math.inf)
                    workers = np.where(here[operator], needed, 0.0) * self.point_served[operator]
                    found.append((operator, ways_near(share, needed, prices, workers, room, WAYS)))
        return found

    def _add_patterns(self, operator: int, ways: Floats) -> None:
        """The operator's workers in a tier are those of one pattern."""
        columns = self.program.add_columns(np.zeros(len(ways)), 1.0, integer=True)
        self.program.row(1.0, 1.0, columns)
        for kind in np.flatnonzero(ways.any(axis=0)).tolist():
            row = self.program.row(0.0, 0.0, [self.groups[kind, operator].count], -1.0)
            self.program.fill([row] * len(columns), columns, ways[:, kind])

    def _add_class(self, kind: int, choices: Sequence[int]) -> None:
        kinds = self.kinds
        if kinds.exclusive[kind] or kinds.kinds[kind].count <= FEW:
            super()._add_class(kind, choices)
            return
        memory = {choice: float(kinds.memory_bytes[choice, kind]) for choice in choices}
        loads = {choice: float(kinds.workers[choice, kind] * self.point_served[choice, kind]) for choice in choices}
        used = {choice: memory[choice] for choice in choices if self.point_served[choice, kind] > FEASIBILITY_TOLERANCE}
        others = {choice: memory[choice] for choice in choices if choice not in used}
        self.chains[kind] = tuple(chains_of(kinds.kinds[kind], used, loads, others))
        for number, chain in enumerate(self.chains[kind]):
            self._add_group(kind, number, chain)
