"""Cuts a model into pipeline stages so that the slowest stage is as fast as can be; stages may be replicated.

The dynamic programs of PipeDream (Narayanan et al. 2019, section 3.1), over all down-sets of the layer graph, so exact
for DAGs too, and level by level of a hierarchy (inside a machine, then between). A stage of m replicas takes the time
of its layers and of summing its gradients, over m; a cut takes what crosses it, shared by the receiving replicas. At an
outer level a replica is a whole inner group: the time of the layers is that of the group's own best split, and its
workers share the sum of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.layers import MOST_CUTS, LayerGraph, cuts

Floats = npt.NDArray[np.float64]
# Seconds of the layers, parameter bytes per worker of a group, replicas, bandwidth -> seconds per micro-batch.
StageCost = Callable[[Floats, Floats, int, float], Floats]
MOST_WORKERS = 4096


def summed_cost(seconds: Floats, parameter_bytes: Floats, replicas: int, bandwidth: float) -> Floats:
    """Compute, then sum gradients: (T + 4 (m - 1) W / (B m)) / m, the cost model of PipeDream's optimizer."""
    return (seconds + 4.0 * (replicas - 1) * parameter_bytes / (bandwidth * replicas)) / replicas


def paper_cost(seconds: Floats, parameter_bytes: Floats, replicas: int, bandwidth: float) -> Floats:
    """Compute while gradients are summed: max(T, 2 (m - 1) W / B) / m (section 3.1)."""
    return np.maximum(seconds, 2.0 * (replicas - 1) * parameter_bytes / bandwidth) / replicas


