"""A plain joint MILP: selection, placement, flows, worker counts and memory in one program, given to HiGHS.

Shares no search code with the solver, only the arithmetic of a problem (`Network`: loads, traffic, prices, bags).

Ratios that depend on variants make rates depend on the selection, so loads and traffic are columns of a scenario: one
choice of the ratios. Without such ratios there is one scenario.

Columns (o operator, v variant, p pool, s scenario, b bag, a tiers of a bag's operators, e edge, t pair of tiers):
    z[o, v]           the selection; binary
    c[o, v, s]        z in the chosen scenario, 0 in the others
    f[b, a, s]        fraction of requests whose operators of bag b sit in tiers a
    g[e, v, t, s]     fraction of requests whose edge e carries v's messages between the tiers t
    n[p, k]           workers of pool p in group k; integer
    y[o, v, p, k, s]  fraction of requests whose operator o runs as v on workers of group k
    h[o, v, p, k]     workers of group k hold v as operator o; sums over v are binary
Groups of a pool: one per operator if it is exclusive; a single one if it is shared and all models fit together; else
one per worker, or, where workers are more than operators, one per operator that leads it, which its workers hold. So
many are enough: shares that are a vertex of the transportation problem between operators and groups form a forest; a
group that is a leaf can join a neighbouring group of its operator, and then each tree has fewer groups than operators,
each below an operator of its own.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from benchmarks.middle.accuracy_rows import add_accuracy
from benchmarks.middle.rows import Rows, Terms, plus
from jellybean_solver import Network, Pool, Problem, Sharing
from jellybean_solver.demand.demand import Demand
from jellybean_solver.small.assignment import Assignment, Group

TOLERANCE = 1e-7  # of rows and integers, as the solver's, so that optima can be compared to 1e-6
EQUAL = 1e-7  # relative: value and bound closer than this are a proof
USED = 1e-7  # a smaller fraction is rounding
THREADS = 2
GIB = 2.0**30

Scenario = Mapping[str, str]  # operator whose variants differ in their ratios -> a variant with the ratios


@dataclass(frozen=True)
class MilpResult:
    """`value` and `bound` in USD per hour; `status`: optimal, gap, time_limit or infeasible. None: nothing found."""

    status: str
    value: float | None
    bound: float
    seconds: float
    selection: Mapping[str, str] | None = None
    assignment: Assignment | None = None


def solve_milp(
    problem: Problem, *, time_limit_s: float = math.inf, gap: float = 0.0, threads: int = THREADS
) -> MilpResult:
    """The cheapest plan to a relative gap, building the program included in the time.

    HiGHS has one number of threads per process: use a process of its own, or the solver's number, 1.
    """
    began = time.monotonic()
    milp = _JointMilp(problem)
    model = milp.highs(gap, threads)
    model.setOptionValue("time_limit", max(0.0, time_limit_s - (time.monotonic() - began)))
    model.run()
    status, info = model.getModelStatus(), model.getInfo()
    seconds = time.monotonic() - began
    if status == highspy.HighsModelStatus.kInfeasible:
        return MilpResult("infeasible", None, math.inf, seconds)
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
        raise RuntimeError(f"HiGHS ended with {model.modelStatusToString(status)}")
    late = status == highspy.HighsModelStatus.kTimeLimit
    bound = float(info.mip_dual_bound)
    if info.primal_solution_status != highspy.kSolutionStatusFeasible:
        return MilpResult("time_limit", None, bound, seconds)
    values = np.array(model.getSolution().col_value)
    selection, assignment = milp.solution(values, float(info.objective_function_value))
    value = assignment.cost
    near = value - bound <= EQUAL * max(1.0, abs(value))
    return MilpResult(
        "optimal" if near else "time_limit" if late else "gap", value, bound, seconds, selection, assignment
    )


class _JointMilp:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.network, self.rows = problem, Network(problem), Rows()
        self.scenarios = list(_scenarios(problem))
        self.networks = [self.network.settled(scenario) for scenario in self.scenarios]
        self.least = [network.demand({}) for network in self.networks]
        self.memory = {  # of models that may and can run: bytes by pool
            (name, variant): {
                pool: own.scarcer for pool, own in self.network.demand({name: variant}).memory[name].items()
            }
            for name, variants in self.network.runnable.items()
            for variant in variants
        }
        self.demand: dict[tuple[str, str, int], Demand] = {}  # operator, variant, scenario
        self.z: dict[tuple[str, str], int] = {}
        self.c: dict[tuple[str, str, int], int] = {}
        self.f: list[list[dict[tuple[str, ...], int]]] = []  # scenario -> bag -> tiers -> column
        self.n: dict[tuple[str, str], int] = {}  # pool, group
        self.y: dict[tuple[str, str, str, str, int], int] = {}
        self.on_link: dict[tuple[str, str], Terms] = {link: [] for link in self.network.bandwidth}
        self._selection()
        for s in range(len(self.scenarios)):
            self.f.append([])
            for index in range(len(self.network.bags)):
                self.f[s].append(self._bag(s, index))
            self._edges(s)
        for pool in self.network.pools:
            self._pool(pool)
        self._meet()
        for terms in self.on_link.values():
            if terms:
                self.rows.row(terms, high=1.0)
        if problem.accuracy_target is not None:
            add_accuracy(self.rows, self.z, problem.accuracy, problem.accuracy_target)
        if problem.slo.budget_usd_per_h is not None:
            terms = [(column, cost) for column, cost in enumerate(self.rows.cost) if cost]
            self.rows.row(terms, high=problem.slo.budget_usd_per_h)

    def highs(self, gap: float, threads: int) -> highspy.Highs:
        """The program, ready to run."""
        model = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("threads", threads),
            ("mip_rel_gap", gap),
            ("mip_abs_gap", 0.0),
            ("primal_feasibility_tolerance", TOLERANCE),
            ("dual_feasibility_tolerance", TOLERANCE),
            ("mip_feasibility_tolerance", TOLERANCE),
        ):
            model.setOptionValue(option, value)
        model.passModel(self.rows.lp())
        return model

    def solution(self, values: np.ndarray, value: float) -> tuple[dict[str, str], Assignment]:
        """The selection, and its assignment as plans are built from it, without workers that are not needed."""
        selection = {name: variant for (name, variant), column in self.z.items() if values[column] > 0.5}
        chosen = max(range(len(self.scenarios)), key=lambda s: sum(values[f] for f in self.f[s][0].values()))
        bags = tuple({a: float(values[f]) for a, f in bag.items() if values[f] > USED} for bag in self.f[chosen])
        shares: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        load: dict[tuple[str, str], float] = defaultdict(float)
        for (name, variant, pool, group, s), column in self.y.items():
            if selection[name] == variant and s == chosen and values[column] > USED:
                shares[pool, group][name] = float(values[column])
                load[pool, group] += values[column] * self.demand[name, variant, s].workers[name][pool]
        groups = [Group(key[0], own, max(1, math.ceil(load[key] - USED))) for key, own in shares.items()]
        paid = sum(round(values[n]) * self.network.usd_per_h[pool] for (pool, _), n in self.n.items())
        needed = sum(group.count * self.network.usd_per_h[group.pool] for group in groups)
        return selection, Assignment(value - paid + needed, bags, tuple(groups))

    def _selection(self) -> None:
        scenarios = range(len(self.scenarios))
        chosen = [self.rows.column() for _ in scenarios]  # integral because z is
        self.rows.equal(plus(chosen), 1.0)
        for name, variants in self.network.runnable.items():
            for variant in variants:
                self.z[name, variant] = self.rows.column(integer=True)
                for s in scenarios:
                    if variant in self.networks[s].runnable[name]:
                        self.c[name, variant, s] = self.rows.column()
                        self.demand[name, variant, s] = self.networks[s].demand({name: variant})
                own = [self.c[name, variant, s] for s in scenarios if (name, variant, s) in self.c]
                self.rows.equal([(self.z[name, variant], -1.0), *plus(own)])
            for s in scenarios:
                own = [self.c[name, variant, s] for variant in variants if (name, variant, s) in self.c]
                self.rows.equal([(chosen[s], -1.0), *plus(own)])
        self.chosen = chosen

    def _bag(self, s: int, index: int) -> dict[tuple[str, ...], int]:
        """Columns f of a bag: those pay for the data of sources. They agree with the parent's."""
        network, demand = self.networks[s], self.least[s]
        bag, (home, edges) = network.bags[index], network.homes[index]
        tiers = [[t for t in self._tiers(name) if t in demand.entry[name]] for name in bag.operators]
        found = {}
        for a in itertools.product(*tiers):
            at = dict(zip(bag.operators, a, strict=True))
            if all((at[up], at[down]) in demand.traffic[up, down] for up, down in edges):
                found[a] = self.rows.column(sum(demand.entry[name][at[name]] for name in home))
                for name in home:
                    for link, sent in network.entry_bytes_per_s(name, at[name]).items():
                        self._carry(link, found[a], sent)
        if bag.parent is None:
            self.rows.equal([(self.chosen[s], -1.0), *plus(list(found.values()))])
            return found
        agreeing: dict[tuple[str, ...], Terms] = defaultdict(list)
        above = network.bags[bag.parent].operators
        for names, table, sign in ((bag.operators, found, 1.0), (above, self.f[s][bag.parent], -1.0)):
            at_separator = [names.index(name) for name in bag.separator]
            for a, column in table.items():
                agreeing[tuple(a[i] for i in at_separator)].append((column, sign))
        for terms in agreeing.values():
            self.rows.equal(terms)
        return found

    def _tiers(self, name: str) -> list[str]:
        pools = {pool for v in self.network.runnable[name] for pool in self.memory[name, v]}
        return [tier for tier in self.problem.tiers if any(self.network.tier_of[pool] == tier for pool in pools)]

    def _carry(self, link: tuple[str, str], column: int, bytes_per_s: float) -> None:
        if link in self.on_link and bytes_per_s > 0:
            self.on_link[link].append((column, bytes_per_s / self.network.bandwidth[link]))

    def _edges(self, s: int) -> None:
        """Columns g: they pay for messages between operators."""
        network = self.networks[s]
        for bag, (_, edges), table in zip(network.bags, network.homes, self.f[s], strict=True):
            for up, down in edges:
                ends = bag.operators.index(up), bag.operators.index(down)
                between: dict[tuple[str, str], Terms] = defaultdict(list)
                for a, column in table.items():
                    between[a[ends[0]], a[ends[1]]].append((column, -1.0))
                for variant in network.runnable[up]:
                    demand = self.demand[up, variant, s]
                    own = []
                    for tiers, terms in between.items():
                        g = self.rows.column(demand.traffic[up, down][tiers])
                        self._carry(tiers, g, demand.sent[up, down])
                        own.append((g, 1.0))
                        terms.append((g, 1.0))
                    self.rows.equal([(self.c[up, variant, s], -1.0), *own])
                for terms in between.values():
                    self.rows.equal(terms)

    def _pool(self, pool: Pool) -> None:
        memory = {key: by_pool[pool.name] for key, by_pool in self.memory.items() if pool.name in by_pool}
        names = list(dict.fromkeys(name for name, _ in memory))
        largest = {name: max(m for (own, _), m in memory.items() if own == name) for name in names}
        if pool.sharing is Sharing.EXCLUSIVE:
            for name in names:
                self._group(pool, name, [key for key in memory if key[0] == name])
        elif pool.memory_bytes is None or sum(largest.values()) <= pool.memory_bytes:
            self._group(pool, "all", list(memory))
        else:
            self._limited(pool, names, memory)
        groups = [column for (own, _), column in self.n.items() if own == pool.name]
        if len(groups) > 1:
            self.rows.row(plus(groups), high=float(pool.count))
        if groups and pool.sharing is Sharing.SHARED and pool.memory_bytes is not None:
            self._memory(pool, groups)

    def _limited(self, pool: Pool, names: Sequence[str], memory: Mapping[tuple[str, str], float]) -> None:
        """Groups of a shared pool whose workers cannot hold all models."""
        if pool.count < len(names):
            workers = [str(number) for number in range(pool.count)]
            for worker in workers:
                self._group(pool, worker, list(memory), most=1.0)
                self._contents(pool, worker, names, memory)
            for first, second in itertools.pairwise(workers):
                self.rows.row([(self.n[pool.name, second], 1.0), (self.n[pool.name, first], -1.0)])
        else:
            for leader in names:
                self._group(pool, leader, list(memory))
                self._contents(pool, leader, names, memory, leader)

    def _memory(self, pool: Pool, groups: Sequence[int]) -> None:
        """Models fill no more memory than all workers have: implied, but not in the linear relaxation.

        An operator's model is on at least as many workers as its requests keep busy, and on one if there are any.
        """
        stored: Terms = [(column, -1.0) for column in groups]
        for (name, variant, own, _, s), y in self.y.items():
            if own == pool.name:
                workers = self.demand[name, variant, s].workers[name][own]
                share = self.memory[name, variant][own] / float(pool.memory_bytes or GIB)
                stored.append((y, max(workers, 1.0) * share))
        self.rows.row(stored)

    def _group(self, pool: Pool, group: str, models: list[tuple[str, str]], most: float = math.inf) -> None:
        """Workers that are enough for what they serve, at least one where they serve anything."""
        n = self.rows.column(self.network.usd_per_h[pool.name], min(most, pool.count), integer=True)
        self.n[pool.name, group] = n
        load: Terms = [(n, -1.0)]
        present: dict[str, Terms] = defaultdict(lambda: [(n, -1.0)])
        for name, variant in models:
            for s in range(len(self.scenarios)):
                if (name, variant, s) in self.c:
                    y = self.y[name, variant, pool.name, group, s] = self.rows.column()
                    load.append((y, self.demand[name, variant, s].workers[name][pool.name]))
                    present[name].append((y, 1.0))
        self.rows.row(load)
        for terms in present.values():
            self.rows.row(terms)

    def _contents(
        self,
        pool: Pool,
        group: str,
        names: Sequence[str],
        memory: Mapping[tuple[str, str], float],
        leader: str | None = None,
    ) -> None:
        """What a group's workers hold fits into their memory, and they serve nothing else."""
        n = self.n[pool.name, group]
        held = {name: self.rows.column(integer=True) for name in names}
        used = n if leader is None else held[leader]
        full: Terms = [(used, -float(pool.memory_bytes or 0.0) / GIB)]
        for name in names:
            of_name: Terms = [(held[name], -1.0)]
            for (own, variant), needed in memory.items():
                if own == name:
                    h = self.rows.column()
                    of_name.append((h, 1.0))
                    full.append((h, needed / GIB))
                    self.rows.row([(h, 1.0), (self.z[name, variant], -1.0)])
                    keys = [(name, variant, pool.name, group, s) for s in range(len(self.scenarios))]
                    self.rows.row([(h, -1.0), *plus([self.y[key] for key in keys if key in self.y])])
            self.rows.equal(of_name)
            self.rows.row([(held[name], 1.0), (n, -1.0)])
            if leader is not None:
                self.rows.row([(held[name], 1.0), (used, -1.0)])
        self.rows.row(full)

    def _meet(self) -> None:
        """All requests are served, in the tiers where the flows are."""
        served: dict[tuple[str, str, int], Terms] = defaultdict(list)
        at: dict[tuple[str, str, int], Terms] = defaultdict(list)
        for (name, variant, pool, _, s), column in self.y.items():
            served[name, variant, s].append((column, 1.0))
            at[name, self.network.tier_of[pool], s].append((column, 1.0))
        for key, column in self.c.items():
            self.rows.equal([(column, -1.0), *served[key]])
        for s, network in enumerate(self.networks):
            for bag, (home, _), table in zip(network.bags, network.homes, self.f[s], strict=True):
                for name in home:
                    where = bag.operators.index(name)
                    for a, column in table.items():
                        at[name, a[where], s].append((column, -1.0))
        for terms in at.values():
            self.rows.equal(terms)


def _scenarios(problem: Problem) -> Iterator[Scenario]:
    """One variant per operator on which ratios depend, of each ratio."""
    classes = []
    for name in problem.varying:
        first: dict[tuple[tuple[str, float], ...], str] = {}
        for variant in problem.operator_by_name[name].variants:
            first.setdefault(tuple(sorted(variant.ratios.items())), variant.name)
        classes.append(list(first.values()))
    for choice in itertools.product(*classes):
        yield dict(zip(problem.varying, choice, strict=True))
