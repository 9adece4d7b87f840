"""Worker assignment: where a selection's operators run, as an exact mixed-integer program (PuLP over HiGHS).

Variables, for one selection:
    f[b, a]  fraction of requests whose operators of bag b sit in tiers a        (b from the tree of bags)
    y[o, p]  fraction of requests whose operator o runs in pool p
    n[p]     workers used of a shared pool; n[o, p] of an exclusive pool by operator o; integers
Rows:
    sum_a f[root, a] = 1; bags agree with their parents on shared operators;
    sum_{p in t} y[o, p] = sum_{a: a[o] = t} f[b, a];
    sum_o workers[o][p] y[o, p] <= n[p] (exclusive: per operator); y[o, p] <= n[p]; n <= count.
Objective: workers' prices and traffic, both linear. Pairs of tiers between which data cannot flow have no variable.
Fractions per bag that agree on separators come from whole-request routes (see bags.py), so nothing is relaxed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulp

from jellybean_solver.bound import Multipliers, OperatorPool
from jellybean_solver.demand import Demand, Network
from jellybean_solver.errors import SolverError
from jellybean_solver.problem import Pool, Sharing

TOLERANCE = 1e-9  # of rows and integers; HiGHS' own default of 1e-6 would round small operators away
_FEASIBLE = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)

BagTiers = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A solved assignment. `cost` and `bound` in USD per hour; `bound` < `cost` only when time ran out."""

    cost: float
    bound: float
    bags: tuple[Mapping[BagTiers, float], ...]  # per bag of the network: tiers of its operators -> fraction
    shares: Mapping[OperatorPool, float]  # fraction of the operator's requests in the pool
    counts: Mapping[str, int]  # shared pools
    own_counts: Mapping[OperatorPool, int]  # exclusive pools


@dataclass(frozen=True, slots=True)
class Answer:
    """What an attempt gave: an assignment (or none), and a lower bound that holds either way (inf: proven none)."""

    assignment: Assignment | None
    bound: float


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear relaxation's value (inf: infeasible) and duals."""

    value: float
    multipliers: Multipliers | None


def assign(network: Network, demand: Demand, *, cutoff: float = math.inf, time_limit_s: float | None = None) -> Answer:
    """The cheapest assignment not dearer than `cutoff`, or the proof that there is none."""
    model = _Model(network, demand)
    model.minimise_cost()
    if math.isfinite(cutoff):
        model.add(model.cost, pulp.LpConstraintLE, cutoff)
    outcome = model.solve(integer=True, time_limit_s=time_limit_s)
    if outcome is None:
        return Answer(None, math.inf)
    value, bound = outcome
    if value is None:
        return Answer(None, bound)
    return Answer(model.assignment(value, min(value, bound)), min(value, bound))


def relax(network: Network, demand: Demand) -> Relaxation:
    """The linear relaxation of `assign`."""
    model = _Model(network, demand)
    model.minimise_cost()
    outcome = model.solve(integer=False, time_limit_s=None)
    if outcome is None or outcome[0] is None:
        return Relaxation(math.inf, None)
    return Relaxation(outcome[0], model.multipliers())


@dataclass(frozen=True, slots=True)
class RateScale:
    """The largest factor (at most 1) on all rates that fits; `weights` are the duals per pool of the relaxation.

    `bound` > `scale` only when time ran out.
    """

    scale: float
    bound: float
    weights: Mapping[str, float]
    busy: Mapping[str, float]  # workers kept busy per pool at that scale


def largest_rate_scale(
    network: Network, demand: Demand, *, integer: bool, budget: float = math.inf, time_limit_s: float | None = None
) -> RateScale | None:
    """How far all rates may be scaled (at most to 1) with the whole fleet; None when nothing can flow at all."""
    # Without presence rows the relaxation's duals are plain weights of pools, which bounds can use.
    model = _Model(network, demand, scaled=True, presence=integer)
    model.maximise_scale()
    if math.isfinite(budget):
        model.add(model.cost, pulp.LpConstraintLE, budget)
    outcome = model.solve(integer=integer, time_limit_s=time_limit_s)
    if outcome is None or outcome[0] is None:
        return None
    weights = {} if integer else model.capacity_duals()
    scale = max(0.0, -outcome[0])
    return RateScale(scale, max(scale, -outcome[1]), weights, model.busy())


