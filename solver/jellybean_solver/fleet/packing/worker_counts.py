"""Integer worker counts per class for one selection, and their packing: which workers hold which models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from jellybean_solver.demand.memory import MemoryLimits, together
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.packing.bin_packing import Load, Seats, in_pools, pack, workers_of
from jellybean_solver.fleet.packing.chains import Chain
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
    `chains`: shared class -> its chains (chains.py), if known.
    `known`: shared class -> groups of workers with equal models: their number, and operator -> fraction of requests.
    """

    joint_lp: JointLp
    choices: Indices
    values: Floats
    served: Floats
    counts: Indices
    chains: Mapping[int, tuple[Chain, ...]] = field(default_factory=dict)
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
        for index in range(len(self.joint_lp.kinds.kinds)):
            seated = self._seated(index)
            if seated is None:
                return None
            groups += seated
        price = self.joint_lp.network.usd_per_h
        cost = self.joint_lp.traffic_usd_per_h(self.values) + sum(price[group.pool] * group.count for group in groups)
        return Assignment(cost, self.joint_lp.flows.at(self.values), tuple(groups))

    def extras(self) -> list[tuple[int, int, int]]:
        """Chains that need more workers because of memory: (class, index of the chain, additional workers)."""
        found = []
        for index, chains in self._in_chains.items():
            for number, (loads, seats) in enumerate(chains):
                extra = MOST_MORE if seats is None else sum(count for count, _ in seats) - workers_of(loads)
                if loads and extra > 0:
                    found.append((index, number, extra))
        return found

    @cached_property
    def _in_chains(self) -> dict[int, list[tuple[list[Load], Seats | None]]]:
        """The loads of each chain of a class, packed by themselves on up to `MOST_MORE` more workers."""
        limits = [kind.limits for kind in self.joint_lp.kinds.kinds]
        loads = {index: [self._loads(index, chain) for chain in chains] for index, chains in self.chains.items()}
        return {
            index: [(own, pack(own, workers_of(own) + MOST_MORE, limits[index]) if own else []) for own in chains]
            for index, chains in loads.items()
        }

    def _seated(self, index: int) -> list[Group] | None:
        """The workers of a class; None if the models do not fit onto them."""
        kind, names = self.joint_lp.kinds.kinds[index], self.joint_lp.network.names
        own = np.flatnonzero(self.served[:, index] > FEASIBILITY_TOLERANCE).tolist()
        if not own or kind.exclusive:
            return in_pools(kind, ((self._workers(o, index), {names[o]: float(self.served[o, index])}) for o in own))
        loads, known = self._loads(index, own), [group for group in self.known.get(index, ()) if group[1]]
        if known and all(_fit(shares, loads, kind.limits) for _, shares in known):
            return in_pools(kind, known)
        seats: Seats | None = None
        if index in self.chains:
            parts = [part for _, part in self._in_chains[index]]
            seats = None if None in parts else [seat for part in parts for seat in part or ()]
        if seats is None or sum(count for count, _ in seats) > kind.count:
            seats = pack(loads, kind.count, kind.limits)
        return None if seats is None else in_pools(kind, seats)

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

    def _workers(self, operator: int, kind: int) -> int:
        """Workers of an exclusive class for an operator: its count, but no more than its requests need."""
        needed = float(self.served[operator, kind] * self.joint_lp.kinds.workers[self.choices[operator], kind])
        return min(int(self.counts[operator, kind]), max(1, math.ceil(needed - SPARE)))


def _fit(shares: Mapping[str, float], loads: Sequence[Load], limits: MemoryLimits) -> bool:
    return together(load.memory for load in loads if load.name in shares).fits(limits)
