"""The partition whose slowest stage is fastest, over all down-sets, level by level of a hierarchy.

The dynamic program of PipeDream (Narayanan et al. 2019, section 3.1) told from the end, so that it knows at every stage
how many workers stand behind it and with that what the stage must keep in memory. A stage of m replicas takes the time
of its layers and of summing its gradients, over m; a cut takes what crosses it, shared by the receiving replicas. At an
outer level a replica is a whole inner group: the time of the layers is that of the group's own best split, and its
workers share the sum of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean_solver.pipeline.device_limit import DeviceLimit
from jellybean_solver.pipeline.spans import Floats, Spans
from jellybean_solver.pipeline.stages import Level, Stage

# Seconds of the layers, parameter bytes per worker of a group, replicas, bandwidth -> seconds per micro-batch.
StageCost = Callable[[Floats, Floats, int, float], Floats]
Places = npt.NDArray[np.integer]
Block = Any  # an index into matrices of spans
Costs = Callable[[int, int, Block], Floats]  # groups left for the rest, replicas, spans -> seconds
ALL: Block = (slice(None), slice(None))
FIRST_SLACK, SLACKER, MOST_SLACK = 0.02, 8, 20.0  # beyond the time of work spread evenly: first, factor, then all cuts


def summed_cost(seconds: Floats, parameter_bytes: Floats, replicas: int, bandwidth: float) -> Floats:
    """Compute, then sum gradients: (T + 4 (m - 1) W / (B m)) / m, the cost model of PipeDream's optimizer."""
    return (seconds + 4.0 * (replicas - 1) * parameter_bytes / (bandwidth * replicas)) / replicas


def paper_cost(seconds: Floats, parameter_bytes: Floats, replicas: int, bandwidth: float) -> Floats:
    """Compute while gradients are summed: max(T, 2 (m - 1) W / B) / m (section 3.1)."""
    return np.maximum(seconds, 2.0 * (replicas - 1) * parameter_bytes / bandwidth) / replicas


@dataclass(frozen=True, slots=True)
class Context:
    """Where a group of workers stands: how many are `behind` it, per copy, and how many copies work side by side."""

    behind: Fraction = Fraction(0)
    copies: int = 1

    def of_stage(self, after: int, replicas: int, size: int) -> Context:
        """Inside one replica of a stage of the group: `after` groups of `size` workers are left for later stages."""
        return Context((after * size + self.behind) / replicas, self.copies * replicas)


@dataclass(frozen=True, slots=True)
class _Table:
    """Best seconds of spans on one whole group, and what its first stage is: (end, replicas, groups left for the rest).

    `first` starts a span; `later` is what follows a cut, which it pays for; both by groups used.
    """

    times: Floats
    used: Places  # of the best, by span
    first: Sequence[tuple[Places, Places]]  # by groups used: (end, replicas) by (start, span's end)
    later: Sequence[tuple[Places, Places]]

    @classmethod
    def empty(cls, size: int, count: int) -> _Table:
        first, later = ([_places(size) for _ in range(count + 1)] for _ in range(2))
        return cls(np.full((size, size), np.inf), np.zeros((size, size), np.int32), first, later)


