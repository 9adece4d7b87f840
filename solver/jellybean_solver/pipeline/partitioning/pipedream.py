"""PipeDream's partitioner: minimises the slowest stage, level by level of a hierarchical topology.

The dynamic program of Narayanan et al. 2019, section 3.1, over all down-sets of the graph. It runs from the last stage
to the first, so that at every stage the number of workers behind it, and with that its in-flight micro-batches and its
memory, is known. A stage of m replicas takes its compute plus all-reduce time over m; a cut takes the time of the
crossing bytes, divided among the receiving replicas. At an outer level a replica is a whole inner group: its compute
time is the group's own best partition, and its workers share the all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, Floats
from jellybean_solver.pipeline.partitioning.cut_short import CutShortError, check_time
from jellybean_solver.pipeline.partitioning.device_memory import MemoryLimit
from jellybean_solver.pipeline.partitioning.stage_costs import Indices, StageCost
from jellybean_solver.pipeline.partitioning.stages import PartitionStage, TopologyLevel

Block = Any  # an index into matrices of candidate stages
WHOLE: Block = (slice(None), slice(None))
# Upper bounds on the bottleneck time that are tried first, relative to perfectly balanced work: the tighter the bound,
# the fewer cuts are relevant. First slack, its growth, and the slack beyond which no bound is set.
FIRST_SLACK, SLACK_GROWTH, MAX_SLACK = 0.15, 4, 20.0


@dataclass(frozen=True, slots=True)
class GroupContext:
    """A group's position in the pipeline. `copies`: replicas of the group that work in parallel.

    `behind`: workers in later stages per copy.
    """

    behind: Fraction = Fraction(0)
    copies: int = 1

    def of_replica(self, groups_after: int, replicas: int, size: int) -> GroupContext:
        """Context inside a replica of a stage, with `groups_after` groups of `size` workers in later stages."""
        return GroupContext((groups_after * size + self.behind) / replicas, self.copies * replicas)


@dataclass(frozen=True)
class WorkerCost:
    """Cost of a candidate stage on one worker. The partitioner minimises the largest cost in the pipeline.

    `work`: the part that replicas divide among them. `lower_bound`: of the cost on one worker, for every
    `GroupContext`. `crossing`: bytes over each cut. `on_worker(block, needed_bytes)`: cost given the memory that the
    stage needs (None without a limit); infinite if it does not fit.
    """

    work: Floats
    lower_bound: Floats
    crossing: Floats
    on_worker: Callable[[Block, Floats | None], Floats]


def compute_time(candidates: CandidateStages, limit: MemoryLimit | None) -> WorkerCost:
    """Cost of a stage in seconds per micro-batch; infinite if it does not fit within `limit`."""
    seconds = np.where(candidates.invalid, np.inf, candidates.compute_s)

    def on_worker(block: Block, needed_bytes: Floats | None) -> Floats:
        if needed_bytes is None or limit is None:
            return seconds[block]
        return np.where(limit.fits(needed_bytes), seconds[block], np.inf)

    return WorkerCost(candidates.compute_s, seconds, candidates.crossing, on_worker)


def peak_memory(candidates: CandidateStages) -> WorkerCost:
    """Cost of a stage in bytes of device memory; its time is ignored."""

    def on_worker(block: Block, needed_bytes: Floats | None) -> Floats:
        return np.where(candidates.invalid[block], np.inf, needed_bytes if needed_bytes is not None else 0.0)

    return WorkerCost(
        np.zeros((candidates.size, candidates.size)),
        np.where(candidates.invalid, np.inf, 0.0),
        np.zeros_like(candidates.crossing),
        on_worker,
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Optimal cost of every candidate stage on one whole group, and how the optimum splits it into inner stages.

    The choices are indexed by the number of inner groups used: `first[used]` for the first inner stage, `later[used]`
    for one that follows a cut and pays for its crossing bytes. Each holds the inner stage's (end cut, replicas) in
    matrices over the remaining (start, end).
    """

    costs: Floats
    used: Indices  # number of inner groups that the optimum uses
    first: Sequence[tuple[Indices, Indices]]
    later: Sequence[tuple[Indices, Indices]]

    @classmethod
    def empty(cls, size: int, count: int) -> _Table:
        first, later = ([_empty_choices(size) for _ in range(count + 1)] for _ in range(2))
        return cls(np.full((size, size), np.inf), np.zeros((size, size), np.int32), first, later)


