"""Targets that a replayed trace breaks: which, when, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.evaluate import LIMIT_TOLERANCE
from jellybean_solver.model.plan import Plan
from jellybean_solver.simulation.replay_intervals import ReplayInterval
from jellybean_solver.simulation.sustained import ANSWERED, is_sustained

ALLOWED_LATE = 0.01  # share of an interval's requests; one may always be late


@dataclass(frozen=True, slots=True)
class TargetBreach:
    """A broken target, first in [start_s, end_s). `value`: the interval's figure; `limit`: the target.

    `target`: `rate` (share answered in time), `latency_p99` (seconds) or `budget` (USD per hour). `intervals`: number
    of intervals that break it; `spans_s`: their times, with consecutive ones merged.
    """

    target: str
    start_s: float
    end_s: float
    value: float
    limit: float
    intervals: int
    text: str
    spans_s: tuple[tuple[float, float], ...] = ()


def target_breaches(plan: Plan, intervals: Sequence[ReplayInterval]) -> tuple[TargetBreach, ...]:
    """Each target that some interval breaks, with the first such interval, in order of time."""
    found: list[TargetBreach | None] = []
    targets = {workflow.name: workflow.slo for workflow in plan.workflows} or {"": plan.slo}
    for name, slo in targets.items():
        own = [interval.of(name) for interval in intervals]
        breaks = (
            _first("rate", [i for i in own if _missed(i)], _answered_share, ANSWERED),
            _first("latency_p99", [i for i in own if _late(i)], lambda i: i.latency_p99_s, slo.latency_p99_s),
        )
        found += [replace(item, text=f"{name}: {item.text}" if name else item.text) for item in breaks if item]
    costs = _over_budget(plan, intervals)
    found.append(_first("budget", costs, lambda i: i.cost_usd_per_h, plan.slo.budget_usd_per_h))
    return tuple(sorted((item for item in found if item is not None), key=lambda item: item.start_s))


def _first(
    target: str, breaking: Sequence[ReplayInterval], value: Callable[[ReplayInterval], float], limit: float | None
) -> TargetBreach | None:
    if not breaking or limit is None:
        return None
    first = breaking[0]
    text = _TEXT[target](first, limit)
    return TargetBreach(
        target, first.start_s, first.end_s, value(first), limit, len(breaking), text, _spans_s(breaking)
    )


def _spans_s(intervals: Sequence[ReplayInterval]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for interval in intervals:
        begins_s = found.pop()[0] if found and found[-1][1] == interval.start_s else interval.start_s
        found.append((begins_s, interval.end_s))
    return tuple(found)


_TEXT: Mapping[str, Callable[[ReplayInterval, float], str]] = {
    "rate": lambda i, limit: (
        f"{i.missed:,} of {i.offered:,} requests are not answered in time, {i.backlog:,} wait at its end; "
        f"{i.busiest} is busy {i.utilisation:.0%} of the time"
    ),
    "latency_p99": lambda i, limit: (
        f"p99 latency is {_duration(i.latency_p99_s)}, above the SLO of {_duration(limit)} "
        f"({i.late:,} of {i.offered:,} requests are late); {i.busiest} is busy {i.utilisation:.0%} of the time"
    ),
    "budget": lambda i, limit: (
        f"cost is {i.cost_usd_per_h:.4f} USD/h, above the budget of {limit:.4f} USD/h "
        f"(traffic alone {i.network_usd_per_h:.4f} USD/h)"
    ),
}


def _duration(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"


def _answered_share(interval: ReplayInterval) -> float:
    return 1.0 - interval.missed / interval.offered


def _missed(interval: ReplayInterval) -> bool:
    """True if the rate is not sustained; a single request proves nothing."""
    return interval.missed > 1 and not is_sustained(interval.offered, interval.offered - interval.missed, failed=0)


def _late(interval: ReplayInterval) -> bool:
    return interval.late > max(1.0, ALLOWED_LATE * interval.offered)


def _over_budget(plan: Plan, intervals: Sequence[ReplayInterval]) -> list[ReplayInterval]:
    budget = plan.slo.budget_usd_per_h
    return [i for i in intervals if budget is not None and i.cost_usd_per_h > budget * (1 + LIMIT_TOLERANCE)]
