"""A deadline as rows of the joint program: what every plan that keeps it satisfies.

A plan keeps its p99 latency only if a request needs no longer when nothing waits and everything that the plan uses is
at its slowest (`latency.Latency.meets`). So every (operator, variant, pool, batch), and every (edge, variant, tiers),
has a time:

    c[x, k]   operator or edge x uses something of time class k, and nothing slower; binary, one class each
    t[o]      when o's output is at hand
    sum of y (or g) of classes above k <= sum of c of classes above k;
    t[o] >= t[u] + sum_k time[k] c[o, k] + sum_k time[k] c[(u, o), k]; t <= deadline, hops taken off

A class has the time of its fastest member, so no plan is lost.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.demand.demand import EdgeKey, Network, Tiers
from jellybean_solver.latency.estimate import unqueued_s
from jellybean_solver.latency.stations import jobs_at_once
from jellybean_solver.milp.highs_program import Floats, Indices, Program
from jellybean_solver.model.deadline_shares import deadline_share
from jellybean_solver.model.problem import Problem

CLASSES = 8  # per operator; few, so that branching on them ends


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a variant in a pool. `workers`: kept busy by all requests; `job_s`: one request's, unqueued."""

    pool: str
    batch: int
    workers: float
    job_s: float


def visits_per_request(problem: Problem) -> Mapping[str, float]:
    """Runs of each operator per request of its sources."""
    found = {source.name: 1.0 for source in problem.sources}
    for operator in problem.operators:
        edge = operator.inputs[0]
        found[operator.name] = found[edge.upstream] * edge.ratio
    return found


def modes(network: Network, name: str, variant: str, visits: float) -> tuple[Mode, ...]:
    """One per pool that can run the variant, in the batches that a plan uses: they wait for no request."""
    problem = network.problem
    planned = problem.operator_by_name[name].variant(variant)
    found: list[Mode] = []
    for pool, workers in network.demand({name: variant}).workers[name].items():
        times = problem.times(name, planned, pool)
        found.append(Mode(pool, max(times), workers, unqueued_s(times, max(times), jobs_at_once(visits))))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Timed:
    """Columns of one operator's variant, one per mode."""

    operator: str
    columns: Indices
    job_s: Sequence[float]


def add_deadline(
    program: Program,
    network: Network,
    deadline_s: float,
    timed: Sequence[Timed],
    messages: Mapping[tuple[EdgeKey, str], Mapping[Tiers, int]],
    marginal: Mapping[tuple[str, str], Sequence[int]],
) -> bool:
    """Rows as above; False when an operator has nothing that is fast enough."""
    return _Deadline(program, network, deadline_s, timed, messages, marginal).add()


class _Deadline:
    def __init__(
        self,
        program: Program,
        network: Network,
        deadline_s: float,
        timed: Sequence[Timed],
        messages: Mapping[tuple[EdgeKey, str], Mapping[Tiers, int]],
        marginal: Mapping[tuple[str, str], Sequence[int]],
    ) -> None:
        self.program, self.network, self.deadline_s = program, network, deadline_s
        self.messages, self.marginal = messages, marginal
        self.by_operator: dict[str, list[tuple[int, float]]] = {name: [] for name in network.names}
        for one in timed:
            self.by_operator[one.operator] += zip(one.columns.tolist(), one.job_s, strict=True)
        self.visits = visits_per_request(network.problem)
        self.at_hand: dict[str, int] = {}
        self.one = -1  # a column that is 1

    def add(self) -> bool:
        for name in self.network.names:
            share = deadline_share(self.network.problem, name)
            if share is None:
                continue
            left_s = share * self.deadline_s - 2.0 * self.network.problem.hop_s
            if left_s <= 0:
                return False
            self.at_hand[name] = int(self.program.add_columns([0.0], left_s)[0])
            own = self._classes(self.by_operator[name], left_s)
            if not own:
                return False
            for edge in self.network.problem.operator_by_name[name].inputs:
                inner = edge.upstream in self.at_hand
                flows = self._flows((edge.upstream, name)) if inner else self._entry(edge.upstream, name)
                row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
                terms = [(self.at_hand[name], -1.0), *own, *self._classes(flows, left_s)]
                terms += [(self.at_hand[edge.upstream], 1.0)] if inner else []
                self.program.fill([row] * len(terms), [c for c, _ in terms], [value for _, value in terms])
        return True

    def _classes(self, timed: Sequence[tuple[int, float]], left_s: float) -> list[tuple[int, float]]:
        """(column, time) of each class of what takes these times; empty where nothing is in time."""
        columns, times = np.array([c for c, _ in timed], np.int64), np.array([time for _, time in timed])
        late = columns[times > left_s]
        if len(late):
            never = self.program.add_rows(-math.inf, 0.0, 1)
            self.program.fill(np.repeat(never, len(late)), late, 1.0)
        levels = _levels(times[times <= left_s])
        if len(levels) < 2:
            return [self._constant(level) for level in levels]
        chosen = self.program.add_columns(np.zeros(len(levels)), 1.0, integer=True)
        one_class = self.program.add_rows(1.0, 1.0, 1)
        self.program.fill(np.repeat(one_class, len(levels)), chosen, 1.0)
        rank = np.array([bisect_right(levels, time) - 1 for time in times])
        for below in range(len(levels) - 1):
            row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
            slower = columns[(rank > below) & (times <= left_s)]
            self.program.fill([row] * len(slower), slower, 1.0)
            self.program.fill([row] * (len(levels) - below - 1), chosen[below + 1 :], -1.0)
        return [(int(column), level) for column, level in zip(chosen, levels, strict=True)]

    def _constant(self, seconds: float) -> tuple[int, float]:
        if self.one < 0:
            self.one = int(self.program.add_columns([0.0], 1.0)[0])
            fixed = self.program.add_rows(1.0, 1.0, 1)
            self.program.fill(fixed, [self.one], 1.0)
        return self.one, seconds

    def _flows(self, key: EdgeKey) -> list[tuple[int, float]]:
        upstream = self.network.problem.operator_by_name[key[0]]
        return [
            (column, self._link_s(tiers, variant.message_bytes[key[1]], key[1]))
            for variant in upstream.variants
            for tiers, column in self.messages.get((key, variant.name), {}).items()
        ]

    def _entry(self, source: str, name: str) -> list[tuple[int, float]]:
        born = self.network.problem.source_by_name[source]
        return [
            (column, self._link_s((born.tier, tier), born.message_bytes, name))
            for tier in self.network.problem.tiers
            if self.network.problem.can_flow(born.tier, tier)
            for column in self.marginal.get((name, tier), [])
        ]

    def _link_s(self, tiers: Tiers, message_bytes: float, downstream: str) -> float:
        return link_s(self.network.problem, tiers, message_bytes * jobs_at_once(self.visits[downstream]))


def link_s(problem: Problem, tiers: Tiers, sent_bytes: float) -> float:
    """Seconds from tier to tier when the link is free; 0 inside one."""
    if tiers[0] == tiers[1]:
        return 0.0
    link = problem.link_by_tiers[tiers]
    return link.latency_s + (sent_bytes / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)


def _levels(times: Floats) -> list[float]:
    """The least times of at most `CLASSES` classes, the least of all among them, evenly spread over what differs."""
    distinct = np.unique(times)
    if len(distinct) > CLASSES:
        some = distinct[distinct > 0.0]
        marks = np.geomspace(some[0], some[-1], CLASSES)[:-1]
        distinct = np.unique([distinct[0], *some[np.searchsorted(some, marks * (1.0 - 1e-9))]])
    return [float(level) for level in distinct]
