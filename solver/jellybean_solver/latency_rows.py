"""A deadline as rows of the joint program: what every plan that keeps it satisfies.

A plan keeps its p99 latency only if none of its routes needs longer even when nothing waits (`latency.Latency.meets`).
So every (operator, variant, pool, batch) has a time, whatever else the plan does, and along each path of the workflow
the times of what is used and of the links in between stay below the deadline:

    c[o, k]   operator o uses something of time class k, and nothing slower; binary, one class per operator
    t[o]      when o's output is at hand
    sum of y of classes above k <= sum of c of classes above k;
    t[o] >= t[u] + sum_k time[k] c[o, k] + sum_t link_s[t] g[e, v, t] + hop; t[sinks] + hop <= deadline

A class has the time of its fastest member and traffic counts by its share of requests, so no plan is lost.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.demand import EdgeKey, Network, Tiers
from jellybean_solver.latency import jobs, runs
from jellybean_solver.problem import Problem, request_s
from jellybean_solver.program import Indices, Program

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
    """Batch sizes of which none is both slower and dearer than another, pool by pool."""
    problem = network.problem
    planned = problem.operator_by_name[name].variant(variant)
    found: list[Mode] = []
    for pool in network.demand({name: variant}).workers[name]:
        times = problem.times(name, planned, pool)
        least = math.inf
        for size in sorted(times):
            each = request_s(times, size)
            if each < least:
                least = each
                workers = problem.rate_per_s[name] * each / problem.utilisation
                found.append(Mode(pool, size, workers, times[size].mean_s * runs(jobs(visits), size)))
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
        self.by_operator: dict[str, list[Timed]] = {name: [] for name in network.names}
        for one in timed:
            self.by_operator[one.operator].append(one)
        self.visits = visits_per_request(network.problem)
        self.at_hand: dict[str, int] = {}

    def add(self) -> bool:
        hop = self.network.problem.hop_s
        for name in self.network.names:
            ready = int(self.program.add_columns([0.0], self.deadline_s - hop)[0]) if self.deadline_s > hop else -1
            self.at_hand[name] = ready
            classes = self._classes(name)
            if ready < 0 or not classes:
                return False
            self._paths(name, classes)
        return True

    def _classes(self, name: str) -> list[tuple[int, float]]:
        """(column, time) of each class of an operator."""
        own = self.by_operator[name]
        columns = np.concatenate([one.columns for one in own]) if own else np.empty(0, np.int64)
        times = np.array([time for one in own for time in one.job_s])
        late = columns[times > self.deadline_s]
        if len(late):
            never = self.program.add_rows(-math.inf, 0.0, 1)
            self.program.fill(np.repeat(never, len(late)), late, 1.0)
        levels = _levels(times[times <= self.deadline_s])
        if not levels:
            return []
        chosen = self.program.add_columns(np.zeros(len(levels)), 1.0, integer=True)
        one_class = self.program.add_rows(1.0, 1.0, 1)
        self.program.fill(np.repeat(one_class, len(levels)), chosen, 1.0)
        rank = np.array([bisect_right(levels, time) - 1 for time in times])
        for below in range(len(levels) - 1):
            row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
            slower = columns[(rank > below) & (times <= self.deadline_s)]
            self.program.fill([row] * len(slower), slower, 1.0)
            self.program.fill([row] * (len(levels) - below - 1), chosen[below + 1 :], -1.0)
        return [(int(column), level) for column, level in zip(chosen, levels, strict=True)]

    def _paths(self, name: str, classes: Sequence[tuple[int, float]]) -> None:
        for edge in self.network.problem.operator_by_name[name].inputs:
            row = int(self.program.add_rows(-math.inf, 0.0, 1)[0])
            self.program.fill([row], [self.at_hand[name]], -1.0)
            self.program.fill([row] * len(classes), [c for c, _ in classes], [time for _, time in classes])
            if edge.upstream in self.at_hand:
                self.program.fill([row], [self.at_hand[edge.upstream]], 1.0)
                self._crossing((edge.upstream, name), row)
            else:
                self._entry(edge.upstream, name, row)

    def _crossing(self, key: EdgeKey, row: int) -> None:
        upstream = self.network.problem.operator_by_name[key[0]]
        for variant in upstream.variants:
            for tiers, column in self.messages.get((key, variant.name), {}).items():
                seconds = self._link_s(tiers, variant.message_bytes[key[1]], key[1])
                if seconds > 0:
                    self.program.fill([row], [column], [seconds])

    def _entry(self, source: str, name: str, row: int) -> None:
        born = self.network.problem.source_by_name[source]
        for tier in self.network.problem.tiers:
            seconds = self._link_s((born.tier, tier), born.message_bytes, name) + self.network.problem.hop_s
            brought = self.marginal.get((name, tier), [])
            self.program.fill([row] * len(brought), list(brought), [seconds] * len(brought))

    def _link_s(self, tiers: Tiers, message_bytes: float, downstream: str) -> float:
        link = self.network.problem.link_by_tiers.get(tiers) if tiers[0] != tiers[1] else None
        if link is None:
            return 0.0
        bandwidth = link.bandwidth_bytes_per_s
        return link.latency_s + (message_bytes * jobs(self.visits[downstream]) / bandwidth if bandwidth else 0.0)


def _levels(times: np.ndarray) -> list[float]:
    """The least times of at most `CLASSES` classes, evenly spread over what differs."""
    distinct = np.unique(times)
    if len(distinct) > CLASSES:
        marks = np.geomspace(max(distinct[0], 1e-9), max(distinct[-1], 2e-9), CLASSES + 1)[:-1]
        distinct = np.unique([distinct[min(np.searchsorted(distinct, mark), len(distinct) - 1)] for mark in marks])
    return [float(level) for level in distinct]