OBJECTIVES: dict[str, StageCost] = {"slowest-stage": summed_cost, "pipedream-paper": paper_cost}


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the topology: how many of the level below make one of this, and bytes per second between them."""

    count: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Stage:
    """`layers` by place in the graph. `replicas` of the next lower level's groups, each of which holds `inside`.

    `time_s`: per micro-batch, gradient sums included. `inside` is empty at the lowest level.
    """

    layers: tuple[int, ...]
    replicas: int
    time_s: float
    inside: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """The best partition. `bound_s`: none is faster; below `objective_s` only where not all cuts were looked at."""

    objective_s: float
    bound_s: float
    stages: tuple[Stage, ...]
    cuts: int

    @property
    def gap(self) -> float:
        return (self.objective_s - self.bound_s) / self.objective_s if self.objective_s > 0 else 0.0


def partition(
    graph: LayerGraph, levels: Sequence[Level], *, objective: str = "slowest-stage", most_cuts: int = MOST_CUTS
) -> Partition:
    """The stages of least time over all workers of `levels` (lowest first). SolverError for what cannot be asked."""
    _check(graph, levels, objective)
    sets, complete = cuts(graph, most_cuts)
    program = _Program(graph, sets, levels, OBJECTIVES[objective])
    best, stages = program.solve()
    bound = best if complete else min(best, _bound(graph, levels))
    return Partition(best, bound, stages, len(sets))


def _check(graph: LayerGraph, levels: Sequence[Level], objective: str) -> None:
    if objective not in OBJECTIVES:
        raise SolverError(f"no objective is called {objective}; there are {', '.join(OBJECTIVES)}")
    if not graph.layers:
        raise SolverError("the model has no layers")
    workers = math.prod(level.count for level in levels)
    if not levels or min(level.count for level in levels) < 1 or workers > MOST_WORKERS:
        raise SolverError(f"{workers} workers: there must be 1 to {MOST_WORKERS}, at least one at each level")
    if not all(0 < level.bandwidth < math.inf for level in levels):
        raise SolverError("a bandwidth must be above 0 bytes per second")


def _bound(graph: LayerGraph, levels: Sequence[Level]) -> float:
    """All work spread evenly over all workers."""
    return sum(layer.both_s for layer in graph.layers) / math.prod(level.count for level in levels)


@dataclass(frozen=True, slots=True)
class _Choice:
    """How a level splits what lies between two cuts: (start, end, replicas) of each stage."""

    time_s: float
    parts: tuple[tuple[int, int, int], ...]


class _Program:
    """Spans are pairs of cuts (i, j) with i inside j; all matrices are over them, infinite elsewhere."""

    def __init__(self, graph: LayerGraph, sets: Sequence[int], levels: Sequence[Level], stage_cost: StageCost) -> None:
        self.sets, self.levels, self.stage_cost = sets, levels, stage_cost
        self.layers = range(len(graph.layers))
        held = np.array([[cut >> index & 1 for index in self.layers] for cut in sets], dtype=np.float64)
        seconds = held @ np.array([layer.both_s for layer in graph.layers])
        parameters = held @ np.array([layer.parameter_bytes for layer in graph.layers])
        self.parameters = parameters[None, :] - parameters[:, None]
        sizes = held.sum(axis=1)
        inside = (held @ held.T == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
        self.outside = ~inside
        self.crossing = np.array([graph.crossing_bytes(cut) for cut in sets])
        self.spans = np.where(inside, seconds[None, :] - seconds[:, None], np.inf)

    def solve(self) -> tuple[float, tuple[Stage, ...]]:
        below: list[tuple[Floats, dict[tuple[int, int], _Choice]]] = []
        times = self.spans
        for number, level in enumerate(self.levels):
            costs = self._costs(times, number)
            last = number == len(self.levels) - 1
            starts = [0] if last else range(len(self.sets) - 1)
            table = np.full_like(self.spans, np.inf)
            choices: dict[tuple[int, int], _Choice] = {}
            for start in starts:
                ends = [len(self.sets) - 1] if last else np.flatnonzero(~self.outside[start]).tolist()
                for end, choice in self._from(start, ends, costs, level).items():
                    table[start, end] = choice.time_s
                    choices[start, end] = choice
            below.append((table, choices))
            times = table
        whole = (0, len(self.sets) - 1)
        return below[-1][1][whole].time_s, self._stages(whole, len(self.levels) - 1, [choices for _, choices in below])

    def _costs(self, times: Floats, number: int) -> tuple[Floats, ...]:
        """By replicas (from 1): seconds of a span as one stage, the cut before it left out."""
        level, own = self.levels[number], self.parameters / self._inner(number)
        with np.errstate(invalid="ignore"):
            found = [self.stage_cost(times, own, m, level.bandwidth) for m in range(1, level.count + 1)]
        return tuple(np.where(self.outside, np.inf, costs) for costs in found)

    def _inner(self, number: int) -> int:
        """Workers of one group below a level."""
        return math.prod(level.count for level in self.levels[:number])

    def _from(self, start: int, ends: Sequence[int], costs: tuple[Floats, ...], level: Level) -> dict[int, _Choice]:
        """The best split from `start` to each end, with at most all of the level's workers."""
        size = len(self.sets)
        best = np.full((level.count + 1, size), np.inf)
        best[0, start] = 0.0
        origin: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        whole = np.empty_like(self.spans)
        for used in range(1, level.count + 1):
            befores, replicas = np.zeros(size, np.int64), np.zeros(size, np.int64)
            for m in range(1, used + 1):
                before = best[used - m]
                if not np.isfinite(before).any():
                    continue
                cut = 2.0 * self.crossing / (level.bandwidth * m)
                cut[start] = 0.0
                np.maximum(costs[m - 1], np.maximum(before, cut)[:, None], out=whole)
                better = np.flatnonzero(whole.min(axis=0) < best[used])
                if len(better):
                    place = whole[:, better].argmin(axis=0)
                    best[used, better] = whole[place, better]
                    befores[better], replicas[better] = place, m
            origin.append((befores, replicas))
        return {end: self._traced(start, end, best, origin) for end in ends}

    @staticmethod
    def _traced(
        start: int, end: int, best: Floats, origin: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    ) -> _Choice:
        used = int(best[:, end].argmin())
        time_s = float(best[used, end])
        parts: list[tuple[int, int, int]] = []
        while end != start:
            befores, replicas = origin[used - 1]
            before, m = int(befores[end]), int(replicas[end])
            parts.append((before, end, m))
            used, end = used - m, before
        return _Choice(time_s, tuple(reversed(parts)))

    def _stages(
        self, span: tuple[int, int], level: int, choices: Sequence[dict[tuple[int, int], _Choice]]
    ) -> tuple[Stage, ...]:
        found: list[Stage] = []
        for start, end, replicas in choices[level][span].parts:
            inside = self._stages((start, end), level - 1, choices) if level else ()
            seconds = choices[level - 1][start, end].time_s if level else float(self.spans[start, end])
            own = float(self.parameters[start, end]) / self._inner(level)
            cost = self.stage_cost(np.array(seconds), np.array(own), replicas, self.levels[level].bandwidth)
            layers = tuple(i for i in self.layers if (self.sets[end] & ~self.sets[start]) >> i & 1)
            found.append(Stage(layers, replicas, float(cost), inside))
        return tuple(found)
