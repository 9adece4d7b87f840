"""The partition whose slowest stage is fastest, on workers that are all linked alike: fewest workers within a time.

Within a time, the layers behind a cut need some least number of workers; whoever stands before them never gains from
more. So one pass over the cuts, from the last, tells whether a time can be reached. The least time is searched for
between what is known: each answer is a partition, whose own slowest stage or cut is the next time to beat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from jellybean_solver.pipeline.partitioning.device_memory import DeviceLimit
from jellybean_solver.pipeline.partitioning.slowest_stage import Places, StageCost
from jellybean_solver.pipeline.partitioning.spans import Floats, Spans
from jellybean_solver.pipeline.partitioning.stages import Level, Stage

FIRST_SLACK, SLACKER, MOST_SLACK = 0.02, 8, 20.0  # beyond the time of work spread evenly: first, factor, then any time
ROUGH, NEAR, SAME = 1e-3, 1e-5, 1e-12  # relative: near enough; where just below the best is asked for; no difference
FOREVER_S = 1e300


class OneLevel:
    """The search for one graph, level of workers, cost and memory limit.

    `most_s`: one that is known to be reached. `rough`: it is enough to come near the least time.
    """

    def __init__(
        self,
        spans: Spans,
        level: Level,
        stage_cost: StageCost,
        limit: DeviceLimit | None = None,
        most_s: float = math.inf,
        *,
        rough: bool = False,
    ) -> None:
        self.spans, self.level, self.stage_cost, self.limit, self.most_s = spans, level, stage_cost, limit, most_s
        self.rough = rough
        self.seconds = np.where(spans.outside, np.inf, spans.both_s)
        self.sent = 2.0 * spans.crossing / level.bandwidth  # to one replica

    def solve(self) -> tuple[float, tuple[Stage, ...]]:
        """Seconds per micro-batch, infinite where no partition fits into memory, and the stages."""
        found = next((stages for most_s in self._limits() if (stages := self._within(most_s))), None)
        if found is None:
            return math.inf, ()
        best_s, least_s = self._slowest(found), self.spans.both_s[0, -1] / self.level.count
        while best_s > least_s * (1 + SAME):
            close = best_s - least_s <= NEAR * best_s
            if self.rough and best_s - least_s <= ROUGH * best_s:
                break
            asked_s = best_s * (1 - SAME) if close else (best_s + least_s) / 2
            better = self._within(asked_s)
            if better and (better_s := self._slowest(better)) < best_s:
                found, best_s = better, better_s
            elif close:
                break
            else:
                least_s = asked_s
        return best_s, self._stages(found)

    def _limits(self) -> Iterator[float]:
        """Ever more seconds, until they can be kept."""
        if math.isfinite(self.most_s):
            yield self.most_s * (1 + 1e-9)
        least, slack = float(self.spans.both_s[0, -1]) / self.level.count, FIRST_SLACK
        while least > 0 and slack < MOST_SLACK:
            yield least * (1 + slack)
            slack *= SLACKER
        yield FOREVER_S

    def _within(self, most_s: float) -> list[tuple[int, int, int]]:
        """Stages (from cut, to cut, replicas) of fewest workers that all keep that time; none where there are none."""
        last, most_s = self.spans.size - 1, max(most_s, 1 / FOREVER_S)
        before = np.ceil(self.seconds[0] / most_s - 1e-9)  # workers
        before[0] = 0.0
        receiving = np.maximum(np.ceil(self.sent / most_s - 1e-9), 1.0)
        needed = np.full(last + 1, np.inf)
        needed[last] = 0.0
        chosen: dict[int, tuple[int, int]] = {}
        for start in reversed(range(last)):
            room = self.level.count - before[start]
            replicas = np.maximum(np.ceil(self.seconds[start, start + 1 :] / most_s - 1e-9), receiving[start])
            total = replicas + needed[start + 1 :]
            for more in (False, True):  # first with no more replicas than their work needs, then with more
                most = min(room, needed[start] - 1)
                left, extra = _ends(total, most) if more else (np.flatnonzero(total <= most), 0.0)
                if not len(left):
                    continue
                counts = replicas[left] + extra
                kept = np.flatnonzero(self._seconds(start, left + start + 1, counts, needed) <= most_s)
                if len(kept):
                    workers = total[left] + extra
                    best = kept[workers[kept].argmin()]
                    needed[start] = workers[best]
                    chosen[start] = (int(left[best]) + start + 1, int(counts[best]))
        return list(_chain(chosen, last)) if 0 in chosen else []

    def _seconds(self, start: int, stops: Places, replicas: Floats, needed: Floats) -> Floats:
        """Of stages from one cut, infinite where they do not fit."""
        counts, spans = replicas.astype(np.int64), self.spans
        found = self.stage_cost(
            self.seconds[start, stops], spans.parameters[start, stops], counts, self.level.bandwidth
        )
        if self.limit is None:
            return found
        behind = -(-needed[stops].astype(np.int64) // counts)
        taken = self.limit.taken(
            spans.parameters[start, stops], spans.activations[start, stops], self.limit.flying(behind, counts)
        )
        return np.where(taken > self.limit.limit_bytes * (1 + 1e-12), np.inf, found)

    def _time(self, start: int, stop: int, replicas: int) -> float:
        seconds, parameters = self.seconds[start, [stop]], self.spans.parameters[start, [stop]]
        return float(self.stage_cost(seconds, parameters, replicas, self.level.bandwidth)[0])

    def _slowest(self, found: list[tuple[int, int, int]]) -> float:
        sent = [float(self.sent[start]) / replicas for start, _, replicas in found[1:]]
        return max(*(self._time(*stage) for stage in found), *sent, 0.0)

    def _stages(self, found: list[tuple[int, int, int]]) -> tuple[Stage, ...]:
        return tuple(
            Stage(self.spans.layers(start, stop), replicas, self._time(start, stop, replicas))
            for start, stop, replicas in found
        )


def _ends(total: Floats, most: float) -> tuple[Places, Floats]:
    """Ends of a stage, each with every number of replicas more than the fewest that leaves no more than `most`."""
    ends = np.flatnonzero(total < most)
    more = (most - total[ends]).astype(np.int64)
    extra = np.arange(more.sum()) - np.repeat(more.cumsum() - more, more) + 1.0
    return np.repeat(ends, more), extra


def _chain(chosen: dict[int, tuple[int, int]], last: int) -> Iterator[tuple[int, int, int]]:
    start = 0
    while start != last:
        stop, replicas = chosen[start]
        yield start, stop, replicas
        start = stop
