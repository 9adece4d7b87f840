"""Worker assignment: where a selection's operators run, as an exact mixed-integer program (PuLP over HiGHS).

Variables, for one selection:
    f[b, a]     fraction of requests whose operators of bag b sit in tiers a        (b from the tree of bags)
    y[o, p, h]  fraction of requests whose operator o runs on workers of pool p that hold the operators h
    n[p, h]     workers of pool p that hold h; integer
Rows:
    sum_a f[root, a] = 1; bags agree with their parents on shared operators;
    sum_{p in t, h} y[o, p, h] = sum_{a: a[o] = t} f[b, a];
    sum_o workers[o][p] y[o, p, h] <= n[p, h]; y[o, p, h] <= n[p, h]; sum_h n[p, h] <= count;
    sum_b,a bytes[a][link] f[b, a] <= bandwidth of each link.
Objective: workers' prices and traffic, both linear. Pairs of tiers between which data cannot flow have no variable.
An exclusive worker holds one operator; a shared one any set whose models fit into its memory (packing.py).
Fractions per bag that agree on separators come from whole-request routes (see bags.py), so nothing is relaxed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulp

from jellybean_solver.bags import Bag
from jellybean_solver.bound import Multipliers, OperatorPool
from jellybean_solver.demand import Demand, EdgeKey, Network, Tiers
from jellybean_solver.errors import SolverError
from jellybean_solver.packing import host_sets
from jellybean_solver.problem import Pool, Sharing

SPARE = 1e-7  # workers: a need of 2.0000000001 is met by 2
TOLERANCE = 1e-9  # of rows and integers; HiGHS' own default of 1e-6 would round small operators away
_FEASIBLE = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)

BagTiers = tuple[str, ...]
HostSet = tuple[str, ...]
Hosted = tuple[str, str, HostSet]  # operator, pool, what the workers hold


@dataclass(frozen=True, slots=True)
class Group:
    """Workers of a pool that hold the same models. `shares`: operator -> fraction of its requests that they serve."""

    pool: str
    shares: Mapping[str, float]
    count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A solved assignment. `cost` and `bound` in USD per hour; `bound` < `cost` only when time ran out."""

    cost: float
    bound: float
    bags: tuple[Mapping[BagTiers, float], ...]  # per bag of the network: tiers of its operators -> fraction
    groups: tuple[Group, ...]


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


def improve(
    network: Network, demand: Demand, *, cutoff: float = math.inf, gap: float, time_limit_s: float | None = None
) -> Assignment | None:
    """A cheap assignment, to a relative gap, for a caller who has a bound of his own; None when none was found."""
    model = _Model(network, demand)
    model.minimise_cost(cutoff)
    outcome = model.solve(integer=True, time_limit_s=time_limit_s, gap=gap)
    if outcome is None or outcome[0] is None:
        return None
    return model.assignment(outcome[0], -math.inf)


def assign(network: Network, demand: Demand, *, cutoff: float = math.inf, time_limit_s: float | None = None) -> Answer:
    """The cheapest assignment not dearer than `cutoff`, or the proof that there is none.

    Where too many sets of models fit together, some are tried, and the bound is that of workers without memory limits.
    """
    model = _Model(network, demand)
    model.minimise_cost(cutoff)
    outcome = model.solve(integer=True, time_limit_s=time_limit_s)
    if model.all_largest:
        if outcome is None:
            return Answer(None, math.inf)
        value, bound = outcome
    else:
        value = outcome[0] if outcome is not None else None
        roomy = _Model(network, demand, packed=False)
        roomy.minimise_cost(cutoff)
        lower = roomy.solve(integer=True, time_limit_s=time_limit_s)
        if lower is None:
            return Answer(None, math.inf)
        bound = lower[1]
    if value is None:
        return Answer(None, bound)
    return Answer(model.assignment(value, min(value, bound)), min(value, bound))


def relax(network: Network, demand: Demand) -> Relaxation:
    """The linear relaxation of `assign`, without memory limits: fractions of workers could keep any."""
    model = _Model(network, demand, packed=False)
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
    carried: Mapping[Tiers, float]  # share of its bandwidth per limited link


