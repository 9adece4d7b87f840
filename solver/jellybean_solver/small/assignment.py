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

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Demand, Network
from jellybean_solver.demand.memory import MemoryLimits, PoolMemory
from jellybean_solver.demand.model_sets import ModelSets, largest_model_sets
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.joint.flow_rows import BagTiers, add_flows, entry_shares
from jellybean_solver.migration.migration_rows import WorkerGroups, add_least_loads, add_moves_by_set, add_shared_groups
from jellybean_solver.migration.running_plan import LoadCosts
from jellybean_solver.migration.worker_matching import WorkerShare, assign_workers, loads_usd_per_h
from jellybean_solver.milp.highs_program import FEASIBILITY_TOLERANCE, ProgramSolution, SolveLimits
from jellybean_solver.milp.pulp_problem import solve_with_pulp
from jellybean_solver.milp.warm_lp import Linear, Optimum
from jellybean_solver.model.problem import Pool, Sharing
from jellybean_solver.outcome import Clock, is_gap_closed
from jellybean_solver.small.tree_bounds import Multipliers

SPARE = 1e-7  # tolerance in workers: 2 workers suffice for a load of 2.0000000001


@dataclass(frozen=True, slots=True)
class Group:
    """`count` workers of a pool that hold equal models. `shares`: operator -> fraction of its requests they serve."""

    pool: str
    shares: Mapping[str, float]
    count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A solved assignment. `cost`: in USD per hour, migration included.

    `uneven`: True if workers of a pool that hold the same operators may have different loads, which are still to be
    balanced.
    """

    cost: float
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


def assign(
    network: Network,
    demand: Demand,
    *,
    cutoff: float = math.inf,
    gap: float = 0.0,
    time_limit_s: float | None = None,
    moves: LoadCosts | None = None,
    budget: float = math.inf,
    settings: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> Attempt:
    """The cheapest assignment that costs at most `cutoff` (USD per hour), or the proof that there is none.

    If too many sets of models fit on one worker, only some are tried, and no lower bound is proven. With `moves` the
    cost includes migration from a running plan; `budget` limits the cost without migration. The first program then
    bounds migration per operator; the second, if that proves too little, has the cost of the best matching of workers.
    With a relative `gap` there is no second one.
    """
    model = _Model(network, demand, moves=moves, matched=False, settings=settings, budget=budget)
    point = model.solve(SolveLimits(gap, time_limit_s, cutoff))
    bound = point.bound if model.all_largest else -math.inf
    best = model.assignment(point)
    is_proven = best is not None and is_gap_closed(best.cost, bound, SPARE)
    if moves is not None and gap == 0.0 and bound < math.inf and not is_proven:
        best = best if best is not None and best.cost <= cutoff else None
        matched = _Model(network, demand, moves=moves, settings=settings, budget=budget, least=bound)
        if matched.all_largest:
            below = cutoff if best is None else best.cost - SPARE * max(1.0, abs(best.cost))
            point = matched.solve(SolveLimits(0.0, time_limit_s, below, settings.matching_nodes))
            bound = max(bound, point.bound)  # inf: nothing is cheaper than `best`
            best = matched.assignment(point) or best
    return Attempt(best, bound if best is None else min(best.cost, bound))


def relax(network: Network, demand: Demand) -> Relaxation:
    """Solve the linear relaxation of `assign`, without memory limits (fractional workers satisfy any memory limit)."""
    model = _Model(network, demand, packed=False)
    optimum = Linear(model.program, Clock()).solve()
    return Relaxation(math.inf, None) if optimum is None else Relaxation(optimum.value, model.multipliers(optimum))


class _Model(WorkerGroups):
    """The program of one selection.

    `packed`: True if the memory of workers limits which models they hold together. `budget`: most USD per hour, without
    migration; `least`: lower bound on the objective.
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
        budget: float = math.inf,
        least: float = -math.inf,
    ) -> None:
        super().__init__(demand, network.usd_per_h)
        self.network, self.packed, self.settings = network, packed, settings
        self.moves, self.matched = moves, matched
        self.all_largest = True
        self.arranged: dict[str, LoadCosts] = {}  # pools whose workers are matched to running ones after the solve
        self.flows = add_flows(self.program, network, demand)
        self.scarcity_rows: dict[str, int] = {}
        for pool in network.pools:
            self._pool(pool)
        self._tier_rows()
        self._traffic()
        self.program.limit_cost(budget)
        for costs in self.moving.values():
            self.program.add_cost([*costs], [*costs.values()])
        self.program.limit_cost(least=least)

    def solve(self, limits: SolveLimits) -> ProgramSolution:
        """The best point within the cutoff; its bound is inf if it is proven that there is none."""
        cutoff = limits.cutoff
        if math.isfinite(cutoff):
            cutoff += FEASIBILITY_TOLERANCE * max(1.0, abs(cutoff))
        point = solve_with_pulp(self.program, replace(limits, cutoff=cutoff))
        if point.value <= cutoff:
            return point
        return ProgramSolution(None, math.inf, math.inf if point.bound > cutoff else point.bound)

    def assignment(self, point: ProgramSolution) -> Assignment | None:
        """The assignment of a solution, if it has a point; fractions below the feasibility tolerance are dropped."""
        if point.values is None:
            return None
        values, cost = point.values.tolist(), point.value
        served: dict[tuple[str, int], dict[str, float]] = {key: {} for key in self.counts}
        for (name, pool, number), column in self.shares.items():
            if values[column] > FEASIBILITY_TOLERANCE:
                served[pool, number][name] = values[column]
        groups: list[Group] = []
        for (pool, number), column in self.counts.items():
            counted, shares = round(values[column]), served[pool, number]
            count = counted if shares else 0
            if shares and pool not in self.arranged:
                # A program that stopped at a gap, or workers of price 0, may give more workers than needed.
                needed = sum(share * self.demand.workers[name][pool] for name, share in shares.items())
                count = min(counted, max(1, math.ceil(needed - SPARE)))
            cost -= (counted - count) * self.network.usd_per_h[pool]
            if shares:
                groups.append(Group(pool, shares, count))
        for pool, moves in self.arranged.items():
            singles, usd_per_h = self._arranged(pool, [group for group in groups if group.pool == pool], moves)
            groups = [group for group in groups if group.pool != pool] + singles
            cost += usd_per_h - sum(price * values[column] for column, price in self.moving[pool].items())
        return Assignment(cost, self.flows.at(point.values), tuple(groups), uneven=self.moves is not None)

    def _arranged(self, pool: str, groups: list[Group], moves: LoadCosts) -> tuple[list[Group], float]:
        """Groups split into single workers matched to running ones, and the USD per hour that this adds."""
        names = [name for name, workers in self.demand.workers.items() if pool in workers]
        price = {name: moves.load_usd_per_h[name, pool] for name in names}
        busy = {name: self.demand.workers[name][pool] for name in names}
        running = Counter(moves.held[pool])
        found: list[WorkerShare] = []
        for group in sorted(groups, key=lambda group: -group.count):
            found += assign_workers(group.shares, group.count, busy, running, price)
        used = [single for single in found if single.shares]
        dearer = loads_usd_per_h(used, price) - (len(found) - len(used)) * self.network.usd_per_h[pool]
        return [Group(pool, single.shares, 1) for single in used], dearer

    def multipliers(self, optimum: Optimum) -> Multipliers:
        """Duals of the rows that tie operators to workers, with the sign that makes them non-negative."""
        duals = [max(0.0, -dual) for dual in optimum.duals.tolist()]
        return Multipliers(
            {key: duals[row] for key, row in self.load_rows.items()},
            {key: duals[row] for key, row in self.presence_rows.items()},
            {pool: duals[row] for pool, row in self.scarcity_rows.items()},
        )

    def _tier_rows(self) -> None:
        """An operator's workers in a tier serve what its flows bring there."""
        rows = {place: self.program.row(0.0, 0.0, columns, -1.0) for place, columns in self.flows.marginal.items()}
        for (name, pool, _), column in self.shares.items():
            place = name, self.network.tier_of[pool]
            if place not in rows:
                rows[place] = self.program.row(0.0, 0.0)
            self.program.fill([rows[place]], [column], 1.0)

    def _traffic(self) -> None:
        """Prices of traffic between operators, and rows that keep limited links within their bandwidth."""
        carried, priced = entry_shares(self.network, self.flows), dict[int, float]()
        for key, between in self.flows.between.items():
            for tiers, columns in between.items():
                for column in columns:
                    priced[column] = priced.get(column, 0.0) + self.demand.traffic[key][tiers]
                if tiers in carried:
                    share = self.demand.sent[key] / self.network.bandwidth[tiers]
                    carried[tiers] += [(column, share) for column in columns]
        self.program.add_cost([*priced], [*priced.values()])
        for terms in carried.values():
            if terms:
                self.program.row(-math.inf, 1.0, *zip(*terms, strict=True))

    def _pool(self, pool: Pool) -> None:
        names = [name for name in self.network.names if pool.name in self.demand.workers[name]]
        if not names:
            return
        limits = self.network.memory_limits[pool.name]
        memory = PoolMemory({name: self.demand.memory[name][pool.name] for name in names}, limits)
        busy = {name: self.demand.workers[name][pool.name] for name in names}
        moves = self.moves if self.moves is not None and self.moves.paid_in(pool.name, names) else None
        exclusive = pool.sharing is Sharing.EXCLUSIVE
        if moves is not None and self.matched and not exclusive:
            is_exact = add_shared_groups(self, pool, memory, busy, moves, self.settings)
            self.all_largest = is_exact and self.all_largest
        else:
            singles = ModelSets(tuple((name,) for name in names), True)
            hosts = singles
            if not exclusive:
                packed = memory if self.packed else replace(memory, limits=MemoryLimits(None))
                hosts = largest_model_sets(packed, self.network.apart, self.settings)
            self.all_largest = self.all_largest and hosts.all_largest
            for number, hosted in enumerate(hosts.sets):
                self.group(number, pool.name, hosted, pool.count)
            if moves is not None and self.matched:
                add_moves_by_set(self, pool.name, hosts.sets, moves)
            elif moves is not None:
                add_least_loads(self, pool.name, busy, moves)
                if not exclusive:
                    self.arranged[pool.name] = moves
        together = [count for (own, _), count in self.counts.items() if own == pool.name]
        if exclusive or len(together) > 1:
            self.scarcity_rows[pool.name] = self.program.row(-math.inf, pool.count, together)
