"""Figures of a replayed trace by interval, summed up from what the simulator reports."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

from jellybean_solver.model.plan import Plan
from jellybean_solver.simulation.result import nearest_rank
from jellybean_solver.simulation.trace import Stretch

_PROGRESS_EVERY = 2_000  # requests

Progress = Callable[[float, float], None]  # (virtual seconds done, virtual seconds in total)


@dataclass(frozen=True, slots=True)
class WorkflowInterval:
    """Figures of one of several workflows, as in `ReplayInterval`."""

    offered: int
    late: int
    missed: int
    latency_p99_s: float


@dataclass(frozen=True, slots=True)
class ReplayInterval:
    """Figures of [start_s, end_s) of the trace, of which `simulated_s` was replayed.

    Latencies are of requests that arrived in the interval (nan if none did); `answered`: answers in it; `backlog`:
    unanswered requests at its end. `busiest`: the worker or link with the highest `utilisation`. The rate is the
    highest in the interval, the cost is USD per hour at that rate.
    """

    start_s: float
    end_s: float
    simulated_s: float
    rates_per_s: Mapping[str, float]
    offered: int
    answered: int
    late: int  # of the offered requests: slower than the p99 target
    missed: int  # of the offered requests: not answered by the end of the interval plus grace
    latency_p50_s: float
    latency_p99_s: float
    busiest: str
    utilisation: float
    backlog: int
    network_usd_per_h: float
    cost_usd_per_h: float
    workflows: Mapping[str, WorkflowInterval] = field(default_factory=dict)  # where there are several

    def of(self, workflow: str) -> ReplayInterval:
        """The interval with the figures of one workflow; the interval itself for the name ""."""
        if not workflow:
            return self
        own = self.workflows[workflow]
        p99_s = own.latency_p99_s
        return replace(self, offered=own.offered, late=own.late, missed=own.missed, latency_p99_s=p99_s)


class IntervalRecorder:
    """An observer of the simulator that adds up figures by interval."""

    def __init__(
        self,
        lengths_s: Sequence[float],
        graces_s: Sequence[float],
        alike: Mapping[str, int],
        sites: Mapping[str, int],
        late_s: Mapping[str, float | None],
        progress: Progress,
    ) -> None:
        """`graces_s`: per interval, seconds after its end in which answers still count as in time.

        `alike`: worker or link of the plan -> number of sites that have it; `sites`: source -> sites of its tier.

        `late_s`: p99 target by workflow; a single workflow has the name "".
        """
        self.ends = list(accumulate(lengths_s))
        self._alike, self._sites = alike, sites
        self._late_s = late_s
        self._lengths_s, self._graces_s = lengths_s, graces_s
        self._progress = progress
        count = len(lengths_s)
        self._answered = [0] * (count + 1)  # the last: after the trace
        self._offered = {name: [0] * count for name in late_s}
        self._in_time = {name: [0] * count for name in late_s}
        self._latencies = {name: [array("d") for _ in range(count)] for name in late_s}
        self._busy: list[dict[str, float]] = [{} for _ in range(count)]
        self._arrivals = 0

    def arrived(self, now: float, workflow: str) -> None:
        self._offered[workflow][self._at(now)] += 1
        self._arrivals += 1
        if self._arrivals % _PROGRESS_EVERY == 0:
            self._progress(now, self.ends[-1])

    def answered(self, arrived_s: float, now: float, workflow: str) -> None:
        index = self._at(arrived_s)
        self._answered[bisect_right(self.ends, now)] += 1
        self._in_time[workflow][index] += now <= self.ends[index] + self._graces_s[index]
        self._latencies[workflow][index].append(now - arrived_s)

    def busy(self, place: str, begin_s: float, end_s: float) -> None:
        index = bisect_right(self.ends, begin_s)
        while index < len(self.ends) and begin_s < end_s:
            until = min(end_s, self.ends[index])
            self._busy[index][place] = self._busy[index].get(place, 0.0) + until - begin_s
            begin_s, index = until, index + 1

    def backlogs(self) -> list[int]:
        """Open requests at each interval's end."""
        offered = map(sum, zip(*self._offered.values(), strict=True))
        return list(accumulate(came - went for came, went in zip(offered, self._answered, strict=False)))

    def _of(self, workflow: str, index: int) -> WorkflowInterval:
        latencies = sorted(self._latencies[workflow][index])
        limit_s = self._late_s[workflow] or math.inf
        offered = self._offered[workflow][index]
        late, missed = len(latencies) - bisect_right(latencies, limit_s), offered - self._in_time[workflow][index]
        return WorkflowInterval(offered, late, missed, nearest_rank(latencies, 0.99))

    def interval(
        self, index: int, group: Sequence[Stretch], network: Mapping[str, float], plan: Plan, backlog: int
    ) -> ReplayInterval:
        """The figures of an interval. `network`: first source of a stream -> USD per hour at 1 request/s."""
        latencies = sorted(chain.from_iterable(own[index] for own in self._latencies.values()))
        workflows = {name: self._of(name, index) for name in self._late_s}
        length_s = self._lengths_s[index]
        busy = {place: busy_s / self._alike[place] for place, busy_s in self._busy[index].items()}
        busiest = max(busy, key=busy.__getitem__, default=plan.workers[0].name)
        paid = max(sum(usd * stretch.rates_per_s[name] for name, usd in network.items()) for stretch in group)
        return ReplayInterval(
            start_s=group[0].start_s,
            end_s=group[-1].end_s,
            simulated_s=length_s,
            rates_per_s={n: max(s.rates_per_s[n] for s in group) / self._sites[n] for n in group[0].rates_per_s},
            offered=sum(own.offered for own in workflows.values()),
            answered=self._answered[index],
            late=sum(own.late for own in workflows.values()),
            missed=sum(own.missed for own in workflows.values()),
            latency_p50_s=nearest_rank(latencies, 0.50),
            latency_p99_s=nearest_rank(latencies, 0.99),
            busiest=busiest,
            utilisation=busy.get(busiest, 0.0) / length_s,
            backlog=backlog,
            network_usd_per_h=paid,
            cost_usd_per_h=plan.cost.compute_usd_per_h + paid,
            workflows={name: own for name, own in workflows.items() if name},
        )

    def _at(self, now: float) -> int:
        """Index of the interval; rounding may put an arrival on the trace's end."""
        return min(bisect_right(self.ends, now), len(self.ends) - 1)
