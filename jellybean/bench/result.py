"""The result of a measurement under load, and its verdict in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jellybean.bench.caveats import find_caveats
from jellybean.bench.load import UNANSWERED
from jellybean.bench.shown_answers import ShownAnswer
from jellybean.display import formats
from jellybean_solver import rate_text

_OVERLOAD = (UNANSWERED, "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")  # statuses of requests that overload causes


@dataclass(frozen=True)
class BenchResult:
    """Load offered and answers received. Latencies count from the due time.

    An unanswered request counts with the time that was waited for its answer.
    `sustained`: no request failed and at least 98 % were answered in time. `breaches`: targets of the plan that the
    measurement missed, and `deaths`, in words. `late`: worker -> share of its busy time by which this machine was
    slower than the device it emulates; of the probes of a bisection the largest. `machine_cpu`: share of this machine's
    CPU time in use, by any process.
    Requests: `offered` in the window of `duration_s`, of which `completed` were answered, `answered_later` of them
    after its end. `answered_in_window`: answers in the window, of requests of the warm-up too (`answered_of_warmup` of
    them), as simulations count; `throughput_per_s` is that number over the window. Percentiles are by nearest rank.
    `uncounted`: requests of the warm-up of `warmup_s`, and those sent after the window for the accuracy; the gateway's
    counters have them too.
    `beside`: of workflows that were measured together, how many times its planned rate each was offered.
    `joined`: workers are boxes that joined a gateway, which emulate nothing. `answers`: a few of them, as the report
    shows them. `ranges`: least and greatest value of throughput and latencies in simulations of the same arrivals.
    `stale_accuracy`: a sentence if the plan's accuracy was predicted with other labels or held-out inputs.
    `ended_by_time_limit`: a sentence if the time limit ended the search for the highest rate.
    """

    plan: str
    workflow: str
    seed: int
    rate_per_s: float
    duration_s: float
    offered: int
    completed: int
    answered_in_time: int
    failed: int
    throughput_per_s: float
    sustained: bool
    verdict: str
    at: float
    latency_p50_s: float | None = None
    latency_p90_s: float | None = None
    latency_p99_s: float | None = None
    latency_mean_s: float | None = None
    accuracy: float | None = None
    cost_usd_per_h: float | None = None
    highest_rate_per_s: float | None = None
    utilisation: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, float] = field(default_factory=dict)
    machine_cpu: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    deaths: tuple[str, ...] = ()
    breaches: tuple[str, ...] = ()
    accuracy_margin: float | None = None  # two standard errors; None if every held-out row was answered
    answered_in_window: int | None = None  # None in records of before
    answered_of_warmup: int = 0
    answered_later: int = 0
    warmup_s: float = 0.0
    uncounted: int = 0
    joined: bool = False
    answers: tuple[ShownAnswer, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    stale_accuracy: str = ""
    beside: Mapping[str, float] = field(default_factory=dict)
    ended_by_time_limit: str = ""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits the figures, in words."""
        return tuple(find_caveats(self.late, self.deaths, joined=self.joined, stale_accuracy=self.stale_accuracy))

    def to_json(self) -> dict[str, Any]:
        """The record without the answers' pictures, for people's screens and other programs."""
        return {**self.to_dict(), "answers": [answer.to_json() for answer in self.answers]}

    def to_dict(self) -> dict[str, Any]:
        """A record for the report store, without figures that were not measured."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        found["answers"] = list(found["answers"])
        del found["stale_accuracy"]  # one of the caveats
        if not self.ended_by_time_limit:
            del found["ended_by_time_limit"]
        lists = {"breaches": list(self.breaches), "deaths": list(self.deaths), "caveats": list(self.caveats)}
        return {**found, **lists, "errors": self.failed}


def verdict_of(rate_per_s: float, counts: Counts, reasons: Mapping[str, int]) -> str:
    """Text that says whether the plan kept up with the load. `reasons`: reason -> number of failed requests."""
    later, unanswered = counts.answered - counts.in_time, counts.offered - counts.answered - counts.failed
    text = f"{counts.in_time} of {counts.offered} requests answered in time at {rate_text(rate_per_s, 4)}"
    text += f", {later} later than {formats.duration(counts.grace_s)} after the window" if later else ""
    text += f", {counts.failed} failed"
    text += f", {unanswered} not answered" if unanswered else ""
    if counts.is_sustained:
        return f"kept up: {text}"
    faults = {reason: count for reason, count in reasons.items() if not reason.startswith(_OVERLOAD)}
    if faults:
        return f"failures: {text}; most often {max(faults, key=lambda reason: faults[reason])}"
    return f"overload: {text}"


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of requests of a measurement. `answered`: by `grace_s` after the window (`in_time`), or later."""

    offered: int
    answered: int
    in_time: int
    failed: int
    is_sustained: bool
    grace_s: float
