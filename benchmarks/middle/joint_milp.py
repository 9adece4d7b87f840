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
    h[o, v, p, k]     workers of group k hold v as operator o; sums over v are binary
    y[o, v, p, k, s]  fraction of requests whose operator o runs as v on workers of group k
Groups of a pool: one per operator if it is exclusive; a single one if it is shared and all models fit together; else
one per operator that leads it, which its workers hold. So many are enough: shares that are a vertex of the
transportation problem between operators and groups form a forest; a group that is a leaf can join a neighbouring group
of its operator, and then each tree has fewer groups than operators, each below an operator of its own.
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

from benchmarks.middle.rows import Rows, Terms, plus
from jellybean_solver import (
    AccuracyModel,
    EndToEnd,
    Independent,
    Network,
    PerOperator,
    Pool,
    Problem,
    Sharing,
)
from jellybean_solver.demand.demand import (
    Demand,
)
from jellybean_solver.model.multi_workflow import Margins
from jellybean_solver.small.assignment import Assignment, Group

TOLERANCE = 1e-9  # of rows and integers, as the solver's, so that optima can be compared to 1e-6
SLACK = 1e-9  # percent points of accuracy, as the solver's
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
    value = float(info.objective_function_value)
    near = value - bound <= 1e-7 * max(1.0, abs(value))
    values = np.array(model.getSolution().col_value)
    selection, assignment = milp.solution(values, value, bound)
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
            (name, variant): self.network.demand({name: variant}).memory[name]
            for name, variants in self.network.runnable.items()
            for variant in variants
        }
        self.demand: dict[tuple[str, str, int], Demand] = {}  # operator, variant, scenario
        self.z: dict[tuple[str, str], int] = {}
        self.c: dict[tuple[str, str, int], int] = {}
        self.f: list[list[dict[tuple[str, ...], int]]] = []  # scenario -> bag -> tiers -> column
        self.n: dict[tuple[str, str], int] = {}  # pool, group
        self.h: dict[tuple[str, str, str, str], int] = {}  # operator, variant, pool, group
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
            self._accuracy(problem.accuracy, problem.accuracy_target)
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

    def solution(self, values: np.ndarray, value: float, bound: float) -> tuple[dict[str, str], Assignment]:
        """The selection, and its assignment as plans are built from it."""
        selection = {name: variant for (name, variant), column in self.z.items() if values[column] > 0.5}
        chosen = max(range(len(self.scenarios)), key=lambda s: sum(values[f] for f in self.f[s][0].values()))
        bags = tuple({a: float(values[f]) for a, f in bag.items() if values[f] > USED} for bag in self.f[chosen])
        shares: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for (name, variant, pool, group, s), column in self.y.items():
            if selection[name] == variant and s == chosen and values[column] > USED:
                shares[pool, group][name] = float(values[column])
        groups = [Group(pool, own, round(values[self.n[pool, group]])) for (pool, group), own in shares.items()]
        return selection, Assignment(value, bound, bags, tuple(groups))

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
            if names:
                self._group(pool, "all", list(memory))
        else:
            for name in names:
                self._group(pool, name, list(memory))
                self._contents(pool, name, names, memory)
        groups = [column for (own, _), column in self.n.items() if own == pool.name]
        if len(groups) > 1:
            self.rows.row(plus(groups), high=float(pool.count))

    def _group(self, pool: Pool, group: str, models: list[tuple[str, str]]) -> None:
        """Workers that are enough for what they serve, at least one where they serve anything."""
        n = self.rows.column(self.network.usd_per_h[pool.name], float(pool.count), integer=True)
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

    def _contents(self, pool: Pool, leader: str, names: Sequence[str], memory: Mapping[tuple[str, str], float]) -> None:
        """What a group's workers hold fits into their memory, and they serve nothing else."""
        n = self.n[pool.name, leader]
        held = {name: self.rows.column(integer=True) for name in names}
        full: Terms = [(held[leader], -float(pool.memory_bytes or 0.0) / GIB)]
        for name in names:
            of_name: Terms = [(held[name], -1.0)]
            for (own, variant), needed in memory.items():
                if own == name:
                    h = self.h[name, variant, pool.name, leader] = self.rows.column()
                    of_name.append((h, 1.0))
                    full.append((h, needed / GIB))
                    self.rows.row([(h, 1.0), (self.z[name, variant], -1.0)])
                    keys = [(name, variant, pool.name, leader, s) for s in range(len(self.scenarios))]
                    self.rows.row([(h, -1.0), *plus([self.y[key] for key in keys if key in self.y])])
            self.rows.equal(of_name)
            self.rows.row([(held[name], 1.0), (held[leader], -1.0)])
            self.rows.row([(held[name], 1.0), (n, -1.0)])
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

    def _accuracy(self, model: AccuracyModel, target: float) -> None:
        least = target - SLACK
        if isinstance(model, Margins):
            for workflow, own in model.targets.items():
                self._accuracy(model.models[workflow], own + target)
        elif isinstance(model, Independent):
            self._independent(model, least)
        elif isinstance(model, EndToEnd):
            self._end_to_end(model, least)
        elif isinstance(model, PerOperator):
            self._per_operator(model, least)
        else:
            raise TypeError(f"no rows for the accuracy model {type(model).__name__}")

    def _independent(self, model: Independent, least: float) -> None:
        """The logarithm of the product."""
        terms = [
            (column, -math.log(model.table[name][variant] / 100.0))
            for (name, variant), column in self.z.items()
            if name in model.table
        ]
        self.rows.row(terms, high=-math.log(least / 100.0))

    def _end_to_end(self, model: EndToEnd, least: float) -> None:
        """One column per measured selection that is accurate enough; z are its marginals."""
        columns = {row: self.rows.column() for row, accuracy in model.table.items() if accuracy >= least}
        self.rows.equal(plus(list(columns.values())), 1.0)
        for (name, variant), z in self.z.items():
            if name in model.operators:
                where = model.operators.index(name)
                own = [column for row, column in columns.items() if row[where] == variant]
                self.rows.equal([(z, -1.0), *plus(own)])

    def _per_operator(self, model: PerOperator, least: float) -> None:
        """One binary per measured point. Exact for tables that do not fall where inputs rise."""
        output: dict[str, Terms] = {}
        for name in model.order:
            output[name] = []
            needed: dict[str, Terms] = defaultdict(list)
            for variant, points in model.tables[name].items():
                columns = [self.rows.column(integer=True) for _ in points]
                if (name, variant) in self.z:
                    self.rows.equal([(self.z[name, variant], -1.0), *plus(columns)])
                else:
                    self.rows.equal(plus(columns))
                for point, column in zip(points, columns, strict=True):
                    output[name].append((column, point.output))
                    for upstream, reached in zip(model.inputs.get(name, ()), point.inputs, strict=True):
                        needed[upstream].append((column, -reached))
            for upstream, terms in needed.items():
                self.rows.row([*output[upstream], *terms], 0.0, math.inf)
        for name in model.answers:
            self.rows.row(output[name], least, math.inf)


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
