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
Fractions per bag that agree on separators can be realised by routes of whole requests (tree_decomposition.py), so this
program is not a relaxation.

With a running plan (`moves`) the objective includes the cost of loading models on workers (migration_rows.py).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulp

from jellybean_solver.demand.demand import Demand, EdgeKey, Network, Tiers
from jellybean_solver.demand.memory import MemoryLimits, PoolMemory
from jellybean_solver.demand.model_sets import ModelSets, largest_model_sets
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.demand.tree_decomposition import Bag
from jellybean_solver.migration.migration_rows import WorkerGroups, add_least_loads, add_moves_by_set, add_shared_groups
from jellybean_solver.migration.running_plan import LoadCosts
from jellybean_solver.migration.worker_matching import WorkerShare, assign_workers, loads_usd_per_h
from jellybean_solver.milp.pulp_program import FEASIBILITY_TOLERANCE, summed
from jellybean_solver.model.problem import Pool, Sharing
from jellybean_solver.small.tree_bounds import Multipliers

SPARE = 1e-7  # tolerance in workers: 2 workers suffice for a load of 2.0000000001

BagTiers = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`count` workers of a pool that hold equal models. `shares`: operator -> fraction of its requests they serve."""

    pool: str
    shares: Mapping[str, float]
    count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A solved assignment. `cost` and its lower bound `bound` in USD per hour, migration included.

    `bound` < `cost` if optimality is not proven. `uneven`: True if workers of a pool that hold the same operators may
    have different loads, which are still to be balanced.
    """

    cost: float
    bound: float
    bags: tuple[Mapping[BagTiers, float], ...]  # per bag of the network: tiers of its operators -> fraction
    groups: tuple[Group, ...]
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of `assign`: an assignment or None, and a lower bound in USD per hour (inf: proven that none exists)."""

    assignment: Assignment | None
    bound: float

    @property
    def value(self) -> float:
        """The assignment's cost; inf without one."""
        return math.inf if self.assignment is None else self.assignment.cost


@dataclass(frozen=True, slots=True)
class Relaxation:
    """Optimal value in USD per hour (inf: infeasible) and duals of the linear relaxation of an assignment."""

    value: float
    multipliers: Multipliers | None


def improve(
    network: Network,
    demand: Demand,
    *,
    cutoff: float = math.inf,
    gap: float,
    time_limit_s: float | None = None,
    moves: LoadCosts | None = None,
) -> Assignment | None:
    """An assignment within the relative gap `gap`, without a lower bound; None if none was found.

    `cutoff`: upper limit in USD per hour on compute and network cost; with `moves`, migration is not part of it.
    """
    model = _Model(network, demand, moves=moves, matched=False)
    model.minimise_cost()
    model.limit(cutoff)
    outcome = model.solve(integer=True, time_limit_s=time_limit_s, gap=gap)
    if outcome is None or outcome[0] is None:
        return None
    return model.assignment(outcome[0], -math.inf)


