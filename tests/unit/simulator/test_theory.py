"""The simulator against queueing theory and against the plan's own arithmetic."""

from __future__ import annotations

import dataclasses
import math

import pytest

from jellybean.planning.simulation import load_by_worker, simulate_plan
from jellybean_solver import Arrivals, Edge, EdgeKind, Link, Plan, Route, ServiceTime, SimulationResult, Source
from tests.property.simulator.plans import chain, exponential, operator, plan
from tests.support.simulated_queues import Measured, measured

FIXED = ServiceTime(0.1, 0.1)
RUNS = 8
STUDENT_99 = 3.5  # two-sided 99 % of Student's t with 7 degrees of freedom


def runs(simulated: Plan, duration_s: float = 800.0) -> list[SimulationResult]:
    """Independent repetitions."""
    return [simulate_plan(simulated, seed=seed, duration_s=duration_s, warmup_s=100.0) for seed in range(RUNS)]


def measured_runs(simulated: Plan, duration_s: float = 800.0) -> list[Measured]:
    """The same with the figures of workers and queues."""
    return [measured(simulated, seed=seed, duration_s=duration_s, warmup_s=100.0) for seed in range(RUNS)]


def agrees(values: list[float], expected: float, bias: float = 0.01) -> bool:
    """Whether the expectation lies in the 99 % confidence interval of the values' mean, widened by a relative bias."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return abs(mean - expected) <= STUDENT_99 * deviation / math.sqrt(len(values)) + bias * expected


@pytest.mark.slow
@pytest.mark.parametrize("rate", [3.0, 6.0, 8.0])
def test_exponential_service_m_m_1(rate: float) -> None:
    results = runs(chain([exponential(0.1)], rate))
    assert agrees([r.latency_mean_s for r in results], 1 / (10 - rate))
    assert agrees([r.latency_p90_s for r in results], math.log(10) / (10 - rate))
    assert agrees([r.utilisation["w1-1"] for r in results], rate / 10)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [3.0, 6.0, 8.0])
def test_constant_service_m_d_1(rate: float) -> None:
    load = rate * 0.1
    waits = [r.operators["op1"].wait_mean_s for r in measured_runs(chain([FIXED], rate))]
    assert agrees(waits, load * 0.1 / (2 * (1 - load)))


@pytest.mark.slow
def test_general_service_pollaczek_khinchine() -> None:
    service = ServiceTime(0.1, 0.1, ((0.25, 0.05), (0.5, 0.08), (0.9, 0.2), (0.99, 0.4)))
    levels = [0.0, 0.25, 0.5, 0.9, 0.99, 1.0]
    values = [0.05, 0.05, 0.08, 0.2, 0.4, 0.4 + 0.01 * 0.2 / 0.09]
    parts = list(zip(levels, levels[1:], values, values[1:], strict=False))
    raw = sum((right - left) * (low + high) / 2 for left, right, low, high in parts)
    second = sum((right - left) * (low * low + low * high + high * high) / 3 for left, right, low, high in parts)
    moment = second * (0.1 / raw) ** 2
    results = measured_runs(chain([service], 6.0))
    assert agrees([r.operators["op1"].wait_mean_s for r in results], 6.0 * moment / (2 * (1 - 0.6)))
    assert agrees([r.operators["op1"].service_mean_s for r in results], 0.1)


@pytest.mark.nightly
def test_equal_constant_services_in_tandem_queue_only_at_the_first() -> None:
    results = measured_runs(chain([FIXED, FIXED, FIXED], 6.0), 500.0)
    assert agrees([r.result.latency_mean_s for r in results], 0.3 + 0.6 * 0.1 / (2 * 0.4))
    assert all(r.operators[name].wait_mean_s < 1e-9 for r in results for name in ("op2", "op3"))


@pytest.mark.slow
def test_exponential_services_in_tandem_are_independent_queues() -> None:
    results = runs(chain([exponential(0.1), exponential(0.05)], 6.0))
    assert agrees([r.latency_mean_s for r in results], 1 / (10 - 6) + 1 / (20 - 6))


def test_periodic_arrivals_at_constant_service_never_queue() -> None:
    found = measured(chain([FIXED], 9.9, Arrivals.PERIODIC), duration_s=500)
    assert found.latency_max_s == pytest.approx(0.1)
    assert found.queues["w1-1"].longest == 0
    assert found.result.throughput_per_s == pytest.approx(9.9, rel=1e-3)


@pytest.mark.slow
def test_littles_law_holds_exactly_for_each_queue() -> None:
    found = measured(chain([exponential(0.1)], 7.0), duration_s=4_000, warmup_s=0.0)
    arrived = found.operators["op1"]
    waiting = arrived.requests / found.window.length_s * arrived.wait_mean_s
    assert found.queues["w1-1"].mean == pytest.approx(waiting, rel=1e-2)  # what is cut at the window's ends


def test_hops_count_between_processes_only() -> None:
    hop_s = 0.003
    apart = chain([FIXED, FIXED], 1.0, Arrivals.PERIODIC, hop_s=hop_s)
    assert simulate_plan(apart, duration_s=50).latency_p50_s == pytest.approx(0.2 + 3 * hop_s)
    workers = {"w1-1": "edge"}
    together = plan(
        apart.sources,
        [dataclasses.replace(op, batch={"w1": 1}, service={"w1": {1: FIXED}}) for op in apart.operators],
        [Route(1.0, {"op1": "w1-1", "op2": "w1-1"})],
        workers,
        hop_s=hop_s,
    )
    assert simulate_plan(together, duration_s=50).latency_p50_s == pytest.approx(0.2 + 2 * hop_s)


def linked(bandwidth: float | None, rate: float, arrivals: Arrivals = Arrivals.PERIODIC) -> Plan:
    """One operator in the cloud behind a link of 50 ms, fed with 1000 bytes from the edge."""
    source = Source("image", "edge", rate, 1000.0, arrivals)
    op = operator("look", [Edge("image", "look")], rate, {"gpu": ServiceTime(1e-4, 1e-4)})
    links = [Link("edge", "cloud", 0.1, bandwidth, 0.05)]
    return plan([source], [op], [Route(1.0, {"look": "gpu-1"})], {"gpu-1": "cloud"}, links)


def test_links_take_bandwidth_one_message_at_a_time_and_then_latency() -> None:
    found = measured(linked(10_000.0, 5.0), duration_s=100)
    assert found.result.latency_p50_s == pytest.approx(0.1 + 0.05 + 1e-4)
    assert found.utilisation("edge->cloud") == pytest.approx(0.5)
    assert measured(linked(None, 5.0), duration_s=100).latency_max_s == pytest.approx(0.05 + 1e-4)


@pytest.mark.slow
def test_a_link_is_a_queue_of_constant_service_m_d_1() -> None:
    results = runs(linked(10_000.0, 6.0, Arrivals.POISSON))
    assert agrees([r.latency_mean_s for r in results], 0.1 + 0.6 * 0.1 / (2 * 0.4) + 0.05 + 1e-4)


def fan(ratio: float, rate: float = 2.0) -> Plan:
    """find -> read (fan-out) -> number (gather), on one worker."""
    gather = 1.0 / ratio
    operators = [
        operator("find", [Edge("image", "find")], rate, {"w": ServiceTime(0.01, 0.01)}),
        operator("read", [Edge("find", "read", EdgeKind.FAN_OUT, ratio)], rate * ratio, {"w": ServiceTime(0.02, 0.02)}),
        operator("number", [Edge("read", "number", EdgeKind.GATHER, gather)], rate, {"w": ServiceTime(0.03, 0.03)}),
    ]
    source = Source("image", "edge", rate, 1.0, Arrivals.PERIODIC)
    return plan([source], operators, [Route(1.0, dict.fromkeys(["find", "read", "number"], "w-1"))], {"w-1": "edge"})


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.25, 1.0, 2.5, 4.0])
def test_children_have_the_ratio_as_their_mean_and_the_plan_its_load(ratio: float) -> None:
    simulated = fan(ratio)
    found = measured(simulated, duration_s=2000, warmup_s=0)
    result = found.result
    assert result.completed == result.offered == 4000
    assert found.operators["read"].runs / found.operators["find"].runs == pytest.approx(ratio, abs=0.03)
    assert found.operators["number"].runs == 4000
    assert result.utilisation["w-1"] == pytest.approx(load_by_worker(simulated)["w-1"], rel=0.02)


def test_a_request_without_children_skips_them() -> None:
    found = measured(fan(0.25), duration_s=500)
    assert found.result.latency_p50_s == pytest.approx(0.04)
    assert found.latency_max_s == pytest.approx(0.06)
