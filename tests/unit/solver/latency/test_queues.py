"""Queues and batches in closed form where the exact answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import gamma

from jellybean_solver import ServiceTime
from jellybean_solver.latency.batching import BatchInput, batch_sizes
from jellybean_solver.latency.queues import Station, Traffic, WorkStream, residual_log_mgf, service_variance, station


def waited_s(found: Station) -> float:
    return found.bursts.mean_s + found.own.mean_s


def one_worker(per_s: float, variance: float = 0.0, roughness: float = 1.0) -> Station:
    """Requests of 1 s each, all of them here."""
    piece = WorkStream(stream=0, weight=1.0, per_s=per_s, seconds=1.0, variance=variance, regular=True)
    return station(Traffic([piece], 1.0, [roughness], [per_s]), per_s, per_s)


@pytest.mark.parametrize("load", (0.1, 0.5, 0.8, 0.95))
def test_poisson_arrivals_wait_as_pollaczek_and_khinchine_say(load: float) -> None:
    assert waited_s(one_worker(load)) == pytest.approx(load / (1 - load) / 2)
    assert waited_s(one_worker(load, variance=1.0)) == pytest.approx(load / (1 - load))


def test_regular_arrivals_of_equal_work_do_not_wait() -> None:
    assert waited_s(one_worker(0.9, roughness=0.0)) == 0.0


@pytest.mark.slow
def test_half_of_a_round_robin_waits_less_than_half() -> None:
    """Against Erlang-2 / D / 1, by Spitzer's formula; irregular routes add a little."""
    half = WorkStream(stream=0, weight=0.5, per_s=0.8, seconds=1.0)
    found = waited_s(station(Traffic([half], 0.5, [1.0], [1.6]), 0.8, 0.8))
    exact = sum(late_s(count) / count for count in range(1, 400))
    assert exact < found < 1.3 * exact


def late_s(count: int) -> float:
    """Mean seconds by which so many jobs of 1 s end after so many have come: every other request of 1.6 a second."""
    come, more = gamma(2 * count, scale=1 / 1.6), gamma(2 * count + 1, scale=1 / 1.6)
    return float(count * come.cdf(count) - come.mean() * more.cdf(count))


@pytest.mark.parametrize(("count", "load"), [(12, 0.9), (30, 0.9), (30, 0.99), (100, 0.5)])
def test_regular_streams_wait_as_their_phases_lie(count: int, load: float) -> None:
    pieces = [WorkStream(0, 1 / count, load / count, 1.0) for _ in range(count)]
    found = waited_s(station(Traffic(pieces, 1.0, [0.0], [load]), load, load))
    assert found == pytest.approx(side_by_side_s(count, load), rel=0.2)


def side_by_side_s(count: int, load: float) -> float:
    """Mean wait for jobs of 1 s from so many periodic streams, over phases at random: Lindley's recursion."""
    rng, period_s = np.random.default_rng(0), count / load
    phases = np.sort(rng.uniform(0.0, period_s, (300, 1, count)))
    come_s = (phases + period_s * np.arange(12)[:, None]).reshape(300, -1)
    late_s = np.cumsum(1.0 - np.diff(come_s), axis=1)
    waits_s = late_s - np.minimum(np.minimum.accumulate(late_s, axis=1), 0.0)
    return float(waits_s[:, -3 * count :].mean())


def test_what_goes_on_at_its_worker_is_no_stream_of_its_own() -> None:
    """Regular requests are done before the next one comes; those that come at random meet others all the same."""
    for roughness, waits in ((0.0, False), (1.0, True)):
        pieces = [
            WorkStream(0, 1.0, 0.5, 1.0, regular=True),
            WorkStream(0, 1.0, 0.5, 0.6, regular=roughness == 0.0, follows=True),
        ]
        found = station(Traffic(pieces, 1.0, [roughness], [0.5]), 0.8, 0.8)
        assert (found.own.mean_s > 0) is waits


def test_who_waited_elsewhere_makes_others_wait() -> None:
    pieces = [WorkStream(0, 0.5, 0.4, 1.0), WorkStream(0, 0.5, 0.4, 1.0)]
    waits = [waited_s(station(Traffic(pieces, 1.0, [0.0], [0.8], late=late), 0.8, 0.8)) for late in (0.0, 0.5, 1.0)]
    assert waits == sorted(waits) and waits[0] < waits[-1] < 2.0 * waits[0]


@pytest.mark.parametrize("roughness", (0.0, 1.0))
def test_waits_grow_with_load_without_end(roughness: float) -> None:
    pieces = [WorkStream(0, weight, weight, 1.0, 0.1) for weight in (0.1, 0.2)]
    waits = [waited_s(station(Traffic(pieces, 0.3, [roughness], [1.0]), load, load)) for load in (0.3, 0.6, 0.9, 0.99)]
    assert waits == sorted(waits)
    assert waited_s(station(Traffic(pieces, 0.3, [roughness], [1.0]), 1.0, 1.0)) == float("inf")


def times(first_s: float, more_s: float, most: int = 8) -> dict[int, ServiceTime]:
    seconds = {size: first_s + (size - 1) * more_s for size in (1, most)}
    return {size: ServiceTime(time, time) for size, time in seconds.items()}


