"""How many workers of each kind serve how much of each operator, before it is said which holds what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jellybean_solver.assignment import SPARE, Assignment, Group
from jellybean_solver.mip import TOLERANCE
from jellybean_solver.program import Floats, Indices
from jellybean_solver.seating import Load, seat_alone, seat_together
from jellybean_solver.skeleton import Skeleton


@dataclass(frozen=True)
class Staff:
    """Whole workers for one selection.

    `choices`: per operator, as index in the skeleton's kinds; `values`: of the skeleton's columns, of which only flows
    count; `served`: fractions of requests per operator and kind; `counts`: workers of exclusive kinds, likewise, and of
    shared ones those that are to hold one model, where that is known.
    """

    skeleton: Skeleton
    choices: Indices
    values: Floats
    served: Floats
    counts: Indices

    @property
    def selection(self) -> dict[str, str]:
        """Operator -> variant."""
        return dict(self.skeleton.kinds.choices[choice] for choice in self.choices.tolist())

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The (operator, pool) pairs that are used, or might as well be."""
        names, kinds = self.skeleton.network.names, self.skeleton.kinds.kinds
        used = np.argwhere(self.served > TOLERANCE).tolist()
        return frozenset((names[operator], pool.name) for operator, kind in used for pool in kinds[kind].pools)

    def assignment(self) -> Assignment | None:
        """Seats for all; None where models do not fit onto the workers that there are."""
        flows = self.skeleton.flows.fractions
        bags = tuple(
            {tiers: float(self.values[column]) for tiers, column in table.items() if self.values[column] > TOLERANCE}
            for table in flows
        )
        groups: list[Group] = []
        cost = self.skeleton.traffic_usd_per_h(self.values)
        for seated in self._seats:
            if seated is None:
                return None
            groups += seated
        price = self.skeleton.network.usd_per_h
        cost += sum(price[group.pool] * group.count for group in groups)
        return Assignment(cost, -math.inf, bags, tuple(groups))

    @property
    def idle(self) -> Floats:
        """Workers that memory asks for beyond those that time does, per shared kind; inf where no seats were found."""
        found = np.zeros(len(self._seats))
        for index, seated in enumerate(self._seats):
            if seated is None:
                found[index] = math.inf
            elif not self.skeleton.kinds.exclusive[index]:
                found[index] = sum(group.count for group in seated) - self._asked(index)
        return found

    @cached_property
    def _seats(self) -> list[list[Group] | None]:
        return [self._seated(kind) for kind in range(len(self.skeleton.kinds.kinds))]

    def _asked(self, index: int) -> int:
        """Workers of a shared kind whose time all loads take."""
        own = np.flatnonzero(self.served[:, index] > TOLERANCE)
        load = float(self.served[own, index] @ self.skeleton.kinds.workers[self.choices[own], index])
        return max(1, math.ceil(load - SPARE)) if len(own) else 0

    def _seated(self, index: int) -> list[Group] | None:
        kinds, names = self.skeleton.kinds, self.skeleton.network.names
        own = np.flatnonzero(self.served[:, index] > TOLERANCE).tolist()
        if not own:
            return []
        if kinds.exclusive[index]:
            shares = {names[o]: float(self.served[o, index]) for o in own}
            needed = {names[o]: self._workers(o, index) for o in own}
            return seat_alone(kinds.kinds[index], shares, needed)
        loads = [
            Load(
                names[o],
                float(self.served[o, index]),
                float(self.served[o, index] * kinds.workers[self.choices[o], index]),
                float(kinds.memory_bytes[self.choices[o], index]),
            )
            for o in own
        ]
        alone = {names[o]: int(self.counts[o, index]) for o in own if self.counts[o, index] > 0}
        return seat_together(kinds.kinds[index], loads, self._asked(index), alone)

    def _workers(self, operator: int, kind: int) -> int:
        """Of an exclusive kind: no more than its requests need."""
        needed = float(self.served[operator, kind] * self.skeleton.kinds.workers[self.choices[operator], kind])
        return min(int(self.counts[operator, kind]), max(1, math.ceil(needed - SPARE)))
