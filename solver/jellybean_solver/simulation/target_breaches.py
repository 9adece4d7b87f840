"""Targets that a replayed trace breaks: which, when, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jellybean_solver.figures import distinct_durations, distinct_usd, usd_text
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.targets import LIMIT_TOLERANCE
from jellybean_solver.simulation.replay_intervals import ReplayInterval
from jellybean_solver.simulation.sustained import ANSWERED, is_sustained

ALLOWED_LATE = 0.01  # share of an interval's requests that may be late; a single late request is always allowed


@dataclass(frozen=True, slots=True)
class TargetBreach:
    """A broken target; [start_s, end_s) is the first interval that breaks it, `value` its figure there.

    `target`: `rate` (share answered in time), `latency_p99` (seconds) or `budget` (USD per hour), with its `limit`.
    `intervals`: number of intervals that break it; `spans_s`: their times, with consecutive ones merged.
    """

    target: str
    start_s: float
    end_s: float
    value: float
    limit: float
    intervals: int
    text: str
    spans_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Target:
    """A kind of target: whether an interval breaks a limit, the figure compared with it, and the breach in words."""

    name: str
    is_broken: Callable[[ReplayInterval, float], bool]
    value: Callable[[ReplayInterval], float]
    text: Callable[[ReplayInterval, float], str]


RATE = _Target(
    "rate",
    # A single missed request proves nothing.
    lambda i, limit: i.missed > 1 and not is_sustained(i.offered, i.offered - i.missed, failed=0),
    lambda i: 1.0 - i.missed / i.offered,
    lambda i, limit: (
        f"{i.missed:,} of {i.offered:,} requests are not answered in time, {i.backlog:,} wait at its end; "
        f"{i.busiest} is busy {i.utilisation:.0%} of the time"
    ),
)
LATENCY = _Target(
    "latency_p99",
    lambda i, limit: i.late > max(1.0, ALLOWED_LATE * i.offered),
    lambda i: i.latency_p99_s,
    lambda i, limit: (
        "p99 latency is {}, above the SLO of {} ".format(*distinct_durations(i.latency_p99_s, limit))
        + f"({i.late:,} of {i.offered:,} requests are late); {i.busiest} is busy {i.utilisation:.0%} of the time"
    ),
)
BUDGET = _Target(
    "budget",
    lambda i, limit: i.cost_usd_per_h > limit * (1 + LIMIT_TOLERANCE),
    lambda i: i.cost_usd_per_h,
    lambda i, limit: (
        "cost is {} USD/h, above the budget of {} USD/h ".format(*distinct_usd(i.cost_usd_per_h, limit))
        + f"(traffic alone {usd_text(i.network_usd_per_h)} USD/h)"
    ),
)


def target_breaches(plan: Plan, intervals: Sequence[ReplayInterval]) -> tuple[TargetBreach, ...]:
    """The targets that some interval breaks, in order of the first such interval."""
    found: list[TargetBreach] = []
    targets = {workflow.name: workflow.slo for workflow in plan.workflows} or {"": plan.slo}
    for name, slo in targets.items():
        own = [interval.of(name) for interval in intervals]
        of = f"{name}: " if name else ""
        found += [*_breach(RATE, own, ANSWERED, of), *_breach(LATENCY, own, slo.latency_p99_s, of)]
    found += _breach(BUDGET, intervals, plan.slo.budget_usd_per_h, "")
    return tuple(sorted(found, key=lambda breach: breach.start_s))


def _breach(
    target: _Target, intervals: Sequence[ReplayInterval], limit: float | None, of: str
) -> Iterator[TargetBreach]:
    """Yield the breach of a target, if any. `limit`: None if the target is not set; `of`: prefix of the text."""
    breaking = [interval for interval in intervals if limit is not None and target.is_broken(interval, limit)]
    if limit is None or not breaking:
        return
    first, spans_s = breaking[0], list[tuple[float, float]]()
    for interval in breaking:
        begins_s = spans_s.pop()[0] if spans_s and spans_s[-1][1] == interval.start_s else interval.start_s
        spans_s.append((begins_s, interval.end_s))
    figures = target.value(first), limit, len(breaking)
    text = of + target.text(first, limit)
    yield TargetBreach(target.name, first.start_s, first.end_s, *figures, text, tuple(spans_s))
