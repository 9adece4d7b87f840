"""The program that mixes selections: shares of requests by way, and whole workers by operator and variant.

Columns:
    x[w]        fraction of requests that take way w (ways.py)
    q[i, p, h]  requests of instance i = (operator, variant) on workers of pool p that hold the instances h, as a
                fraction of the largest rate that the operator has on any way
    n[p, h]     workers of pool p that hold h; integer
Rows:
    sum_w x[w] = 1; sum_{p in t, h} q[i, p, h] = sum of x[w] times rate, over the ways with i in tier t;
    sum_i workers[i, p] q[i, p, h] <= n[p, h]; q[i, p, h] <= n[p, h]; sum_h n[p, h] <= count;
    with a single selection z[s], binary: the ways of s have the share z[s]; n[p, h] is 0 or at least so many;
    traffic within the bandwidth of each link; sum_w accuracy[w] x[w] >= the mean; the cost within the budget.
Batch sizes and utilisations are given (modes.py). An exclusive worker holds one instance. A worker runs at most one
variant of an operator, so that the worker tells the variant. For shared workers `held` None leaves the sets h out: all
instances of a pool share one count, a relaxation that is smaller; with `held`, the sets that it lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.milp.highs_program import Program, ProgramSolution, SolveLimits
from jellybean_solver.milp.pulp_program import FEASIBILITY_TOLERANCE
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.mixture.ways import Instance, Way, WayTable, instances_of
from jellybean_solver.model.problem import Pool, Sharing

Held = tuple[Instance, ...]
HeldByPool = Mapping[str, Sequence[Held]]  # shared pool -> sets of instances that one worker may hold
TIE = 0.01  # points of accuracy that all workers together weigh where it is maximised: of alike plans the cheapest


@dataclass(frozen=True, slots=True)
class Goal:
    """What the program does: minimise the cost, or with `most_accurate` maximise the mean accuracy.

    `mean`: least mean accuracy in percent; `budget`: most USD per hour. `most_usd_per_h`: of any plan.
    `single`: all requests get one selection. `least_workers`: of workers that hold the same instances, if any.
    """

    most_accurate: bool
    mean: float | None
    budget: float = math.inf
    most_usd_per_h: float = math.inf
    single: bool = False
    least_workers: int = 1

    @property
    def points_per_usd(self) -> float:
        """Weight of the cost where the accuracy is maximised, in percent points per USD per hour."""
        return TIE / self.most_usd_per_h if self.most_usd_per_h > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Seats:
    """`count` workers of a pool that hold the same instances. `served`: instance -> requests per second, all sites.

    `batches`: instance -> the largest run.
    """

    pool: str
    served: Mapping[Instance, float]
    count: int
    batches: Mapping[Instance, int]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A solution: the share of each way that is taken, and the workers. `bound`: on what the goal minimises."""

    ways: tuple[tuple[Way, float], ...]
    seats: tuple[Seats, ...]
    bound: float


