"""Minimises the slowest stage on workers with equal links: a search over the bottleneck time.

For a given bottleneck time, a pass over the cuts from the last to the first computes the fewest workers that the layers
behind each cut need; more workers there never help the stages before. So one pass decides whether a time is feasible.
The optimum is found by bisection: every feasible time yields a partition, whose slowest stage is the new upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, Floats
from jellybean_solver.pipeline.partitioning.cut_short import CutShortError, check_time
from jellybean_solver.pipeline.partitioning.device_memory import MemoryLimit
from jellybean_solver.pipeline.partitioning.stage_costs import Indices, StageCost
from jellybean_solver.pipeline.partitioning.stages import PartitionStage, TopologyLevel

# Bottleneck times tried first are (1 + slack) x the time of perfectly balanced work: first slack, its growth factor,
# and the slack beyond which the time is unbounded.
FIRST_SLACK, SLACK_GROWTH, MAX_SLACK = 0.02, 8, 20.0
# Relative tolerances: accepted gap of an approximate search; gap below which the search tries just under the incumbent
# instead of bisecting; rounding.
APPROXIMATE_GAP, FINAL_GAP, ROUNDING = 1e-3, 1e-5, 1e-12
UNBOUNDED_S = 1e300


class _Span(NamedTuple):
    """A chosen stage: indices of its start and stop cut, number of replicas."""

    start: int
    stop: int
    replicas: int


class BottleneckSearch:
    """The search for one graph, level of workers, cost model and memory limit.

    `bound_s`: bottleneck time of a known partition, as upper bound. `approximate`: stop within 0.1 % of the optimum.
    """

    def __init__(
        self,
        candidates: CandidateStages,
        level: TopologyLevel,
        stage_cost: StageCost,
        limit: MemoryLimit | None = None,
        bound_s: float = math.inf,
        *,
        approximate: bool = False,
    ) -> None:
        self.candidates, self.level, self.stage_cost = candidates, level, stage_cost
        self.limit, self.bound_s, self.approximate = limit, bound_s, approximate
        self.seconds = np.where(candidates.invalid, np.inf, candidates.compute_s)
        self.transfer_s = 2.0 * candidates.crossing / level.bandwidth  # both ways, to a single replica

    def solve(self) -> tuple[float, tuple[PartitionStage, ...]]:
        """Bottleneck seconds per micro-batch and the stages; infinite and empty if nothing fits into memory.

        CutShortError at the time limit of the work, with the incumbent.
        """
        incumbent = next((spans for bound_s in self._bounds() if (spans := self._within(bound_s))), None)
        if incumbent is None:
            return math.inf, ()
        upper_s, lower_s = self._bottleneck_s(incumbent), self.candidates.compute_s[0, -1] / self.level.count
        while upper_s > lower_s * (1 + ROUNDING):
            close = upper_s - lower_s <= FINAL_GAP * upper_s
            if self.approximate and upper_s - lower_s <= APPROXIMATE_GAP * upper_s:
                break
            tried_s = upper_s * (1 - ROUNDING) if close else (upper_s + lower_s) / 2
            try:
                better = self._within(tried_s)
            except CutShortError as error:
                raise CutShortError((upper_s, self._stages(incumbent))) from error
            if better and (better_s := self._bottleneck_s(better)) < upper_s:
                incumbent, upper_s = better, better_s
            elif close:
                break
            else:
                lower_s = tried_s
        return upper_s, self._stages(incumbent)

    def _bounds(self) -> Iterator[float]:
        """Increasing bottleneck times in seconds, to be tried until one is feasible."""
        if math.isfinite(self.bound_s):
            yield self.bound_s * (1 + 1e-9)
        balanced_s, slack = float(self.candidates.compute_s[0, -1]) / self.level.count, FIRST_SLACK
        while balanced_s > 0 and slack < MAX_SLACK:
            yield balanced_s * (1 + slack)
            slack *= SLACK_GROWTH
        yield UNBOUNDED_S

    def _within(self, bound_s: float) -> list[_Span]:
        """Stages that all take at most `bound_s`, on the fewest workers; empty if the workers do not suffice."""
        last, bound_s = self.candidates.size - 1, max(bound_s, 1 / UNBOUNDED_S)
        workers_before = np.ceil(self.seconds[0] / bound_s - 1e-9)
        workers_before[0] = 0.0
        receivers = np.maximum(np.ceil(self.transfer_s / bound_s - 1e-9), 1.0)
        needed = np.full(last + 1, np.inf)  # fewest workers for the layers behind a cut
        needed[last] = 0.0
        chosen: dict[int, _Span] = {}
        for start in reversed(range(last)):
            check_time(last)
            available = self.level.count - workers_before[start]
            replicas = np.maximum(np.ceil(self.seconds[start, start + 1 :] / bound_s - 1e-9), receivers[start])
            total = replicas + needed[start + 1 :]
            for add_replicas in (False, True):  # first with the fewest replicas for the work, then with more
                most = min(available, needed[start] - 1)
                ends, extra = _more_replicas(total, most) if add_replicas else (np.flatnonzero(total <= most), 0.0)
                if not len(ends):
                    continue
                counts = replicas[ends] + extra
                feasible = np.flatnonzero(self._stage_s(start, ends + start + 1, counts, needed) <= bound_s)
                if len(feasible):
                    workers = total[ends] + extra
                    best = feasible[workers[feasible].argmin()]
                    needed[start] = workers[best]
                    chosen[start] = _Span(start, int(ends[best]) + start + 1, int(counts[best]))
        return list(_chain(chosen, last)) if 0 in chosen else []

    def _stage_s(self, start: int, stops: Indices, replicas: Floats, needed: Floats) -> Floats:
        """Seconds of the stages from cut `start` to each of `stops`; infinite if they do not fit into memory.

        `needed`: by cut, the workers for the layers behind it.
        """
        counts, candidates = replicas.astype(np.int64), self.candidates
        parameters = candidates.parameters[start, stops]
        seconds = self.stage_cost(self.seconds[start, stops], parameters, counts, self.level.bandwidth)
        if self.limit is None:
            return seconds
        behind = -(-needed[stops].astype(np.int64) // counts)
        in_flight = self.limit.in_flight(behind, counts)
        bytes_ = self.limit.needed_bytes(parameters, candidates.activations[start, stops], in_flight)
        return np.where(self.limit.fits(bytes_), seconds, np.inf)

    def _span_s(self, span: _Span) -> float:
        seconds = self.seconds[span.start, [span.stop]]
        parameters = self.candidates.parameters[span.start, [span.stop]]
        return float(self.stage_cost(seconds, parameters, span.replicas, self.level.bandwidth)[0])

    def _bottleneck_s(self, spans: list[_Span]) -> float:
        transfers = [float(self.transfer_s[span.start]) / span.replicas for span in spans[1:]]
        return max(*(self._span_s(span) for span in spans), *transfers, 0.0)

    def _stages(self, spans: list[_Span]) -> tuple[PartitionStage, ...]:
        return tuple(
            PartitionStage(self.candidates.layers(span.start, span.stop), span.replicas, self._span_s(span))
            for span in spans
        )


def _more_replicas(total: Floats, most: float) -> tuple[Indices, Floats]:
    """All (stage end, additional replicas from 1 on) that need at most `most` workers, as two arrays.

    `total`: workers needed without additional replicas, by stage end.
    """
    ends = np.flatnonzero(total < most)
    more = (most - total[ends]).astype(np.int64)
    extra = np.arange(more.sum()) - np.repeat(more.cumsum() - more, more) + 1.0
    return np.repeat(ends, more), extra


def _chain(chosen: dict[int, _Span], last: int) -> Iterator[_Span]:
    start = 0
    while start != last:
        yield chosen[start]
        start = chosen[start].stop
