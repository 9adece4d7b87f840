"""The exact MILP of one workflow that rents common shared workers by the part, and pays surcharges for the rest.

Its columns are those of exact_milp.py, except that common shared pools have no whole workers. For each choice and tier
there is one column instead:
    r[c, t]   fraction of requests whose operator runs choice c on the common shared pool of tier t that is cheapest
Its cost is the least of time price x workers kept busy + memory price x workers filled, over the pools of the tier.
Capacities of common pools are left to the prices, so the program stays small however large the fleet is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np

from jellybean_solver.decomposition.local_plan import LocalPlan, Use
from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import is_accurate_enough
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.packing.bin_packing import Load, in_pools
from jellybean_solver.fleet.packing.worker_counts import Staff
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, Floats, Indices, SolveLimits, run
from jellybean_solver.small.assignment import SPARE, Group


@dataclass(frozen=True, slots=True)
class Answer:
    """The cheapest plan of a workflow at some prices, and a lower bound on the cost of all its plans at these prices.

    `plan`: None if there is none; `bound` is then inf.
    """

    plan: LocalPlan | None
    bound: float


@dataclass(frozen=True)
class Offers:
    """Common shared pools by rented column: rows are columns of the program, columns are the pools of its tier.

    `pool`: index among the split's shared pools; `kind`: its class. `time`, `memory`: workers kept busy and filled by
    all requests; inf where there is no further pool.
    """

    column: Indices
    choice: Indices
    pool: Indices
    kind: Indices
    time: Floats
    memory: Floats

    def cheapest(self, prices: Prices) -> tuple[Indices, Floats]:
        """Per row the index of its cheapest pool among those of its tier, and the cost there."""
        with np.errstate(invalid="ignore"):
            cost = prices.time[self.pool] * self.time + prices.memory[self.pool] * self.memory
        cost = np.where(np.isfinite(self.time), cost, math.inf)
        best = cost.argmin(axis=1)
        return best, cost[np.arange(len(best)), best]


class LocalProgram(ExactMilp):
    """The program of part `number` of a split; `possible`: False if no selection is feasible."""

    def __init__(self, split: Split, number: int, gap: float) -> None:
        """`gap`: relative, of each solve."""
        self.split, self.number, self.part, self.gap = split, number, split.parts[number], gap
        network = Network(self.part)
        joint_lp = JointLp(network, self.part.accuracy_target, {}, common=split.common)
        self.possible = joint_lp.possible
        if not self.possible:
            return
        shared = {pool.name: index for index, pool in enumerate(split.shared)}
        self._alone = {pool.name: index for index, pool in enumerate(split.exclusive)}
        kinds = joint_lp.kinds.kinds
        self._rented = np.array([kind.pools[0].name in shared for kind in kinds], bool)
        self._lone = [index for index, kind in enumerate(kinds) if kind.pools[0].name in self._alone]
        super().__init__(joint_lp)
        self.offers = self._add_rented(shared)
        self.common_links = tuple(self._link_entries())
        paid = [pool.name for kind in kinds for pool in kind.pools]
        self.surcharged = [(int(joint_lp.paid[i]), self._alone[n]) for i, n in enumerate(paid) if n in self._alone]
        self._cost = np.concatenate(self.program.cost)
        self._every = np.arange(self.program.columns, dtype=np.int32)
        self._model: highspy.Highs | None = None

    def solve(self, prices: Prices) -> Answer:
        """The cheapest plan at these prices, to the relative gap."""
        while self.possible:
            cost, best = self._priced(prices)
            if self._model is None:
                self._model = self.program.model(SolveLimits(self.gap, tiny=True))
            self._model.changeColsCost(len(cost), self._every, cost)
            run(self._model)
            answer = self.program.answer(self._model)
            if answer.values is None:
                return Answer(None, answer.bound)
            spread = np.zeros(self.offers.time.shape)
            spread[np.arange(len(best)), best] = answer.values[self.offers.column]
            plan = self.plan(answer.values, spread, prices)
            if is_accurate_enough(self.part, self.part.accuracy_target, plan.selection):
                return Answer(plan, answer.bound)
            self.exclude(plan.selection)  # the accuracy rows overestimate it
            self._model = None
        return Answer(None, math.inf)

    def _priced(self, prices: Prices) -> tuple[Floats, Indices]:
        """Costs of all columns at these prices, and the cheapest pool of each rented column."""
        cost = self._cost.copy()
        best, rent = self.offers.cheapest(prices)
        cost[self.offers.column] = rent
        for column, pool in self.surcharged:
            cost[column] += prices.count[pool]
        for link, columns, shares in self.common_links:
            np.add.at(cost, columns, prices.links[link] * shares)
        return cost, best

    def plan(self, values: Floats, spread: Floats, prices: Prices) -> LocalPlan:
        """The plan of a point. `spread`: by offer, the fraction of an operator's requests that it serves."""
        staff = self.staff(values)
        common = self._rented.copy()
        common[self._lone] = True
        own = replace(staff, served=np.where(common, 0.0, staff.served)).assignment()
        if own is None:
            raise AssertionError("an exact program counts the memory of all workers")
        lone = [group for kind in self._lone for group in self._in_lone(staff, kind, prices)]
        loads, memory = self._loads(spread)
        groups = (*own.groups, *lone)
        price = self.joint_lp.network.usd_per_h
        traffic = self.joint_lp.traffic_usd_per_h(values)
        counts = np.zeros(len(self.split.exclusive))
        for group in lone:
            counts[self._alone[group.pool]] += group.count
        time = np.array([sum(load.workers for load in loads.get(pool.name, ())) for pool in self.split.shared])
        links = np.zeros(len(self.split.links))
        for link, columns, shares in self.common_links:
            links[link] = float(values[columns] @ shares)
        return LocalPlan(
            self.number,
            staff.selection,
            traffic + sum(price[group.pool] * group.count for group in groups),
            Use.of(time),
            Use.of(memory),
            Use.of(counts),
            Use.of(np.maximum(links, 0.0)),
            loads,
            groups,
            self.joint_lp.network.bags,
            own.bags,
            self._busy(staff, groups, loads),
        )

    def _in_lone(self, staff: Staff, kind: int, prices: Prices) -> list[Group]:
        """Workers of a class of common exclusive pools, those first that are cheapest at these prices."""
        kinds, names = self.kinds, self.joint_lp.network.names
        operators = np.flatnonzero(staff.served[:, kind] > FEASIBILITY_TOLERANCE).tolist()
        shares = {names[o]: float(staff.served[o, kind]) for o in operators}
        counts = {}
        for o in operators:
            needed = shares[names[o]] * float(kinds.workers[staff.choices[o], kind])
            counts[names[o]] = min(int(staff.counts[o, kind]), max(1, math.ceil(needed - SPARE)))
        price = self.joint_lp.network.usd_per_h
        pools = kinds.kinds[kind].pools
        order = sorted(pools, key=lambda pool: price[pool.name] + float(prices.count[self._alone[pool.name]]))
        alone = ((counts[name], {name: share}) for name, share in shares.items())
        return in_pools(replace(kinds.kinds[kind], pools=tuple(order)), alone)

    def _loads(self, spread: Floats) -> tuple[dict[str, tuple[Load, ...]], Floats]:
        """The loads on common shared pools, and per pool the workers whose memory they fill."""
        offers, kinds = self.offers, self.kinds
        found: dict[str, list[Load]] = {}
        memory = np.zeros(len(self.split.shared))
        for row, at in np.argwhere(spread > FEASIBILITY_TOLERANCE).tolist():
            choice, share = int(offers.choice[row]), float(spread[row, at])
            pool = int(offers.pool[row, at])
            name = kinds.choices[choice][0]
            one = Load(
                name, share, share * float(offers.time[row, at]), kinds.memory(choice, int(offers.kind[row, at]))
            )
            found.setdefault(self.split.shared[pool].name, []).append(one)
            memory[pool] += share * float(offers.memory[row, at])
        return {pool: tuple(own) for pool, own in found.items()}, memory

    def _busy(
        self, staff: Staff, groups: Sequence[Group], loads: Mapping[str, Sequence[Load]]
    ) -> dict[tuple[str, str], float]:
        kinds, names = self.kinds, self.joint_lp.network.names
        choice_of = {names[o]: int(choice) for o, choice in enumerate(staff.choices.tolist())}
        kind_of = {pool.name: index for index, kind in enumerate(kinds.kinds) for pool in kind.pools}
        pairs = {(name, group.pool) for group in groups for name in group.shares}
        pairs |= {(load.name, pool) for pool, own in loads.items() for load in own}
        return {(name, pool): float(kinds.workers[choice_of[name], kind_of[pool]]) for name, pool in pairs}

    # -- columns and rows

    def _add_class(self, kind: int, choices: Sequence[int]) -> None:
        if not self._rented[kind]:
            super()._add_class(kind, choices)

    def _add_rented(self, shared: Mapping[str, int]) -> Offers:
        """Add the columns r, with the rows that any column y of the tier has."""
        kinds = self.kinds
        found: list[tuple[int, int, list[tuple[int, int]]]] = []  # column, choice, (pool, class) of each offer
        for tier in sorted({int(kinds.tier[kind]) for kind in np.flatnonzero(self._rented)}):
            here = np.flatnonzero(self._rented & (kinds.tier == tier)).tolist()
            for choice in range(len(kinds.choices)):
                offers = [
                    (shared[pool.name], kind)
                    for kind in here
                    if self.open[choice, kind]
                    for pool in kinds.kinds[kind].pools
                ]
                if offers:
                    column = self.program.column(0.0, 1.0)
                    rows, values = self.joint_lp.tier_entries(choice, tier)
                    self.program.fill(rows, [column] * len(rows), values)
                    found.append((column, choice, offers))
        most = max((len(offers) for *_, offers in found), default=1)
        pool, kind = np.zeros((len(found), most), np.int64), np.zeros((len(found), most), np.int64)
        time, memory = np.full((len(found), most), np.inf), np.zeros((len(found), most))
        for row, (_, choice, offers) in enumerate(found):
            for at, (number, of) in enumerate(offers):
                pool[row, at], kind[row, at] = number, of
                time[row, at], memory[row, at] = kinds.workers[choice, of], kinds.stored[choice, of]
        columns, choices = ([one[i] for one in found] for i in (0, 1))
        return Offers(np.array(columns, np.int64), np.array(choices, np.int64), pool, kind, time, memory)

    def _link_entries(self) -> Iterator[tuple[int, Indices, Floats]]:
        """Per common link: its index, and the columns with the share of the bandwidth that each takes."""
        index = {ends: number for number, ends in enumerate(self.split.links)}
        wanted = {
            int(row): index[ends]
            for row, ends in zip(self.joint_lp.link_rows, self.joint_lp.limited_links, strict=True)
            if ends in index
        }
        if not wanted:
            return
        rows, columns, values = (np.concatenate(part) for part in zip(*self.program.entries, strict=True))
        for row, link in wanted.items():
            at = rows == row
            yield link, columns[at], values[at]
