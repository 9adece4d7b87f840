"""Integer worker counts per class for one selection, and their packing: which workers hold which models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from jellybean_solver.demand.memory import MemoryLimits, together
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.packing.bin_packing import Load, in_pools, seat_alone, seat_together
from jellybean_solver.fleet.packing.wrap_around_packing import Chain, Seats, seated_in
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Indices
from jellybean_solver.small.assignment import SPARE, Assignment, Group

MOST_MORE = 2  # most workers added to a chain, beyond those that its load keeps busy, because of memory


@dataclass(frozen=True)
class Staff:
    """Integer worker counts for one selection.

    `choices`: per operator the index of its variant among the joint LP's choices.
    `values`: values of the joint LP's columns; only flows are read.
    `served`: fraction of requests by operator (row) and worker class (column).
    `counts`: workers by operator (row) and exclusive class (column).
    `chains`: shared class -> its chains (wrap_around_packing.py) with their numbers of workers, if known.
    `known`: shared class -> groups of workers with equal models: their number, and operator -> fraction of requests.
    """

    joint_lp: JointLp
    choices: Indices
    values: Floats
    served: Floats
    counts: Indices
    chains: Mapping[int, tuple[tuple[Chain, int], ...]] = field(default_factory=dict)
    known: Mapping[int, tuple[tuple[int, Mapping[str, float]], ...]] = field(default_factory=dict)

    @property
    def selection(self) -> dict[str, str]:
        """Operator -> variant."""
        return dict(self.joint_lp.kinds.choices[choice] for choice in self.choices.tolist())

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The (operator, pool) pairs of all pools of the classes that an operator uses."""
        names, kinds = self.joint_lp.network.names, self.joint_lp.kinds.kinds
        used = np.argwhere(self.served > FEASIBILITY_TOLERANCE).tolist()
        return frozenset((names[operator], pool.name) for operator, kind in used for pool in kinds[kind].pools)

    def assignment(self) -> Assignment | None:
        """The assignment of all operators to workers; None if their models do not fit onto the workers of a class."""
        groups: list[Group] = []
        cost = self.joint_lp.traffic_usd_per_h(self.values)
        for seated in self._seats:
            if seated is None:
                return None
            groups += seated
        price = self.joint_lp.network.usd_per_h
        cost += sum(price[group.pool] * group.count for group in groups)
        return Assignment(cost, self.joint_lp.flows.at(self.values), tuple(groups))

    @property
    def idle(self) -> Floats:
        """Per class, workers needed because of memory beyond those that its load keeps busy; 0 for exclusive classes.

        inf if no packing was found.
        """
        found = np.zeros(len(self._seats))
        for index, seated in enumerate(self._seats):
            if seated is None:
                found[index] = math.inf
            elif not self.joint_lp.kinds.exclusive[index]:
                found[index] = sum(group.count for group in seated) - self._asked(index)
        return found

    @cached_property
    def _seats(self) -> list[list[Group] | None]:
        return [self._seated(kind) for kind in range(len(self.joint_lp.kinds.kinds))]

    def _asked(self, index: int) -> int:
        """Least number of workers of a shared class whose time suffices for all loads, memory ignored."""
        own = np.flatnonzero(self.served[:, index] > FEASIBILITY_TOLERANCE)
        load = float(self.served[own, index] @ self.joint_lp.kinds.workers[self.choices[own], index])
        return max(1, math.ceil(load - SPARE)) if len(own) else 0

    def _seated(self, index: int) -> list[Group] | None:
        kinds, names = self.joint_lp.kinds, self.joint_lp.network.names
        own = np.flatnonzero(self.served[:, index] > FEASIBILITY_TOLERANCE).tolist()
        if not own:
            return []
        if kinds.exclusive[index]:
            shares = {names[o]: float(self.served[o, index]) for o in own}
            needed = {names[o]: self._workers(o, index) for o in own}
            return seat_alone(kinds.kinds[index], shares, needed)
        loads, known = self._loads(index, own), [own for own in self.known.get(index, ()) if own[1]]
        if known and all(_fit(shares, loads, kinds.kinds[index].limits) for _, shares in known):
            return in_pools(kinds.kinds[index], known)
        if index in self.chains:
            return self._chained(index)
        return seat_together(kinds.kinds[index], loads, self._asked(index))

    def extras(self) -> list[tuple[int, int, int]]:
        """Chains that need more workers because of memory: (class, index of the chain, additional workers)."""
        found = []
        for index, chains in self.chains.items():
            for number, (chain, _) in enumerate(chains):
                own = self._loads(index, chain)
                seats, asked = self._in_chain(index, own), _asked(own)
                if own and seats is None:
                    found.append((index, number, MOST_MORE))
                elif seats is not None and (extra := sum(count for count, _ in seats) - asked) > 0:
                    found.append((index, number, extra))
        return found

    def _loads(self, index: int, operators: Sequence[int]) -> list[Load]:
        """The loads on a class of those `operators` that use it."""
        kinds, names = self.joint_lp.kinds, self.joint_lp.network.names
        return [
            Load(
                names[o],
                float(self.served[o, index]),
                float(self.served[o, index] * kinds.workers[self.choices[o], index]),
                kinds.memory(int(self.choices[o]), index),
            )
            for o in operators
            if self.served[o, index] > FEASIBILITY_TOLERANCE
        ]

    def _in_chain(self, index: int, loads: Sequence[Load]) -> Seats | None:
        """Pack a chain, on up to `MOST_MORE` more workers if models do not fit together; None if that is too few."""
        asked, limits = _asked(loads), self.joint_lp.kinds.kinds[index].limits
        tried = (seated_in(loads, asked + more, limits) for more in range(MOST_MORE + 1 if loads else 0))
        return next((seats for seats in tried if seats is not None), None)

    def _chained(self, index: int) -> list[Group] | None:
        """Pack a class chain by chain; if that needs too many workers, in any order. None if nothing fits."""
        kind = self.joint_lp.kinds.kinds[index]
        owns = [own for chain, _ in self.chains[index] if (own := self._loads(index, chain))]
        seats = [self._in_chain(index, own) for own in owns]
        found = [part for own in seats for part in own or ()]
        if None in seats or sum(count for count, _ in found) > kind.count:
            return seat_together(kind, [load for own in owns for load in own], self._asked(index))
        return in_pools(kind, found)

    def _workers(self, operator: int, kind: int) -> int:
        """Workers of an exclusive class for an operator: its count, but no more than its requests need."""
        needed = float(self.served[operator, kind] * self.joint_lp.kinds.workers[self.choices[operator], kind])
        return min(int(self.counts[operator, kind]), max(1, math.ceil(needed - SPARE)))


def _fit(shares: Mapping[str, float], loads: Sequence[Load], limits: MemoryLimits) -> bool:
    return together(load.memory for load in loads if load.name in shares).fits(limits)


def _asked(loads: Sequence[Load]) -> int:
    """Least number of workers whose time suffices for the loads."""
    return max(1, math.ceil(sum(load.workers for load in loads) - SPARE))