class MixProgram:
    """The program of some ways for a goal."""

    def __init__(
        self,
        table: WayTable,
        goal: Goal,
        held: HeldByPool | None = None,
        modes: Modes = NO_LIMITS,
    ) -> None:
        self.network, self.ways, self.most = table.network, table.ways, table.most
        self.goal, self.modes = goal, modes
        network, ways = table.network, table.ways
        self.program = Program()
        self.taken = self.program.add_columns([way.usd_per_h for way in ways], 1.0)
        self.served: dict[tuple[Instance, str, Held], int] = {}
        self.batch: dict[tuple[Instance, str], int] = {}
        self.counts: dict[tuple[str, Held], int] = {}
        everything = self.program.add_rows(1.0, 1.0, 1)
        self.program.fill(np.repeat(everything, len(ways)), self.taken, 1.0)
        self.busy = {key: workers * self._factor(*key) for key, workers in table.busy.items()}
        for pool in network.pools:
            self._pool(pool, None if held is None else held.get(pool.name))
        self._meet()
        self._links()
        self._goal()
        if goal.single:
            self._single()

    def solve(self, limits: SolveLimits) -> Mixture | None:
        """The best mixture found; None if none was found, or proven that there is none (`proven`)."""
        answer = self.program.solve(limits)
        self.proven = answer.values is None and math.isinf(answer.bound)
        self.bound = answer.bound
        return None if answer.values is None else self._mixture(answer)

    def relaxed_bound(self) -> float:
        """Lower bound without integrality; inf if there is no point."""
        return self.program.solve(relaxed=True).bound

    def _mixture(self, answer: ProgramSolution) -> Mixture:
        values = answer.values if answer.values is not None else np.zeros(self.program.columns)
        ways = tuple(
            (way, float(values[column]))
            for way, column in zip(self.ways, self.taken.tolist(), strict=True)
            if values[column] > FEASIBILITY_TOLERANCE
        )
        by_group: dict[tuple[str, Held], dict[Instance, float]] = {}
        for (instance, pool, held), column in self.served.items():
            if values[column] > FEASIBILITY_TOLERANCE:
                by_group.setdefault((pool, held), {})[instance] = float(values[column]) * self.most[instance[0]]
        seats = tuple(
            Seats(
                pool,
                served,
                round(values[self.counts[pool, held]]),
                {instance: self.batch[instance, pool] for instance in served},
            )
            for (pool, held), served in by_group.items()
        )
        return Mixture(ways, seats, answer.bound)

    def _factor(self, instance: Instance, pool: str) -> float:
        """Workers in the modes relative to those without limits."""
        name, variant = instance
        times = self.network.problem.times(name, self.network.problem.operator_by_name[name].variant(variant), pool)
        self.batch[instance, pool], factor = self.modes.of(name, times)
        return factor

    def _pool(self, pool: Pool, sets: Sequence[Held] | None) -> None:
        instances = [instance for instance, own in self.busy if own == pool.name]
        if not instances:
            return
        price = self.network.usd_per_h[pool.name]
        if pool.sharing is Sharing.EXCLUSIVE:
            groups: Sequence[Held] = [(instance,) for instance in instances]
        else:
            groups = [tuple(instances)] if sets is None else sets
        counts = self.program.add_columns(np.full(len(groups), price), float(pool.count), integer=True)
        together = self.program.add_rows(-math.inf, float(pool.count), 1)
        self.program.fill(np.repeat(together, len(groups)), counts, 1.0)
        relaxed = sets is None and pool.sharing is Sharing.SHARED
        for held, count in zip(groups, counts.tolist(), strict=True):
            self._group(pool, held, count, relaxed=relaxed)

    def _group(self, pool: Pool, held: Held, count: int, *, relaxed: bool) -> None:
        program = self.program
        self.counts[pool.name, held] = count
        own = [instance for instance in held if (instance, pool.name) in self.busy]
        columns = program.add_columns(np.zeros(len(own)), 1.0).tolist()
        load = int(program.add_rows(-math.inf, 0.0, 1)[0])
        program.fill([load], [count], -1.0)
        present = program.add_rows(-math.inf, 0.0, len(own)).tolist()
        for instance, column, row in zip(own, columns, present, strict=True):
            self.served[instance, pool.name, held] = column
            program.fill([load, row, row], [column, column, count], [self.busy[instance, pool.name], 1.0, -1.0])
        if self.goal.least_workers > 1:
            self._enough(count, columns, float(pool.count))
        limit = self.network.memory_limits[pool.name].scarcer
        if relaxed and limit:  # valid: each worker that an instance keeps busy holds its whole model
            full = int(program.add_rows(-math.inf, 0.0, 1)[0])
            program.fill([full], [count], -1.0)
            for instance, column in zip(own, columns, strict=True):
                stored = self._stored(instance, pool.name) / limit * max(1.0, self.busy[instance, pool.name])
                program.fill([full], [column], stored)

    def _single(self) -> None:
        """Rows: all requests take ways of one selection, with a binary column for each."""
        by_selection: dict[tuple[str, ...], list[int]] = {}
        for way, column in zip(self.ways, self.taken.tolist(), strict=True):
            by_selection.setdefault(way.variants, []).append(column)
        if len(by_selection) == 1:
            return
        made = self.program.add_columns(np.zeros(len(by_selection)), 1.0, integer=True)
        rows = self.program.add_rows(0.0, 0.0, len(by_selection)).tolist()
        self.program.fill(rows, made, -1.0)
        for row, columns in zip(rows, by_selection.values(), strict=True):
            self.program.fill([row] * len(columns), columns, 1.0)

    def _enough(self, count: int, served: Sequence[int], most: float) -> None:
        """Rows: workers that serve anything are at least `least_workers`."""
        used = int(self.program.add_columns([0.0], 1.0, integer=True)[0])
        least, below = self.program.add_rows(-math.inf, 0.0, 2).tolist()
        self.program.fill([least, least], [used, count], [float(self.goal.least_workers), -1.0])
        self.program.fill([below, below], [count, used], [1.0, -most])
        rows = self.program.add_rows(-math.inf, 0.0, len(served)).tolist()
        self.program.fill(rows, served, 1.0)
        self.program.fill(rows, [used] * len(rows), -1.0)

    def _stored(self, instance: Instance, pool: str) -> float:
        name, variant = instance
        return self.network.demand({name: variant}).memory[name][pool]

    def _meet(self) -> None:
        """Rows: what the pools of a tier serve of an instance is what the ways bring there."""
        rows: dict[tuple[Instance, str], int] = {}

        def row(instance: Instance, tier: str) -> int:
            if (instance, tier) not in rows:
                rows[instance, tier] = int(self.program.add_rows(0.0, 0.0, 1)[0])
            return rows[instance, tier]

        for (instance, pool, _), column in self.served.items():
            self.program.fill([row(instance, self.network.tier_of[pool])], [column], 1.0)
        at, columns, values = [], [], []
        for way, column in zip(self.ways, self.taken.tolist(), strict=True):
            for instance, tier, rate in instances_of(way, self.network.names):
                at.append(row(instance, tier))
                columns.append(column)
                values.append(-rate / self.most[instance[0]])
        self.program.fill(at, columns, values)

    def _links(self) -> None:
        for link, bandwidth in self.network.bandwidth.items():
            used = [
                (column, way.sent[link] / bandwidth)
                for way, column in zip(self.ways, self.taken.tolist(), strict=True)
                if link in way.sent
            ]
            if used:
                row = int(self.program.add_rows(-math.inf, 1.0, 1)[0])
                self.program.fill([row] * len(used), [column for column, _ in used], [share for _, share in used])

    def _goal(self) -> None:
        accuracies = np.array([way.accuracy for way in self.ways])
        if self.goal.mean is not None:
            row = int(self.program.add_rows(self.goal.mean, math.inf, 1)[0])
            self.program.fill([row] * len(self.ways), self.taken, accuracies)
        self.program.limit_cost(self.goal.budget)
        if self.goal.most_accurate:
            self.program.cost = [self.goal.points_per_usd * costs for costs in self.program.cost]
            self.program.cost[0] = self.program.cost[0] + 100.0 - accuracies
