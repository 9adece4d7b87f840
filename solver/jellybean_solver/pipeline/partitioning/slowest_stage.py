"""The partition whose slowest stage is fastest, over all down-sets, level by level of a hierarchy.

The dynamic program of PipeDream (Narayanan et al. 2019, section 3.1) told from the end, so that it knows at every stage
how many workers stand behind it and with that what the stage must keep in memory. A stage of m replicas takes the time
of its layers and of summing its gradients, over m; a cut takes what crosses it, shared by the receiving replicas. At an
outer level a replica is a whole inner group: the time of the layers is that of the group's own best split, and its
workers share the sum of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean_solver.pipeline.partitioning.collectives import collective
from jellybean_solver.pipeline.partitioning.device_memory import DeviceLimit
from jellybean_solver.pipeline.partitioning.spans import Floats, Spans
from jellybean_solver.pipeline.partitioning.stages import Level, Stage

Places = npt.NDArray[np.integer]
# Seconds of the layers, parameter bytes per worker of a group, replicas (of all, or one by one), bandwidth -> seconds
# per micro-batch.
StageCost = Callable[[Floats, Floats, int | Places, float], Floats]
Block = Any  # an index into matrices of spans
Costs = Callable[[int, int, Block], Floats]  # groups left for the rest, replicas, spans -> seconds
ALL: Block = (slice(None), slice(None))
FIRST_SLACK, SLACKER, MOST_SLACK = 0.15, 4, 20.0  # beyond the time of work spread evenly: first, factor, then all cuts


def summed_cost(seconds: Floats, parameter_bytes: Floats, replicas: int | Places, bandwidth: float) -> Floats:
    """Compute, then sum gradients: (T + 4 (m - 1) W / (B m)) / m, the cost model of PipeDream's optimizer."""
    return (seconds + 4.0 * (replicas - 1) * parameter_bytes / (bandwidth * replicas)) / replicas


def summed_by(name: str, latency_s: float = 0.0) -> StageCost:
    """Compute, then sum gradients by the collective of that name."""
    way = collective(name)

    def cost(seconds: Floats, parameter_bytes: Floats, replicas: int | Places, bandwidth: float) -> Floats:
        counts, places = np.unique(replicas, return_inverse=True)
        at_once = np.array([way.seconds(0.0, int(count), bandwidth, latency_s) for count in counts])[places]
        per_byte = np.array([way.seconds(1.0, int(count), bandwidth) for count in counts])[places]
        found: Floats = (seconds + at_once + per_byte * parameter_bytes) / replicas
        return found

    return cost


