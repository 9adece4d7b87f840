"""What chance does to the figures of few requests: simulations of the very arrivals of a measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jellybean.bench.load import due_times
from jellybean.bench.sampling_range import (
    FIGURES,
    MOST_REQUESTS,
    MOST_SEARCHED,
    as_emulated,
    highest_rate_range,
    sampling_ranges,
)
from jellybean_solver import Arrivals, ServiceTime
from tests import report_plans as plans


def test_few_requests_vary_more_than_many_and_a_burst_is_slow_in_all_simulations() -> None:
    plan = plans.one_worker()
    rate_per_s = plan.sources[0].rate_per_s
    widths = []
    for count in (20, 400):
        due_s = due_times(rate_per_s, count / rate_per_s, Arrivals.POISSON, 3)
        ranges = sampling_ranges(plan, due_s, 0.0, count / rate_per_s)
        assert set(ranges) == set(FIGURES)
        assert all(low <= high for low, high in ranges.values())
        widths.append(np.subtract(*ranges["latency_p90_s"][::-1]))
    assert widths[0] >= widths[1]
    spread = sampling_ranges(plan, [number / rate_per_s for number in range(20)], 0.0, 20 / rate_per_s)
    burst = sampling_ranges(plan, [0.0] * 20, 0.0, 20 / rate_per_s)
    assert burst["latency_p90_s"][0] > spread["latency_p90_s"][1]


def test_on_an_emulated_device_every_run_takes_the_mean() -> None:
    plan = plans.one_worker()
    spread = {1: ServiceTime(0.1, 0.1, ((0.5, 0.05), (0.99, 0.4)))}
    (operator,) = plan.operators
    pool = plan.workers[0].pool
    plan = replace(plan, operators=(replace(operator, service={pool: spread}),))
    own = replace(plan, workers=tuple(replace(worker, speed=1.0) for worker in plan.workers))
    slow = replace(plan, workers=tuple(replace(worker, speed=0.5) for worker in plan.workers))
    assert as_emulated(own) == own
    assert as_emulated(slow).operators[0].service == {pool: {1: ServiceTime(0.1, 0.1)}}


def test_there_is_no_range_where_a_measurement_has_other_arrivals_or_many() -> None:
    plan = plans.one_worker()
    assert sampling_ranges(plan, [0.0] * (MOST_REQUESTS + 1), 0.0, 1.0) == {}
    assert sampling_ranges(plan, [], 0.0, 1.0) == {}
    assert sampling_ranges(replace(plan, sites={plan.workers[0].tier: 3}), [0.0], 0.0, 1.0) == {}


@pytest.mark.slow
def test_a_search_with_few_requests_may_end_at_other_rates() -> None:
    plan = plans.one_worker()
    rate_per_s = plan.sources[0].rate_per_s
    few, many = (highest_rate_range(plan, count / rate_per_s, rate_per_s) for count in (20, 100))
    widths = [found["highest_rate_per_s"][1] / found["highest_rate_per_s"][0] for found in (few, many)]
    assert 1.0 <= widths[1] <= widths[0]
    assert highest_rate_range(plan, (MOST_SEARCHED + 1) / rate_per_s, rate_per_s) == {}