def largest_rate_scale(
    network: Network, demand: Demand, *, integer: bool, budget: float = math.inf, time_limit_s: float | None = None
) -> RateScale | None:
    """How far all rates may be scaled (at most to 1) with the whole fleet; None when nothing can flow at all."""
    # Without presence rows the relaxation's duals are plain weights of pools, which bounds can use.
    model = _Model(network, demand, scaled=True, presence=integer, packed=integer)
    model.maximise_scale(budget)
    outcome = model.solve(integer=integer, time_limit_s=time_limit_s)
    if outcome is None or outcome[0] is None:
        return None
    bound = -outcome[1]
    if not model.all_largest:  # only some sets of models were tried: what they cannot carry, others might
        bound = 1.0
    weights = {} if integer else model.capacity_duals()
    scale = max(0.0, -outcome[0])
    return RateScale(scale, max(scale, bound), weights, model.busy(), model.carried())


class _Model:
    """One PuLP model.

    `scaled`: fractions sum to a variable instead of 1, so rates are scaled by it. `packed`: workers' memory counts.
    """

    def __init__(
        self, network: Network, demand: Demand, *, scaled: bool = False, presence: bool = True, packed: bool = True
    ) -> None:
        self.network, self.demand, self.presence, self.packed = network, demand, presence, packed
        self.problem = pulp.LpProblem("assignment", pulp.LpMinimize)
        self.scale = self._variable("scale", 1) if scaled else None
        self.rows = 0
        self.all_largest = True
        self.fractions = [self._bag_variables(index) for index in range(len(network.bags))]
        self.shares: dict[Hosted, Any] = {}
        self.counts: dict[tuple[str, HostSet], Any] = {}
        self.load_rows: dict[OperatorPool, Any] = {}
        self.presence_rows: dict[OperatorPool, Any] = {}  # empty without `presence`
        self.scarcity_rows: dict[str, Any] = {}
        self.link_rows: dict[Tiers, Any] = {}
        for index, pool in enumerate(network.pools):
            self._pool(index, pool)
        self._bag_rows()
        self._tier_rows()
        self._link_rows()
        self.cost = self._cost()

    def add(self, terms: list[tuple[Any, float]], sense: int, right: float) -> Any:
        """One row: sum of coefficient x variable, sense, right-hand side."""
        row = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, f"r{self.rows}", right)
        self.problem.addConstraint(row)
        self.rows += 1
        return row

    def minimise_cost(self, cutoff: float = math.inf) -> None:
        self.problem.setObjective(pulp.LpAffineExpression(self.cost))
        if math.isfinite(cutoff):
            self.add(self.cost, pulp.LpConstraintLE, cutoff)

    def maximise_scale(self, budget: float = math.inf) -> None:
        self.problem.setObjective(pulp.LpAffineExpression([(self.scale, -1.0)]))
        if math.isfinite(budget):
            self.add(self.cost, pulp.LpConstraintLE, budget)

    def solve(
        self, *, integer: bool, time_limit_s: float | None, gap: float = 0.0
    ) -> tuple[float | None, float] | None:
        """(objective or None, dual bound); None when proven infeasible. SolverError on a numerical failure."""
        solver = pulp.HiGHS(
            mip=integer,
            msg=False,
            threads=1,
            gapRel=gap,
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
        groups: list[Group] = []
        for (pool, hosted), variable in self.counts.items():
            found = {name: float(self.shares[name, pool, hosted].value()) for name in hosted}
            shares = {name: share for name, share in found.items() if share > TOLERANCE}
            counted = round(variable.value())
            needed = sum(share * self.demand.workers[name][pool] for name, share in shares.items())
            count = min(counted, max(1, math.ceil(needed - SPARE))) if shares else 0
            # A program stopped at a gap, or free workers, may leave more than are needed.
            cost -= (counted - count) * self.network.problem.pool_by_name[pool].price_usd_per_h
            if shares:
                groups.append(Group(pool, shares, count))
        return Assignment(cost, bound, bags, tuple(groups))

    def multipliers(self) -> Multipliers:
        """Duals of the rows that tie operators to workers; signs turned so that none is below 0."""
        return Multipliers(
            {key: max(0.0, -row.pi) for key, row in self.load_rows.items()},
            {key: max(0.0, -row.pi) for key, row in self.presence_rows.items()},
            {pool: max(0.0, -row.pi) for pool, row in self.scarcity_rows.items()},
            {tiers: max(0.0, -row.pi) for tiers, row in self.link_rows.items()},
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
        for (name, pool, _), variable in self.shares.items():
            found[pool] += self.demand.workers[name][pool] * variable.value()
        return found

    def carried(self) -> dict[Tiers, float]:
        """Share of its bandwidth that each limited link carries."""
        return {tiers: 1.0 + float(row.value()) for tiers, row in self.link_rows.items()}

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
        by_name: dict[str, list[tuple[Any, str]]] = {}
        for (name, pool, _), variable in self.shares.items():
            by_name.setdefault(name, []).append((variable, pool))
        for bag, (home, _), fractions in zip(self.network.bags, self.network.homes, self.fractions, strict=True):
            for name in home:
                index = bag.operators.index(name)
                rows: dict[str, list[tuple[Any, float]]] = {}
                for tiers, variable in fractions.items():
                    rows.setdefault(tiers[index], []).append((variable, -1.0))
                for variable, pool in by_name.get(name, ()):
                    rows.setdefault(self.network.tier_of[pool], []).append((variable, 1.0))
                for terms in rows.values():
                    self.add(terms, pulp.LpConstraintEQ, 0.0)

    def _link_rows(self) -> None:
        carried: dict[Tiers, list[tuple[Any, float]]] = {tiers: [] for tiers in self.network.bandwidth}
        for (home, edges), bag, fractions in zip(self.network.homes, self.network.bags, self.fractions, strict=True):
            for tiers, variable in fractions.items():
                for link, bytes_per_s in self._sent(bag, home, edges, tiers).items():
                    carried[link].append((variable, bytes_per_s / self.network.bandwidth[link]))
        for link, terms in carried.items():
            if terms:
                self.link_rows[link] = self.add(terms, pulp.LpConstraintLE, 1.0)

    def _sent(self, bag: Bag, home: Sequence[str], edges: Sequence[EdgeKey], tiers: BagTiers) -> Mapping[Tiers, float]:
        """Bytes per second on each limited link if all requests had the bag's operators in these tiers."""
        at = dict(zip(bag.operators, tiers, strict=True))
        inner = (((at[up], at[down]), self.demand.sent[up, down]) for up, down in edges)
        found: dict[Tiers, float] = {}
        for link, sent in itertools.chain(
            inner, *(self.network.entry_bytes_per_s(name, at[name]).items() for name in home)
        ):
            if link in self.network.bandwidth and sent > 0:
                found[link] = found.get(link, 0.0) + sent
        return found

    def _pool(self, index: int, pool: Pool) -> None:
        names = [name for name in self.network.names if pool.name in self.demand.workers[name]]
        if not names:
            return
        exclusive = pool.sharing is Sharing.EXCLUSIVE
        if exclusive:
            sets: tuple[HostSet, ...] = tuple((name,) for name in names)
        else:
            memory = {name: self.demand.memory[name][pool.name] for name in names}
            hosts = host_sets(memory, pool.memory_bytes if self.packed else None)
            sets = hosts.sets
            self.all_largest = self.all_largest and hosts.all_largest
        for number, hosted in enumerate(sets):
            self._group(f"{index}_{number}", pool, hosted)
        if exclusive or len(sets) > 1:
            together = [(self.counts[pool.name, hosted], 1.0) for hosted in sets]
            self.scarcity_rows[pool.name] = self.add(together, pulp.LpConstraintLE, pool.count)

    def _group(self, label: str, pool: Pool, hosted: HostSet) -> None:
        """Workers that hold one set: their count covers the load, and nothing is served where there are none."""
        count = self._variable(f"n_{label}", pool.count, pulp.LpInteger)
        self.counts[pool.name, hosted] = count
        terms: list[tuple[Any, float]] = [(count, -1.0)]
        for o, name in enumerate(hosted):
            share = self._variable(f"y_{label}_{o}")
            self.shares[name, pool.name, hosted] = share
            terms.append((share, self.demand.workers[name][pool.name]))
            if self.presence:
                row = self.add([(share, 1.0), (count, -1.0)], pulp.LpConstraintLE, 0.0)
                self.presence_rows[name, pool.name] = row
        row = self.add(terms, pulp.LpConstraintLE, 0.0)
        self.load_rows |= {(name, pool.name): row for name in hosted}

    def _cost(self) -> list[tuple[Any, float]]:
        terms: list[tuple[Any, float]] = []
        for (pool, _), count in self.counts.items():
            terms.append((count, self.network.problem.pool_by_name[pool].price_usd_per_h))
        for bag, (home, edges), fractions in zip(self.network.bags, self.network.homes, self.fractions, strict=True):
            for tiers, variable in fractions.items():
                at = dict(zip(bag.operators, tiers, strict=True))
                price = sum(self.demand.entry[name][at[name]] for name in home)
                price += sum(self.demand.traffic[up, down][at[up], at[down]] for up, down in edges)
                terms.append((variable, price))
        return terms
