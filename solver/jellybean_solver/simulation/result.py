"""Results of a simulation, and the sums they are computed from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

BATCHES = 5  # batches of a simulation's answers: few and long, so that they are nearly independent


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Figures of the requests in the window [warmup_s, warmup_s + duration_s), of all workflows or of one.

    Latencies are of requests that arrived in the window, from arrival at the gateway to the last answer there.
    Percentiles are by nearest rank; nan if none was answered. `throughput_per_s`: answers in the window per second.
    `latency_p99_batches_s`: p99 latencies of `BATCHES` batches of consecutive answers, for a confidence interval.
    """

    offered: int
    completed: int
    throughput_per_s: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    latency_p99_batches_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SimulationResult(RequestFigures):
    """Figures of all requests. `utilisation`: worker -> busy share of the window, as mean over its sites.

    Not `complete`: a time limit ended the window; requests that were not answered by then count in no latency.
    """

    utilisation: Mapping[str, float]
    workflows: Mapping[str, RequestFigures]  # where there are several
    complete: bool = True


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

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def holds(self, time: float) -> bool:
        """True if a time is in the window."""
        return self.start_s <= time < self.end_s

    def overlap(self, begin: float, end: float) -> float:
        """Seconds of [begin, end] in the window."""
        return max(0.0, min(end, self.end_s) - max(begin, self.start_s))


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
        batches_s = tuple(nearest_rank(sorted(batch), 0.99) for batch in self.batches())
        per_s = self.answered / duration_s if duration_s else 0.0
        return RequestFigures(self.offered, len(latencies), per_s, mean_s, p50_s, p90_s, p99_s, batches_s)

    def batches(self) -> list[list[float]]:
        """The latencies in `BATCHES` batches of consecutive answers, whose sizes differ by one at most."""
        ends = [len(self.latencies) * index // BATCHES for index in range(BATCHES + 1)]
        return [self.latencies[first:last] for first, last in pairwise(ends)]


def result_of(
    requests: Mapping[str, RequestSums],
    utilisation: Mapping[str, float],
    duration_s: float,
    *,
    complete: bool = True,
) -> SimulationResult:
    """The result of a window. `requests` by workflow; a single workflow has the name ""."""
    offered, answered = sum(one.offered for one in requests.values()), sum(one.answered for one in requests.values())
    batches = zip(*(one.batches() for one in requests.values()), strict=True)
    latencies = list(chain.from_iterable(chain.from_iterable(batches)))  # batch by batch, of all workflows
    total = RequestSums(offered, answered, latencies).figures(duration_s)
    workflows = {name: sums.figures(duration_s) for name, sums in requests.items() if name}
    return SimulationResult(
        **dataclasses.asdict(total), utilisation=utilisation, workflows=workflows, complete=complete
    )
