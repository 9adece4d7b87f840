"""What a plan predicts of each interval of the ledger, beside what was counted in it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from sqlalchemy import select

from jellybean.ledger import tables
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.questions import Span
from jellybean.report.drift_watch import Observation
from jellybean_solver import Plan, PlannedOperator, quantile_points, served_streams

FEWEST = 5  # observations of an interval that say something
_WORK = ("operator", "worker", "completed", "busy_s")
_SPREAD = 1.0  # relative standard deviation of what is not measured: of Poisson counts, and of children


def observations(ledger: Ledger, plan: Plan, plan_hash: str, span: Span = Span()) -> list[Observation]:
    """All figures of a plan's intervals, in the order of time."""
    found = [*_of_requests(ledger, plan, plan_hash, span), *_of_work(ledger, plan, plan_hash, span)]
    return sorted(found, key=lambda seen: seen.at_s)


def _of_requests(ledger: Ledger, plan: Plan, plan_hash: str, span: Span) -> Iterator[Observation]:
    """The rate of requests."""
    planned = sum(stream.rate_per_s for stream in served_streams(plan))
    requests, intervals = tables.requests, tables.intervals
    query = (
        select(intervals.c.begin_s, intervals.c.seconds, requests.c.received)
        .join(intervals, intervals.c.id == requests.c.interval)
        .where(requests.c.plan == plan_hash, intervals.c.seconds > 0)
    )
    received: dict[tuple[float, float], int] = defaultdict(int)
    with ledger.reading() as connection:
        for begin_s, seconds, count in connection.execute(span.of(query, requests)):
            received[begin_s, seconds] += count
    for (begin_s, seconds), count in received.items():
        expected = planned * seconds
        if expected >= FEWEST:
            yield Observation(
                "rate of requests", begin_s, seconds, count / seconds, expected, planned, planned, _SPREAD
            )


def _of_work(ledger: Ledger, plan: Plan, plan_hash: str, span: Span) -> Iterator[Observation]:
    """Time per request of each operator in each pool, and how often it runs for a request."""
    work, intervals = tables.work, tables.intervals
    query = (
        select(
            intervals.c.begin_s, intervals.c.seconds, work.c.operator, work.c.worker, work.c.completed, work.c.busy_s
        )
        .join(intervals, intervals.c.id == work.c.interval)
        .where(work.c.plan == plan_hash, intervals.c.seconds > 0)
    )
    sums: dict[tuple[float, float, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    with ledger.reading() as connection:
        for begin_s, seconds, operator, worker, completed, busy_s in connection.execute(span.of(query, work)):
            planned = plan.worker_by_name.get(worker.rpartition("/")[2])
            if planned is not None and operator in plan.operator_by_name:
                total = sums[begin_s, seconds, operator, planned.name]
                total[0] += completed
                total[1] += busy_s
    yield from _times(plan, sums)
    yield from _children(plan, sums)


def _times(plan: Plan, sums: Mapping[tuple[float, float, str, str], list[float]]) -> Iterator[Observation]:
    by_pool: dict[tuple[float, float, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (begin_s, seconds, name, worker), (completed, busy_s) in sums.items():
        operator, pool = plan.operator_at(name, worker), plan.worker_by_name[worker].pool
        total = by_pool[begin_s, seconds, name, operator.variant, pool]
        total[0] += completed
        total[1] += busy_s
    for (begin_s, seconds, name, variant, pool), (completed, busy_s) in by_pool.items():
        operator = plan.operator_by_name[name].with_variant(variant)
        if completed >= FEWEST and pool in operator.service:
            full_s, alone_s = operator.mean_request_s(pool), operator.service[pool][1].mean_s
            low_s, high_s = sorted((full_s, alone_s))  # what a request takes depends on how full batches are
            label = f"time of {name} {variant} on {pool}"
            mean_s, spread = busy_s / completed, _spread(operator, pool)
            yield Observation(label, begin_s, seconds, mean_s, completed, low_s, high_s, spread)


def _children(plan: Plan, sums: Mapping[tuple[float, float, str, str], list[float]]) -> Iterator[Observation]:
    """Requests of an operator below a fan-out for each request of the one above."""
    done: dict[tuple[float, float, str], float] = defaultdict(float)
    for (begin_s, seconds, name, _), (completed, _) in sums.items():
        done[begin_s, seconds, name] += completed
    for operator in plan.operators:
        for edge in (edge for edge in operator.inputs if edge.kind.value == "fan_out"):
            planned = edge.ratio
            for (begin_s, seconds, name), above in done.items():
                below = done.get((begin_s, seconds, operator.name), 0.0)
                if name == edge.upstream and above >= FEWEST:
                    label = f"children of {edge.upstream} for {operator.name}"
                    yield Observation(label, begin_s, seconds, below / above, above, planned, planned, _SPREAD)


def _spread(operator: PlannedOperator, pool: str) -> float:
    """Relative standard deviation of a run's time, by the profile's quantiles; at least a tenth."""
    service = operator.service[pool][operator.batch[pool]]
    points = quantile_points(service)
    if not points or service.mean_s <= 0:
        return 0.1
    square = 0.0
    for (left, low), (right, high) in itertools.pairwise(points):
        square += (right - left) * (low * low + low * high + high * high) / 3
    return max(0.1, math.sqrt(max(0.0, square - service.mean_s**2)) / service.mean_s)