def test_runs_hold_one_where_regular_requests_never_meet() -> None:
    (found,) = batch_sizes([BatchInput(times(0.1, 0.05), 8, 9.9, 1.0, 0.0)])
    assert (found.mean, found.seen, found.turn_s) == (1.0, 1.0, 0.0)


def test_runs_hold_what_keeps_up_where_one_at_a_time_would_not() -> None:
    """12 a second, runs of n take 50 ms + n x 50 ms: n = 12 (0.05 + 0.05 n)."""
    (found,) = batch_sizes([BatchInput(times(0.1, 0.05), 8, 12.0, 1.0, 0.0)])
    assert found.mean == pytest.approx(0.6 / 0.4, abs=0.01)
    assert 0.5 * 0.125 < found.turn_s < 0.125  # a run of 1.5 takes 125 ms: between half of that and all


def test_who_is_among_the_slowest_meets_nearly_all_of_a_run() -> None:
    """M/D/1 at a load of 0.13, where runs of several are profiled but hardly ever form: P(W > t) = 1 % near 0.93 s."""
    (found,) = batch_sizes([BatchInput(times(1.0, 0.3), 8, 0.13, 1.0, 1.0)])
    assert found.turn.chance == pytest.approx(0.13, abs=0.02)
    assert found.turn.span_s == pytest.approx(1.0, abs=0.05)
    assert found.turn_s < 0.08
    theta = np.array([1e-6, 5.0])
    logs = found.turn.log_mgf(theta, ServiceTime(1.0, 1.0))
    assert logs[0] / 1e-6 == pytest.approx(found.turn_s, rel=1e-3)
    assert logs[1] == pytest.approx(math.log(0.87 + 0.13 * (math.exp(5.0) - 1) / 5.0), abs=0.1)


def test_what_is_left_of_a_run_is_more_than_half_where_runs_vary() -> None:
    """E S^2 / 2 E S."""
    varied = ServiceTime(1.0, 1.0, ((0.0, 0.0), (1.0, 2.0)))
    assert residual_log_mgf(varied, np.array([1e-6]))[0] / 1e-6 == pytest.approx((4 / 3) / 2, rel=1e-3)
    assert residual_log_mgf(ServiceTime(1.0, 1.0), np.array([1e-6]))[0] / 1e-6 == pytest.approx(0.5, rel=1e-3)


def test_who_meets_a_long_run_is_in_a_long_one_next() -> None:
    """Of a run of 0 or 2 s, met when it takes 2: the rest of it and, less 1 s on average, half as much again."""
    varied = ServiceTime(1.0, 1.0, ((0.0, 0.0), (0.4999, 0.0), (0.5001, 2.0), (1.0, 2.0)))
    theta = np.array([1e-6, 1.0, 3.0])
    apart, handed = residual_log_mgf(varied, theta), residual_log_mgf(varied, theta, 0.5)
    assert handed == pytest.approx(apart, rel=1e-3)  # 2 s in all cases that are met: nothing varies
    varied = ServiceTime(1.0, 1.0, ((0.0, 0.0), (1.0, 2.0)))
    apart, handed = residual_log_mgf(varied, theta), residual_log_mgf(varied, theta, 0.5)
    assert handed[0] == pytest.approx(apart[0], rel=1e-3)
    met_s = 2.0 * np.sqrt(np.random.default_rng(0).uniform(size=200_000))  # of density s / 2: long ones are met more
    left = np.random.default_rng(1).uniform(size=200_000)
    for log, more, at in ((handed, 0.5, 1), (handed, 0.5, 2), (apart, 0.0, 2)):
        drawn = np.log(np.mean(np.exp(theta[at] * (left * met_s + more * (met_s - 4 / 3)))))
        assert log[at] == pytest.approx(drawn, rel=0.01)


def test_runs_whose_size_varies_leave_more_of_them() -> None:
    theta = np.array([1e-6, 3.0])
    apart, spread = (residual_log_mgf(ServiceTime(1.0, 1.0), theta, 0.5, wide) for wide in (0.0, 0.6))
    assert spread[0] / 1e-6 == pytest.approx((1.0 + 0.6**2 / 3.0) / 2.0, rel=1e-3)  # E S^2 / 2 E S
    assert spread[1] > apart[1]


def test_runs_grow_with_the_rate_up_to_the_batch() -> None:
    found = [batch_sizes([BatchInput(times(0.1, 0.05), 8, rate, 1.0, 1.0)])[0] for rate in (0.1, 5.0, 10.0, 15.0, 40.0)]
    means = [one.mean for one in found]
    assert means == sorted(means)
    assert means[0] == pytest.approx(1.0, abs=0.01) and means[-1] == 8.0
    assert all(one.seen >= one.mean for one in found)


def test_variance_of_a_uniform_time() -> None:
    assert service_variance(ServiceTime(1.0, 1.0, ((0.0, 0.5), (1.0, 1.5)))) == pytest.approx(1 / 12)
    assert service_variance(ServiceTime(1.0, 1.0)) == 0.0