@dataclass(frozen=True, slots=True)
class _Window:
    """Relevant start cuts of stages within a candidate that ends at cut `end`; `bound`: highest relevant cost.

    `cuts[used]`: those with `used` groups between them and the end.
    """

    end: int
    cuts: list[Indices]
    bound: float


class PipeDreamPartitioner:
    """The dynamic program for one graph, topology, cost model and memory limit.

    `bound_s`: objective of a known partition, as upper bound. `cost`: what is minimised, compute time by default.
    """

    def __init__(
        self,
        candidates: CandidateStages,
        levels: Sequence[TopologyLevel],
        stage_cost: StageCost,
        limit: MemoryLimit | None = None,
        bound_s: float = math.inf,
        cost: WorkerCost | None = None,
    ) -> None:
        self.candidates, self.levels, self.stage_cost, self.limit = candidates, levels, stage_cost, limit
        self.bound_s = bound_s
        self.cost = cost if cost is not None else compute_time(candidates, limit)
        self._tables: dict[tuple[int, GroupContext], _Table] = {}

    def solve(self) -> tuple[float, tuple[PartitionStage, ...]]:
        """Bottleneck cost per micro-batch and the stages; infinite and empty if nothing fits into memory.

        CutShortError at the time limit of the work, with all layers as one stage on all workers if they fit.
        """
        try:
            return self._solved()
        except CutShortError as error:
            cost, stage = self._one_stage()
            raise CutShortError((cost, (stage,)) if math.isfinite(cost) else None) from error

    def _one_stage(self) -> tuple[float, PartitionStage]:
        """Cost of all layers as one stage that is replicated on all workers, and the stage."""
        (start, end), context = (0, self.candidates.size - 1), GroupContext()
        contexts = [context]
        for level in reversed(range(len(self.levels))):
            contexts.append(self._replica_context(contexts[-1], 0, self.levels[level].count, level))
        block = np.ix_([start], [end])
        cost, inside = self._worker_cost(contexts[-1], block), tuple[PartitionStage, ...]()
        for level, groups in enumerate(self.levels):
            cost = self.stage_cost(cost, self._parameters(level, block), groups.count, groups.bandwidth)
            stage = PartitionStage(self.candidates.layers(start, end), groups.count, float(cost[0, 0]), inside)
            inside = (stage,)
        return stage.time_s, stage

    def _solved(self) -> tuple[float, tuple[PartitionStage, ...]]:
        top, whole = len(self.levels) - 1, (0, self.candidates.size - 1)
        for bound in self._bounds():
            self._tables.clear()
            allowed = np.full((self.candidates.size, self.candidates.size), -np.inf)
            allowed[whole] = bound
            self._fill(top, {GroupContext(): allowed})
            best = float(self._tables[top, GroupContext()].costs[whole])
            if best <= bound:
                return best, self._stages(whole, top, GroupContext()) if math.isfinite(best) else ()
        raise AssertionError("the last bound is infinite")

    def _bounds(self) -> Iterator[float]:
        """Increasing upper bounds to try, until one is met; the last one is infinite."""
        if math.isfinite(self.bound_s):
            yield self.bound_s * (1 + 1e-9)
        else:
            balanced = float(self.cost.work[0, -1]) / self._group_size(len(self.levels))
            slack = FIRST_SLACK
            while balanced > 0 and slack < MAX_SLACK:
                yield balanced * (1 + slack)
                slack *= SLACK_GROWTH
        yield math.inf

    def _group_size(self, level: int) -> int:
        """Workers in one of the groups that `level` connects; 1 at level 0."""
        return math.prod(below.count for below in self.levels[:level])

    def _replica_context(self, context: GroupContext, groups_after: int, replicas: int, level: int) -> GroupContext:
        """Context inside a replica. Contexts that cannot differ in memory are merged, so that tables are shared."""
        if self.limit is None:
            return context
        inside = context.of_replica(groups_after, replicas, self._group_size(level))
        return inside if self.limit.microbatches is not None else GroupContext(inside.behind)

    def _replica_cost(self, level: int, context: GroupContext, block: Block) -> Floats:
        """Cost of candidates on one replica of a level's stage; infinite if they do not fit."""
        return self._tables[level - 1, context].costs[block] if level else self._worker_cost(context, block)

    def _worker_cost(self, context: GroupContext, block: Block) -> Floats:
        """Cost of candidates on one worker; infinite if they do not fit."""
        if self.limit is None:
            return self.cost.on_worker(block, None)
        in_flight = self.limit.in_flight(math.ceil(context.behind), context.copies)
        parameters, activations = self.candidates.parameters[block], self.candidates.activations[block]
        return self.cost.on_worker(block, self.limit.needed_bytes(parameters, activations, in_flight))

    def _stage_cost(
        self, level: int, groups_after: int, replicas: int, context: GroupContext, block: Block = WHOLE
    ) -> Floats:
        """Cost of the candidates in `block` as a stage of `replicas`, with `groups_after` groups in later stages."""
        inside = self._replica_context(context, groups_after, replicas, level)
        cost = self._replica_cost(level, inside, block)
        return self.stage_cost(cost, self._parameters(level, block), replicas, self.levels[level].bandwidth)

    def _parameters(self, level: int, block: Block) -> Floats:
        """Parameter bytes of the candidates in `block` per worker, evenly spread over a group of the level."""
        parameters = self.candidates.parameters[block]
        per_worker: Floats = parameters / self._group_size(level) if level else parameters
        return per_worker

    def _fill(self, level: int, allowed: dict[GroupContext, Floats]) -> None:
        """Compute the tables of a level and those below it.

        `allowed`: per context, the highest relevant cost of each candidate; negative if the candidate is irrelevant.
        """
        if level:
            below: dict[GroupContext, Floats] = {}
            for context, bounds in allowed.items():
                for window in self._windows(level, bounds):
                    self._allow_below(level, context, window, below)
            self._fill(level - 1, below)
        for context, bounds in allowed.items():
            table = _Table.empty(self.candidates.size, self.levels[level].count)
            for window in self._windows(level, bounds):
                self._fill_column(level, context, window, table)
            self._tables[level, context] = table

    def _windows(self, level: int, bounds: Floats) -> Iterator[_Window]:
        """Per relevant end cut, the start cuts whose work before and behind the workers can do within the bound.

        `bounds`: by (start, end), the highest relevant cost; negative if irrelevant.
        """
        count, size = self.levels[level].count, self._group_size(level)
        invalid, groups = self.candidates.invalid, np.arange(count + 1)[:, None]
        for end in np.flatnonzero((bounds >= 0).any(axis=0)).tolist():
            column = bounds[:, end]
            starts = np.flatnonzero(column >= 0)
            bound = float(column.max())
            if math.isinf(bound):
                yield _Window(end, [np.append(np.flatnonzero(~invalid[:, end]), end)] * (count + 1), bound)
                continue
            after = np.where(invalid[:, end], np.inf, self.cost.work[:, end])
            after[end] = 0.0
            before = np.full(self.candidates.size, np.inf)  # groups needed for the work before a cut
            for allowed in np.unique(column[starts]).tolist():
                rows = starts[column[starts] == allowed]
                least = self.cost.lower_bound[rows].min(axis=0)
                least[rows] = 0.0
                before = np.minimum(before, least / max(allowed, 1e-300))
            tolerance = 1 + 1e-9
            fits = (after <= groups * size * bound * tolerance) & (before <= (count - groups) * size * tolerance)
            yield _Window(end, [np.flatnonzero(row) for row in fits], bound)

    def _allow_below(
        self, level: int, context: GroupContext, window: _Window, below: dict[GroupContext, Floats]
    ) -> None:
        """Raise the entries of `below`, the bounds of the next lower level, for candidates that may be stages here."""
        bandwidth, size = self.levels[level].bandwidth, self._group_size(level)
        for used in range(1, self.levels[level].count + 1):
            for m in range(1, used + 1):
                check_time()
                rows, stops = window.cuts[used], window.cuts[used - m]
                if not len(rows) or not len(stops):
                    continue
                block = _block(rows, stops)
                inside = self._replica_context(context, used - m, m, level)
                if inside not in below:
                    below[inside] = np.full((self.candidates.size, self.candidates.size), -np.inf)
                least = self.cost.lower_bound[block] / size
                relevant = self.stage_cost(least, self._parameters(level, block), m, bandwidth) <= window.bound
                relevant &= ~self.candidates.invalid[block]
                below[inside][block] = np.maximum(below[inside][block], np.where(relevant, m * window.bound, -np.inf))

    def _fill_column(self, level: int, context: GroupContext, window: _Window, table: _Table) -> None:
        """Fill in the table's entries that end at the window's cut, from every relevant start cut."""
        count, bandwidth, cuts, end = self.levels[level].count, self.levels[level].bandwidth, window.cuts, window.end
        done, group_bound = self.cost.work[0], self._group_size(level) * window.bound * (1 + 1e-9)
        first, later = np.full((2, count + 1, self.candidates.size), np.inf)
        later[0, end] = 0.0
        for used in range(1, count + 1):
            for m in range(1, used + 1):
                check_time()
                if not len(cuts[used]):
                    continue
                rest = later[used - m][cuts[used - m]]
                kept = np.isfinite(rest) & (done[cuts[used - m]] <= done[cuts[used]].max() + m * group_bound)
                if not kept.any():
                    continue
                stops = cuts[used - m][kept]
                stage = self._stage_cost(level, used - m, m, context, _block(cuts[used], stops))
                totals = np.maximum(stage, rest[None, kept])
                choice = totals.argmin(axis=1)
                costs = totals[np.arange(len(choice)), choice]
                with_transfer = np.maximum(costs, 2.0 * self.cost.crossing[cuts[used]] / (bandwidth * m))
                for best, new, choices in ((first, costs, table.first), (later, with_transfer, table.later)):
                    better = np.flatnonzero(new < best[used, cuts[used]])
                    rows = cuts[used][better]
                    best[used, rows] = new[better]
                    choices[used][0][rows, end], choices[used][1][rows, end] = stops[choice[better]], m
        table.used[:, end] = first.argmin(axis=0)
        table.costs[:, end] = first.min(axis=0)

    def _stages(self, candidate: tuple[int, int], level: int, context: GroupContext) -> tuple[PartitionStage, ...]:
        """The optimal stages of a candidate on one whole group, traced through the tables."""
        table, (start, end) = self._tables[level, context], candidate
        groups = int(table.used[candidate])
        choices, stages = table.first, []
        while start != end:
            stops, replicas = choices[groups]
            stop, m = int(stops[start, end]), int(replicas[start, end])
            inner = self._replica_context(context, groups - m, m, level)
            inside = self._stages((start, stop), level - 1, inner) if level else ()
            cost = self._stage_cost(level, groups - m, m, context, np.ix_([start], [stop]))
            stages.append(PartitionStage(self.candidates.layers(start, stop), m, float(cost[0, 0]), inside))
            start, groups, choices = stop, groups - m, table.later
        return tuple(stages)


def least_memory(candidates: CandidateStages, levels: Sequence[TopologyLevel], limit: MemoryLimit) -> float:
    """Least memory per device, in bytes, with which any partition fits."""
    best, _ = PipeDreamPartitioner(
        candidates, levels, lambda needed, *_: needed, limit, cost=peak_memory(candidates)
    ).solve()
    return best


def _block(rows: Indices, columns: Indices) -> Block:
    """Index of a submatrix; as slices, which make views, if rows and columns are contiguous."""
    ends = [(int(one[0]), int(one[-1]) + 1) for one in (rows, columns)]
    if all(stop - start == len(one) for (start, stop), one in zip(ends, (rows, columns), strict=True)):
        return tuple(slice(start, stop) for start, stop in ends)
    return np.ix_(rows, columns)


def _empty_choices(size: int) -> tuple[Indices, Indices]:
    return np.zeros((size, size), np.int32), np.zeros((size, size), np.int32)