class _Model:
    """One PuLP model. `scaled`: fractions sum to a variable instead of 1, so rates are scaled by it."""

    def __init__(self, network: Network, demand: Demand, *, scaled: bool = False, presence: bool = True) -> None:
        self.network, self.demand, self.presence = network, demand, presence
        self.problem = pulp.LpProblem("assignment", pulp.LpMinimize)
        self.scale = self._variable("scale", 1) if scaled else None
        self.rows = 0
        self.fractions = [self._bag_variables(index) for index in range(len(network.bags))]
        self.shares = {
            (name, pool): self._variable(f"y_{o}_{p}")
            for o, name in enumerate(network.names)
            for p, pool in enumerate(demand.workers[name])
        }
        self.counts: dict[str, Any] = {}
        self.own_counts: dict[OperatorPool, Any] = {}
        self.load_rows: dict[OperatorPool, Any] = {}
        self.presence_rows: dict[OperatorPool, Any] = {}  # empty without `presence`
        self.scarcity_rows: dict[str, Any] = {}
        self._bag_rows()
        self._tier_rows()
        for index, pool in enumerate(network.pools):
            self._pool_rows(index, pool)
        self.cost = self._cost()

    def add(self, terms: list[tuple[Any, float]], sense: int, right: float) -> Any:
        """One row: sum of coefficient x variable, sense, right-hand side."""
        row = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, f"r{self.rows}", right)
        self.problem.addConstraint(row)
        self.rows += 1
        return row

    def minimise_cost(self) -> None:
        self.problem.setObjective(pulp.LpAffineExpression(self.cost))

    def maximise_scale(self) -> None:
        self.problem.setObjective(pulp.LpAffineExpression([(self.scale, -1.0)]))

    def solve(self, *, integer: bool, time_limit_s: float | None) -> tuple[float | None, float] | None:
        """(objective or None, dual bound); None when proven infeasible. SolverError on a numerical failure."""
        solver = pulp.HiGHS(
            mip=integer,
            msg=False,
            threads=1,
            gapRel=0.0,
            gapAbs=0.0,
            timeLimit=time_limit_s,
            random_seed=0,
            primal_feasibility_tolerance=TOLERANCE,
            dual_feasibility_tolerance=TOLERANCE,
            mip_feasibility_tolerance=TOLERANCE,
        )
        status = self.problem.solve(solver)
        if status == pulp.LpStatusInfeasible:
            return None
        info = self.problem.solverModel.getInfo()
        # PuLP reports "Optimal" for an incumbent at the time limit: the truth is in HiGHS' own figures.
        bound = float(info.mip_dual_bound) if integer else float(info.objective_function_value)
        if self.problem.sol_status in _FEASIBLE and info.primal_solution_status == 2:
            return float(info.objective_function_value), bound
        if status == pulp.LpStatusNotSolved and time_limit_s is not None:
            return None, bound
        raise SolverError(f"HiGHS ended with {pulp.LpStatus[status]} on worker assignment; please report this problem")

    def assignment(self, cost: float, bound: float) -> Assignment:
        """The solution's values, cleaned of what lies below the tolerance."""
        bags = tuple(
            {tiers: float(v.value()) for tiers, v in fractions.items() if v.value() > TOLERANCE}
            for fractions in self.fractions
        )
        shares = {key: float(v.value()) for key, v in self.shares.items() if v.value() > TOLERANCE}
        counts = {name: round(v.value()) for name, v in self.counts.items()}
        own_counts = {key: round(v.value()) for key, v in self.own_counts.items()}
        return Assignment(cost, bound, bags, shares, counts, own_counts)

    def multipliers(self) -> Multipliers:
        """Duals of the rows that tie operators to workers; signs turned so that none is below 0."""
        return Multipliers(
            {key: max(0.0, -row.pi) for key, row in self.load_rows.items()},
            {key: max(0.0, -row.pi) for key, row in self.presence_rows.items()},
            {pool: max(0.0, -row.pi) for pool, row in self.scarcity_rows.items()},
        )

    def capacity_duals(self) -> dict[str, float]:
        """What one more worker of each pool would be worth."""
        duals = {pool: max(0.0, -row.pi) for pool, row in self.scarcity_rows.items()}
        for (_, pool), row in self.load_rows.items():
            if pool not in self.scarcity_rows:
                duals[pool] = max(0.0, -row.pi)
        return duals

    def busy(self) -> dict[str, float]:
        """Workers kept busy per pool."""
        found = {pool.name: 0.0 for pool in self.network.pools}
        for (name, pool), variable in self.shares.items():
            found[pool] += self.demand.workers[name][pool] * variable.value()
        return found

    def _variable(self, name: str, high: float | None = None, category: str = pulp.LpContinuous) -> Any:
        return self.problem.add_variable(name, 0, high, category)

    def _bag_variables(self, index: int) -> dict[BagTiers, Any]:
        bag, (_, edges) = self.network.bags[index], self.network.homes[index]
        domains = [self._tiers(name) for name in bag.operators]
        found: dict[BagTiers, Any] = {}
        for number, tiers in enumerate(itertools.product(*domains)):
            at = dict(zip(bag.operators, tiers, strict=True))
            if all((at[up], at[down]) in self.demand.traffic[up, down] for up, down in edges):
                found[tiers] = self._variable(f"f_{index}_{number}")
        return found

    def _tiers(self, name: str) -> list[str]:
        tiers = dict.fromkeys(self.network.tier_of[pool] for pool in self.demand.workers[name])
        return [tier for tier in tiers if tier in self.demand.entry[name]]

    def _bag_rows(self) -> None:
        for bag, own in zip(self.network.bags, self.fractions, strict=True):
            if bag.parent is None:
                terms = [(variable, 1.0) for variable in own.values()]
                if self.scale is not None:
                    terms.append((self.scale, -1.0))
                self.add(terms, pulp.LpConstraintEQ, 0.0 if self.scale is not None else 1.0)
                continue
            rows: dict[BagTiers, list[tuple[Any, float]]] = {}
            above = self.network.bags[bag.parent].operators
            for names, fractions, sign in ((bag.operators, own, 1.0), (above, self.fractions[bag.parent], -1.0)):
                at = [names.index(name) for name in bag.separator]
                for tiers, variable in fractions.items():
                    rows.setdefault(tuple(tiers[i] for i in at), []).append((variable, sign))
            for terms in rows.values():
                self.add(terms, pulp.LpConstraintEQ, 0.0)

    def _tier_rows(self) -> None:
        for bag, (home, _), fractions in zip(self.network.bags, self.network.homes, self.fractions, strict=True):
            for name in home:
                index = bag.operators.index(name)
                rows: dict[str, list[tuple[Any, float]]] = {}
                for tiers, variable in fractions.items():
                    rows.setdefault(tiers[index], []).append((variable, -1.0))
                for pool in self.demand.workers[name]:
                    rows.setdefault(self.network.tier_of[pool], []).append((self.shares[name, pool], 1.0))
                for terms in rows.values():
                    self.add(terms, pulp.LpConstraintEQ, 0.0)

    def _pool_rows(self, index: int, pool: Pool) -> None:
        users = [(o, name) for o, name in enumerate(self.network.names) if (name, pool.name) in self.shares]
        busy = {name: self.demand.workers[name][pool.name] for _, name in users}
        if pool.sharing is Sharing.SHARED:
            count = self._variable(f"n_{index}", pool.count, pulp.LpInteger)
            self.counts[pool.name] = count
            terms = [(self.shares[name, pool.name], busy[name]) for _, name in users]
            row = self.add([*terms, (count, -1.0)], pulp.LpConstraintLE, 0.0)
            counted = dict.fromkeys(busy, count)
            self.load_rows |= {(name, pool.name): row for name in busy}
        else:
            counted = {name: self._variable(f"n_{o}_{index}", pool.count, pulp.LpInteger) for o, name in users}
            for name, count in counted.items():
                key = (name, pool.name)
                self.own_counts[key] = count
                self.load_rows[key] = self.add(
                    [(self.shares[key], busy[name]), (count, -1.0)], pulp.LpConstraintLE, 0.0
                )
            together = [(count, 1.0) for count in counted.values()]
            self.scarcity_rows[pool.name] = self.add(together, pulp.LpConstraintLE, pool.count)
        for name, count in counted.items() if self.presence else ():
            key = (name, pool.name)
            self.presence_rows[key] = self.add([(self.shares[key], 1.0), (count, -1.0)], pulp.LpConstraintLE, 0.0)

    def _cost(self) -> list[tuple[Any, float]]:
        terms: list[tuple[Any, float]] = []
        for name, count in self.counts.items():
            terms.append((count, self.network.problem.pool_by_name[name].price_usd_per_h))
        for (_, name), count in self.own_counts.items():
            terms.append((count, self.network.problem.pool_by_name[name].price_usd_per_h))
        for bag, (home, edges), fractions in zip(self.network.bags, self.network.homes, self.fractions, strict=True):
            for tiers, variable in fractions.items():
                at = dict(zip(bag.operators, tiers, strict=True))
                price = sum(self.demand.entry[name][at[name]] for name in home)
                price += sum(self.demand.traffic[up, down][at[up], at[down]] for up, down in edges)
                terms.append((variable, price))
        return terms