def assign(
    network: Network,
    demand: Demand,
    *,
    cutoff: float = math.inf,
    time_limit_s: float | None = None,
    moves: LoadCosts | None = None,
    budget: float = math.inf,
    settings: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> Attempt:
    """The cheapest assignment that costs at most `cutoff` (USD per hour), or the proof that there is none.

    If too many sets of models fit on one worker, only some are tried, and no lower bound is proven. With `moves` the
    cost includes migration from a running plan; `budget` limits the cost without migration.
    """
    model = _Model(network, demand, moves=moves, matched=False, settings=settings)
    model.minimise_cost()
    model.limit(budget)
    outcome = model.solve(integer=True, time_limit_s=time_limit_s, cutoff=cutoff)
    if outcome is None and model.all_largest:
        return Attempt(None, math.inf)
    value, bound = outcome or (None, -math.inf)
    bound = bound if model.all_largest else -math.inf
    found = model.assignment(value, min(value, bound)) if value is not None else None
    if moves is None or (found is not None and found.cost - bound <= SPARE * max(1.0, abs(bound))):
        return Attempt(found, bound if found is None else found.bound)
    matched = _Model(network, demand, moves=moves, settings=settings)
    return _matched(matched, Attempt(found, bound), cutoff=cutoff, budget=budget, time_limit_s=time_limit_s)


def _matched(model: _Model, known: Attempt, *, cutoff: float, budget: float, time_limit_s: float | None) -> Attempt:
    """An assignment cheaper than the known one, or the proof that there is none, within the node limit.

    `model`: program with the migration cost of the best matching of workers; `known`: result of the program that only
    bounds this cost per operator.
    """
    best, bound = known.assignment if known.value <= cutoff else None, known.bound
    if model.all_largest:
        below = cutoff if best is None else best.cost - SPARE * max(1.0, abs(best.cost))
        model.minimise_cost(floor=bound)
        model.limit(budget)
        most_nodes = model.settings.matching_nodes
        outcome = model.solve(integer=True, time_limit_s=time_limit_s, most_nodes=most_nodes, cutoff=below)
        if outcome is None and best is None:
            return Attempt(None, math.inf)
        if outcome is None:
            bound = math.inf  # nothing is cheaper than `best`
        elif outcome[0] is not None:
            best, bound = model.assignment(outcome[0], -math.inf), max(bound, outcome[1])
    if best is None:
        return Attempt(None, bound)
    return Attempt(replace(best, bound=min(best.cost, bound)), min(best.cost, bound))


def relax(network: Network, demand: Demand) -> Relaxation:
    """Solve the linear relaxation of `assign`, without memory limits (fractional workers satisfy any memory limit)."""
    model = _Model(network, demand, packed=False)
    model.minimise_cost()
    outcome = model.solve(integer=False, time_limit_s=None)
    if outcome is None or outcome[0] is None:
        return Relaxation(math.inf, None)
    return Relaxation(outcome[0], model.multipliers())


class _Model(WorkerGroups):
    """The program of one selection.

    `packed`: True if the memory of workers limits which models they hold together.
    `matched`: True for the migration cost of the best matching of workers; False for a lower bound on that cost, from
    counts per operator and pool.
    """

    def __init__(
        self,
        network: Network,
        demand: Demand,
        *,
        packed: bool = True,
        moves: LoadCosts | None = None,
        matched: bool = True,
        settings: AssignmentSettings = DEFAULT_ASSIGNMENT,
    ) -> None:
        super().__init__(demand)
        self.network, self.packed, self.settings = network, packed, settings
        self.moves, self.matched = moves, matched
        self.all_largest = True
        self.fractions = [self._bag_variables(index) for index in range(len(network.bags))]
        self.scarcity_rows: dict[str, Any] = {}
        for index, pool in enumerate(network.pools):
            self._pool(index, pool)
        self._bag_rows()
        self._tier_rows()
        self._link_rows()
        self.cost = self._cost()

    def minimise_cost(self, floor: float = -math.inf) -> None:
        terms = summed(self.cost, *self.moving.values())
        self.problem.setObjective(pulp.LpAffineExpression(terms))
        if math.isfinite(floor):
            self.add(terms, pulp.LpConstraintGE, floor)

    def limit(self, most: float) -> None:
        """Limit the cost without migration to `most` USD per hour."""
        if math.isfinite(most):
            self.add(self.cost, pulp.LpConstraintLE, most)

    def assignment(self, cost: float, bound: float) -> Assignment:
        """The assignment of the solved program; fractions below the feasibility tolerance are dropped."""
        bags = tuple(
            {tiers: float(v.value()) for tiers, v in fractions.items() if v.value() > FEASIBILITY_TOLERANCE}
            for fractions in self.fractions
        )
        groups: list[Group] = []
        served: dict[tuple[str, int], dict[str, float]] = {key: {} for key in self.counts}
        for (name, pool, number), variable in self.shares.items():
            if (share := float(variable.value())) > FEASIBILITY_TOLERANCE:
                served[pool, number][name] = share
        for (pool, number), variable in self.counts.items():
            counted, shares = round(variable.value()), served[pool, number]
            count = counted if shares else 0
            if shares and not self._is_arranged(pool):
                # A program that stopped at a gap, or workers of price 0, may give more workers than needed.
                needed = sum(share * self.demand.workers[name][pool] for name, share in shares.items())
                count = min(counted, max(1, math.ceil(needed - SPARE)))
            cost -= (counted - count) * self.network.usd_per_h[pool]
            if shares:
                groups.append(Group(pool, shares, count))
        if self.moves is None:
            return Assignment(cost, bound, bags, tuple(groups))
        settled = [group for group in groups if not self._is_arranged(group.pool)]
        for pool in self.moving:
            if self._is_arranged(pool):
                singles, usd_per_h = self._arranged(pool, [group for group in groups if group.pool == pool], self.moves)
                settled += singles
                cost += usd_per_h
        return Assignment(cost, bound, bags, tuple(settled), uneven=True)

    def _is_arranged(self, pool: str) -> bool:
        """True if workers of this pool must still be matched to running ones, because the program did not do it."""
        shared = self.network.problem.pool_by_name[pool].sharing is Sharing.SHARED
        return shared and not self.matched and pool in self.moving

    def _arranged(self, pool: str, groups: list[Group], moves: LoadCosts) -> tuple[list[Group], float]:
        """Groups split into single workers matched to running ones, and the USD per hour this adds to the objective."""
        names = [name for name, workers in self.demand.workers.items() if pool in workers]
        price = {name: moves.load_usd_per_h[name, pool] for name in names}
        busy = {name: self.demand.workers[name][pool] for name in names}
        running = Counter(moves.held[pool])
        found: list[WorkerShare] = []
        for group in sorted(groups, key=lambda group: -group.count):
            found += assign_workers(group.shares, group.count, busy, running, price)
        used = [single for single in found if single.shares]
        dearer = loads_usd_per_h(used, price) - sum(value * column.value() for column, value in self.moving[pool])
        dearer -= (len(found) - len(used)) * self.network.usd_per_h[pool]
        return [Group(pool, single.shares, 1) for single in used], dearer

    def multipliers(self) -> Multipliers:
        """Duals of the rows that tie operators to workers, with the sign that makes them non-negative."""
        return Multipliers(
            {key: max(0.0, -row.pi) for key, row in self.load_rows.items()},
            {key: max(0.0, -row.pi) for key, row in self.presence_rows.items()},
            {pool: max(0.0, -row.pi) for pool, row in self.scarcity_rows.items()},
        )

    def _bag_variables(self, index: int) -> dict[BagTiers, Any]:
        bag, (_, edges) = self.network.bags[index], self.network.homes[index]
        domains = [self._tiers(name) for name in bag.operators]
        found: dict[BagTiers, Any] = {}
        for number, tiers in enumerate(itertools.product(*domains)):
            at = dict(zip(bag.operators, tiers, strict=True))
            if all((at[up], at[down]) in self.demand.traffic[up, down] for up, down in edges):
                found[tiers] = self.variable(f"f_{index}_{number}")
        return found

    def _tiers(self, name: str) -> list[str]:
        tiers = dict.fromkeys(self.network.tier_of[pool] for pool in self.demand.workers[name])
        return [tier for tier in tiers if tier in self.demand.entry[name]]

    def _bag_rows(self) -> None:
        for bag, own in zip(self.network.bags, self.fractions, strict=True):
            if bag.parent is None:
                self.add([(variable, 1.0) for variable in own.values()], pulp.LpConstraintEQ, 1.0)
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
        for terms in carried.values():
            if terms:
                self.add(terms, pulp.LpConstraintLE, 1.0)

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
        limits = self.network.memory_limits[pool.name]
        memory = PoolMemory({name: self.demand.memory_of(name, pool.name) for name in names}, limits)
        busy = {name: self.demand.workers[name][pool.name] for name in names}
        moves = self.moves if self.moves is not None and self.moves.paid_in(pool.name, names) else None
        exclusive = pool.sharing is Sharing.EXCLUSIVE
        if moves is not None and self.matched and not exclusive:
            is_exact = add_shared_groups(self, index, pool, memory, busy, moves, self.settings)
            self.all_largest = is_exact and self.all_largest
        else:
            singles = ModelSets(tuple((name,) for name in names), True)
            hosts = singles
            if not exclusive:
                packed = memory if self.packed else replace(memory, limits=MemoryLimits(None))
                hosts = largest_model_sets(packed, self.network.apart, self.settings)
            self.all_largest = self.all_largest and hosts.all_largest
            for number, hosted in enumerate(hosts.sets):
                self.group(index, number, pool, hosted, pool.count)
            if moves is not None and self.matched:
                add_moves_by_set(self, index, pool, hosts.sets, moves)
            elif moves is not None:
                add_least_loads(self, index, pool.name, busy, moves)
        together = [(count, 1.0) for (own, _), count in self.counts.items() if own == pool.name]
        if exclusive or len(together) > 1:
            self.scarcity_rows[pool.name] = self.add(together, pulp.LpConstraintLE, pool.count)

    def _cost(self) -> list[tuple[Any, float]]:
        terms: list[tuple[Any, float]] = []
        for (pool, _), count in self.counts.items():
            terms.append((count, self.network.usd_per_h[pool]))
        for bag, (home, edges), fractions in zip(self.network.bags, self.network.homes, self.fractions, strict=True):
            for tiers, variable in fractions.items():
                at = dict(zip(bag.operators, tiers, strict=True))
                price = sum(self.demand.entry[name][at[name]] for name in home)
                price += sum(self.demand.traffic[up, down][at[up], at[down]] for up, down in edges)
                terms.append((variable, price))
        return terms