def paper_cost(seconds: Floats, parameter_bytes: Floats, replicas: int | Places, bandwidth: float) -> Floats:
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
    """The program for one graph, topology, cost and memory limit. `most_s`: one that is known to be reached."""

    def __init__(
        self,
        spans: Spans,
        levels: Sequence[Level],
        stage_cost: StageCost,
        limit: DeviceLimit | None = None,
        most_s: float = math.inf,
    ) -> None:
        self.spans, self.levels, self.stage_cost, self.limit = spans, levels, stage_cost, limit
        self.most_s = most_s
        self.work = spans.both_s  # what a stage's replicas share at best
        self.seconds = np.where(spans.outside, np.inf, self.work)
        self.least_s = self.seconds  # of one worker, without what depends on where it stands
        self.crossing = spans.crossing
        self._tables: dict[tuple[int, Context], _Table] = {}

    def solve(self) -> tuple[float, tuple[Stage, ...]]:
        """Seconds per micro-batch, infinite where no partition fits into memory, and the stages."""
        top, whole = len(self.levels) - 1, (0, self.spans.size - 1)
        for allowed_s in self._limits():
            self._tables.clear()
            wanted = np.full((self.spans.size, self.spans.size), -np.inf)
            wanted[whole] = allowed_s
            self._fill(top, {Context(): wanted})
            best = float(self._tables[top, Context()].times[whole])
            if best <= allowed_s:
                return best, self._stages(whole, top, Context()) if math.isfinite(best) else ()
        raise AssertionError("the last limit is none")

    def _limits(self) -> Iterator[float]:
        """Ever more seconds that a partition may take, until one is found; a stage takes no less than its layers' work
        over its workers, so the less is allowed, the fewer cuts are of interest."""
        if math.isfinite(self.most_s):
            yield self.most_s * (1 + 1e-9)
        else:
            least = float(self.work[0, -1]) / self._inner(len(self.levels))
            slack = FIRST_SLACK
            while least > 0 and slack < MOST_SLACK:
                yield least * (1 + slack)
                slack *= SLACKER
        yield math.inf

    def _inner(self, level: int) -> int:
        """Workers of one group below a level."""
        return math.prod(one.count for one in self.levels[:level])

    def _context(self, own: Context, after: int, replicas: int, level: int) -> Context:
        """Tables are shared where it makes no difference: without a limit, and copies share only an iteration."""
        if self.limit is None:
            return own
        inside = own.of_stage(after, replicas, self._inner(level))
        return inside if self.limit.microbatches is not None else Context(inside.behind)

    def _times(self, level: int, context: Context, at: Block) -> Floats:
        """Seconds of spans on one replica of a stage of a level, infinite where they do not fit."""
        if level:
            return self._tables[level - 1, context].times[at]
        if self.limit is None:
            return self.seconds[at]
        most = self.limit.limit_bytes * (1 + 1e-12)
        return np.where(self._taken(self.limit, context, at) > most, np.inf, self.seconds[at])

    def _taken(self, limit: DeviceLimit, context: Context, at: Block) -> Floats:
        flying = limit.flying(math.ceil(context.behind), context.copies)
        return limit.taken(self.spans.parameters[at], self.spans.activations[at], flying)

    def _cost(self, level: int, after: int, replicas: int, own: Context, at: Block = ALL) -> Floats:
        """Seconds of spans (a block of them) as a stage of so many replicas, `after` groups being left for the rest."""
        inside = self._context(own, after, replicas, level)
        seconds = self._times(level, inside, at)  # infinite outside
        return self.stage_cost(seconds, self._parameters(level, at), replicas, self.levels[level].bandwidth)

    def _parameters(self, level: int, at: Block) -> Floats:
        """Bytes per worker of a group."""
        found: Floats = self.spans.parameters[at] / self._inner(level) if level else self.spans.parameters[at]
        return found

    def _fill(self, level: int, wanted: dict[Context, Floats]) -> None:
        """The tables of a level, in each context for the spans of interest: where seconds allowed are not below 0.
        The lower levels come first."""
        if level:
            below: dict[Context, Floats] = {}
            for context, allowed_s in wanted.items():
                for end, windows, most_s in self._ends(level, allowed_s):
                    self._want(end, level, context, windows, most_s, below)
            self._fill(level - 1, below)
        for context, allowed_s in wanted.items():
            table = _Table.empty(self.spans.size, self.levels[level].count)
            for end, windows, most_s in self._ends(level, allowed_s):
                self._to(end, level, partial(self._cost_of, level, context), windows, most_s, table)
            self._tables[level, context] = table

    def _ends(self, level: int, allowed_s: Floats) -> Iterator[tuple[int, list[Places], float]]:
        """Ends of the spans of interest; by groups used behind them, the cuts of interest; and the most that is
        allowed. Work before and behind a cut must be done by the workers there in time."""
        count, size = self.levels[level].count, self._inner(level)
        groups = np.arange(count + 1)[:, None]
        for end in np.flatnonzero((allowed_s >= 0).any(axis=0)).tolist():
            own = allowed_s[:, end]
            starts = np.flatnonzero(own >= 0)
            most_s = float(own.max())
            if math.isinf(most_s):
                cuts = np.flatnonzero(~self.spans.outside[:, end])
                yield end, [np.append(cuts, end)] * (count + 1), most_s
                continue
            behind = np.where(self.spans.outside[:, end], np.inf, self.work[:, end])
            behind[end] = 0.0
            before = np.full(self.spans.size, np.inf)  # seconds of one group, over those allowed
            for seconds in np.unique(own[starts]).tolist():
                rows = starts[own[starts] == seconds]
                least = self.least_s[rows].min(axis=0)
                least[rows] = 0.0
                before = np.minimum(before, least / max(seconds, 1e-300))
            near = 1 + 1e-9
            fits = (behind <= groups * size * most_s * near) & (before <= (count - groups) * size * near)
            yield end, [np.flatnonzero(row) for row in fits], most_s

    def _want(
        self,
        end: int,
        level: int,
        context: Context,
        windows: Sequence[Places],
        most_s: float,
        below: dict[Context, Floats],
    ) -> None:
        """Note which spans of the level below are stages of this one, and how long they may take."""
        for used in range(1, self.levels[level].count + 1):
            for m in range(1, used + 1):
                rows, stops = windows[used], windows[used - m]
                if not len(rows) or not len(stops):
                    continue
                at = _block(rows, stops)
                inside = self._context(context, used - m, m, level)
                if inside not in below:
                    below[inside] = np.full((self.spans.size, self.spans.size), -np.inf)
                least, bandwidth = self.least_s[at] / self._inner(level), self.levels[level].bandwidth
                hopeful = self.stage_cost(least, self._parameters(level, at), m, bandwidth) <= most_s
                hopeful &= ~self.spans.outside[at]
                below[inside][at] = np.maximum(below[inside][at], np.where(hopeful, m * most_s, -np.inf))

    def _cost_of(self, level: int, own: Context, after: int, replicas: int, at: Block) -> Floats:
        return self._cost(level, after, replicas, own, at)

    def _to(self, end: int, level: int, cost: Costs, cuts: Sequence[Places], most_s: float, table: _Table) -> None:
        """Best seconds from each cut to `end`, and how, by groups used; `cuts`: those of interest, likewise."""
        count, bandwidth = self.levels[level].count, self.levels[level].bandwidth
        done, stage_s = self.work[0], self._inner(level) * most_s * (1 + 1e-9)  # what one group does at most
        begun, following = np.full((2, count + 1, self.spans.size), np.inf)
        following[0, end] = 0.0
        for used in range(1, count + 1):
            for m in range(1, used + 1):
                if not len(cuts[used]):
                    continue
                rest = following[used - m][cuts[used - m]]
                kept = np.isfinite(rest) & (done[cuts[used - m]] <= done[cuts[used]].max() + m * stage_s)
                if not kept.any():
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
        table, (start, end) = self._tables[level, context], span
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
        self.least_s = np.where(spans.outside, np.inf, 0.0)

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
