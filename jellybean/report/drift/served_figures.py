"""What a plan predicts of each interval of the ledger, beside what was counted in it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from jellybean.ledger.queries.plan_counts import PlanCounts
from jellybean.report.drift.drift_watch import Observation
from jellybean_solver import Plan, PlannedOperator, quantile_points, served_streams

TIME_OF = "time of"  # begins the name of a service time, after that of a workflow
FEWEST = 5  # observations of an interval that say something
_SPREAD = 1.0  # relative standard deviation of what is not measured: of Poisson counts, and of children


def observations(counts: PlanCounts, plan: Plan) -> list[Observation]:
    """All figures of a plan's intervals, in the order of time."""
    found = [*_of_requests(counts, plan), *_of_work(counts, plan)]
    return sorted(found, key=lambda seen: seen.at_s)


def _of_requests(counts: PlanCounts, plan: Plan) -> Iterator[Observation]:
    """The rate of requests."""
    planned = sum(stream.rate_per_s for stream in served_streams(plan))
    received: dict[tuple[float, float], int] = defaultdict(int)
    for count in counts.received:
        received[count.begin_s, count.seconds] += count.requests
    for (begin_s, seconds), requests in received.items():
        expected = planned * seconds
        if expected >= FEWEST:
            yield Observation(
                "rate of requests", begin_s, seconds, requests / seconds, expected, planned, planned, _SPREAD
            )


def _of_work(counts: PlanCounts, plan: Plan) -> Iterator[Observation]:
    """Time per request of each operator in each pool, and how often it runs for a request."""
    sums: dict[tuple[float, float, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for count in counts.work:
        planned = plan.worker_by_name.get(count.worker.rpartition("/")[2])
        if planned is not None and count.operator in plan.operator_by_name:
            total = sums[count.begin_s, count.seconds, count.operator, planned.name]
            total[0] += count.completed
            total[1] += count.busy_s
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
            what = name if variant == name else f"{name} {variant}"
            label = f"{TIME_OF} {what} on {pool}"
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
