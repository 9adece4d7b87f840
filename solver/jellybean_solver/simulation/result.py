"""Results of a simulation, and the sums they are computed from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """Figures of an operator's runs that started in the window, and of their requests (children counted singly).

    `wait_mean_s`: mean time of requests between ready and start; `service_mean_s`: mean time of runs.
    """

    runs: int
    requests: int
    wait_mean_s: float
    service_mean_s: float


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Requests waiting at a worker, without those running: mean over time, and maximum."""

    mean: float
    longest: int


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Figures of one of several workflows, as in `SimulationResult`."""

    offered: int
    completed: int
    throughput_per_s: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Figures of the window [warmup_s, warmup_s + duration_s).

    Latencies are of requests that arrived in it, from arrival at the gateway to the last answer there; percentiles by
    nearest rank; nan if none was answered. `throughput_per_s` counts answers in it. Utilisation: busy share of the
    window, by worker and by link ("edge->cloud"). `events`: number of simulated events.
    """

    seed: int
    rate_scale: float
    warmup_s: float
    duration_s: float
    offered: int
    completed: int
    throughput_per_s: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    latency_max_s: float
    utilisation: Mapping[str, float]
    link_utilisation: Mapping[str, float]
    operators: Mapping[str, OperatorFigures]
    queues: Mapping[str, QueueFigures]
    events: int
    workflows: Mapping[str, RequestFigures] = field(default_factory=dict)  # where there are several

    def to_dict(self) -> dict[str, Any]:
        """JSON values; undefined figures (nan) are None."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}


def nearest_rank(ascending: Sequence[float], probability: float) -> float:
    """The smallest value that at least `probability` of the values do not exceed; nan for no values."""
    if not ascending:
        return math.nan
    return ascending[max(0, math.ceil(probability * len(ascending)) - 1)]


@dataclass(slots=True)
class Window:
    """The measured span of virtual time."""

    start_s: float
    end_s: float

    def holds(self, time: float) -> bool:
        """True if a time is in the window."""
        return self.start_s <= time < self.end_s

    def overlap(self, begin: float, end: float) -> float:
        """Seconds of [begin, end] in the window."""
        return max(0.0, min(end, self.end_s) - max(begin, self.start_s))


@dataclass(slots=True)
class QueueSums:
    """Length of one worker's queue over time. `ready`: number of each waiting item -> time it became ready."""

    window: Window
    ready: dict[int, float] = field(default_factory=dict)
    items: int = 0
    longest: int = 0
    area: float = 0.0  # integral of the length over the window
    since: float = 0.0

    def changed(self, now: float, added: int, started: Iterable[int]) -> float:
        """`added` items became ready at `now`, then the items `started` began to run; returns their total wait."""
        self.area += len(self.ready) * self.window.overlap(self.since, now)
        self.since = now
        self.ready.update((number, now) for number in range(self.items, self.items + added))
        self.items += added
        waited = sum(now - self.ready.pop(number) for number in started)
        if len(self.ready) > self.longest and self.window.holds(now):
            self.longest = len(self.ready)
        return waited

    def figures(self) -> QueueFigures:
        """The figures at the end of the window."""
        self.changed(max(self.since, self.window.end_s), 0, ())
        return QueueFigures(self.area / (self.window.end_s - self.window.start_s), self.longest)


@dataclass(slots=True)
class RequestSums:
    """Requests of one workflow: `offered` and `answered` in the window, `latencies` of arrivals in it."""

    offered: int = 0
    answered: int = 0
    latencies: list[float] = field(default_factory=list)

    def figures(self, duration_s: float) -> RequestFigures:
        """The figures for a window of this length."""
        latencies = sorted(self.latencies)
        p50_s, p90_s, p99_s = (nearest_rank(latencies, share) for share in (0.50, 0.90, 0.99))
        mean_s = sum(latencies) / len(latencies) if latencies else math.nan
        return RequestFigures(self.offered, len(latencies), self.answered / duration_s, mean_s, p50_s, p90_s, p99_s)


@dataclass(slots=True)
class RunSums:
    """Runs of one operator that started in the window."""

    runs: int = 0
    requests: int = 0
    wait_s: float = 0.0
    service_s: float = 0.0

    def figures(self) -> OperatorFigures:
        """The mean figures; nan without a run."""
        if self.runs == 0:
            return OperatorFigures(0, 0, math.nan, math.nan)
        return OperatorFigures(self.runs, self.requests, self.wait_s / self.requests, self.service_s / self.runs)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