class SlowestStage:
    """The program for one graph, topology, cost and memory limit."""

    def __init__(
        self, spans: Spans, levels: Sequence[Level], stage_cost: StageCost, limit: DeviceLimit | None = None
    ) -> None:
        self.spans, self.levels, self.stage_cost, self.limit = spans, levels, stage_cost, limit
        self.seconds = np.where(spans.outside, np.inf, spans.both_s)
        self.work = spans.both_s  # what a stage's replicas share at best
        self.crossing = spans.crossing
        self._tables: dict[tuple[int, Context], _Table] = {}

    def solve(self) -> tuple[float, tuple[Stage, ...]]:
        """Seconds per micro-batch, infinite where no partition fits into memory, and the stages."""
        top, whole = len(self.levels) - 1, (0, self.spans.size - 1)
        best = float(self._table(top, Context()).times[whole])
        return best, self._stages(whole, top, Context()) if math.isfinite(best) else ()

    def _inner(self, level: int) -> int:
        """Workers of one group below a level."""
        return math.prod(one.count for one in self.levels[:level])

    def _context(self, own: Context, after: int, replicas: int, level: int) -> Context:
        """Without a limit it makes no difference, and tables are shared."""
        return own.of_stage(after, replicas, self._inner(level)) if self.limit is not None else own

    def _times(self, level: int, context: Context, at: Block) -> Floats:
        """Seconds of spans on one replica of a stage of a level, infinite where they do not fit."""
        if level:
            return self._table(level - 1, context).times[at]
        if self.limit is None:
            return self.seconds[at]
        most = self.limit.limit_bytes * (1 + 1e-12)
        return np.where(self._taken(self.limit, context, at) > most, np.inf, self.seconds[at])

    def _taken(self, limit: DeviceLimit, context: Context, at: Block) -> Floats:
        flying = limit.flying(context.behind, context.copies)
        return limit.taken(self.spans.parameters[at], self.spans.activations[at], flying)

    def _cost(self, level: int, after: int, replicas: int, own: Context, at: Block = ALL) -> Floats:
        """Seconds of spans (a block of them) as a stage of so many replicas, `after` groups being left for the rest."""
        inside = self._context(own, after, replicas, level)
        parameters = self.spans.parameters[at] / self._inner(level)
        seconds = self._times(level, inside, at)
        found = self.stage_cost(seconds, parameters, replicas, self.levels[level].bandwidth)
        return np.where(self.spans.outside[at], np.inf, found)

    def _table(self, level: int, context: Context) -> _Table:
        key = (level, context)
        if key not in self._tables:
            top = level == len(self.levels) - 1
            self._tables[key] = self._narrowed(level, context) if top else self._filled(level, context)
        return self._tables[key]

    def _filled(self, level: int, context: Context) -> _Table:
        """All spans of a level below the top."""
        costs: dict[tuple[int, int], Floats] = {}

        def cost(after: int, replicas: int, at: Block) -> Floats:
            key = (after if self.limit is not None else 0, replicas)
            if key not in costs:
                costs[key] = self._cost(level, after, replicas, context)
            return costs[key][at]

        table = _Table.empty(self.spans.size, self.levels[level].count)
        for end in range(1, self.spans.size):
            cuts = np.arange(end + 1)  # no cut behind the end lies inside it
            self._to(end, level, cost, [cuts] * (self.levels[level].count + 1), table)
        return table

    def _narrowed(self, level: int, context: Context) -> _Table:
        """The whole model. A stage takes no less than its layers' work over its workers, so a cut is of interest only
        where the work before and behind it can be done in the time allowed; more is allowed until a partition is found.
        """
        count, last = self.levels[level].count, self.spans.size - 1
        behind = self.work[:, last]  # of each cut
        workers = self._inner(level) * np.arange(count + 1)
        least, slack = behind[0] / workers[-1], FIRST_SLACK
        allowed = least * (1 + slack) if least > 0 else np.inf
        while True:
            near = allowed * (1 + 1e-9)
            most = workers[:, None] * near if math.isfinite(near) else np.full((count + 1, 1), np.inf)
            fits = (behind <= most) & (behind[0] - behind <= most[::-1])
            table = _Table.empty(self.spans.size, count)
            self._to(last, level, partial(self._cost_of, level, context), [np.flatnonzero(row) for row in fits], table)
            best = float(table.times[0, last])
            if best <= near or np.isinf(allowed):
                return table
            slack *= SLACKER
            wider = least * (1 + slack) if slack < MOST_SLACK else np.inf
            allowed = best if math.isfinite(best) else wider

    def _cost_of(self, level: int, own: Context, after: int, replicas: int, at: Block) -> Floats:
        return self._cost(level, after, replicas, own, at)

    def _to(self, end: int, level: int, cost: Costs, cuts: Sequence[Places], table: _Table) -> None:
        """Best seconds from each cut to `end`, and how, by groups used; `cuts`: those of interest, likewise."""
        count, bandwidth = self.levels[level].count, self.levels[level].bandwidth
        begun, following = np.full((2, count + 1, self.spans.size), np.inf)
        following[0, end] = 0.0
        for used in range(1, count + 1):
            for m in range(1, used + 1):
                rest = following[used - m][cuts[used - m]]
                kept = np.isfinite(rest)
                if not kept.any() or not len(cuts[used]):
                    continue
                stops = cuts[used - m][kept]
                whole = np.maximum(cost(used - m, m, _block(cuts[used], stops)), rest[None, kept])
                place = whole.argmin(axis=1)
                seconds = whole[np.arange(len(place)), place]
                sent = np.maximum(seconds, 2.0 * self.crossing[cuts[used]] / (bandwidth * m))
                for best, times, how in ((begun, seconds, table.first), (following, sent, table.later)):
                    better = np.flatnonzero(times < best[used, cuts[used]])
                    rows = cuts[used][better]
                    best[used, rows] = times[better]
                    how[used][0][rows, end], how[used][1][rows, end] = stops[place[better]], m
        table.used[:, end] = begun.argmin(axis=0)
        table.times[:, end] = begun.min(axis=0)

    def _stages(self, span: tuple[int, int], level: int, context: Context) -> tuple[Stage, ...]:
        table, (start, end) = self._table(level, context), span
        left = int(table.used[span])
        how, found = table.first, []
        while start != end:
            places, replicas = how[left]
            stop, m = int(places[start, end]), int(replicas[start, end])
            own = self._context(context, left - m, m, level)
            inside = self._stages((start, stop), level - 1, own) if level else ()
            cost = self._cost(level, left - m, m, context, np.ix_([start], [stop]))
            found.append(Stage(self.spans.layers(start, stop), m, float(cost[0, 0]), inside))
            start, left, how = stop, left - m, table.later
        return tuple(found)


class LeastMemory(SlowestStage):
    """The same program with bytes in place of seconds: the partition whose fullest device holds least."""

    def __init__(self, spans: Spans, levels: Sequence[Level], limit: DeviceLimit) -> None:
        super().__init__(spans, levels, lambda held, *_: held, limit)
        self.crossing = np.zeros_like(spans.crossing)
        self.work = np.zeros_like(self.seconds)

    def _times(self, level: int, context: Context, at: Block) -> Floats:
        if level or self.limit is None:
            return super()._times(level, context, at)
        return np.where(self.spans.outside[at], np.inf, self._taken(self.limit, context, at))


def _block(rows: Places, columns: Places) -> Block:
    """Rows and columns of a matrix, as a view where they are without a break."""
    ends = [(int(one[0]), int(one[-1]) + 1) for one in (rows, columns)]
    if all(stop - start == len(one) for (start, stop), one in zip(ends, (rows, columns), strict=True)):
        return tuple(slice(start, stop) for start, stop in ends)
    return np.ix_(rows, columns)


def _places(size: int) -> tuple[Places, Places]:
    return np.zeros((size, size), np.int32), np.zeros((size, size), np.int32)
