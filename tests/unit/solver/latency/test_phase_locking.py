"""Requests that are sent evenly: what the closed form says where they stay so, and where their ways make them meet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning import brains
from jellybean_solver import Arrivals, Edge, Plan, PlannedOperator, Route, ServiceTime, SimulationSettings, simulate
from jellybean_solver.latency.estimate import latency
from jellybean_solver.latency.stations import Stations
from tests.property.simulator.plans import SOURCE, operator, plan

RATE = 65.34
MS = 1e-3
# As a generated plan, one of the second set of benchmarks/latency.py: seconds of runs of one and of the largest batch.
OPERATORS: dict[str, tuple[tuple[str, ...], int, dict[str, tuple[float, float]]]] = {
    "o0": (("image",), 8, {"a": (23.49, 161.58)}),
    "o1": (("o0",), 4, {"a": (33.85, 121.97), "b": (14.95, 53.86)}),
    "o2": (("o0", "o1"), 8, {"b": (4.97, 30.12)}),
    "o3": (("o1",), 4, {"b": (6.38, 23.58)}),
    "o4": (("o0", "o2"), 8, {"b": (12.95, 83.77)}),
    "o5": (("o2",), 2, {"c": (6.61, 13.03)}),
    "o6": (("o5",), 8, {"b": (7.89, 50.68)}),
    "o7": (("o3",), 8, {"c": (6.83, 36.16)}),
}
LATER = {"o2": "b-3", "o3": "b-2", "o4": "b-4", "o5": "c-1", "o6": "b-3", "o7": "c-1"}
ROUTES = (
    Route(0.0907, {"o0": "a-1", "o1": "a-2"} | LATER),
    Route(0.4778, {"o0": "a-1", "o1": "b-1"} | LATER),
    Route(0.4315, {"o0": "a-2", "o1": "b-1"} | LATER),
)


def planned(name: str) -> PlannedOperator:
    inputs, batch, seconds = OPERATORS[name]
    times = {
        pool: {1: ServiceTime(one * MS, one * MS), batch: ServiceTime(most * MS, most * MS)}
        for pool, (one, most) in seconds.items()
    }
    edges, readers = [Edge(upstream, name) for upstream in inputs], [n for n in OPERATORS if name in OPERATORS[n][0]]
    found = operator(name, edges, RATE, {p: t[1] for p, t in times.items()}, dict.fromkeys(readers, 1.0), batch)
    return replace(found, service=times, batch=dict.fromkeys(times, batch))


def of(operators: list[PlannedOperator], routes: tuple[Route, ...], rate_per_s: float) -> Plan:
    workers = {worker: "edge" for route in routes for worker in route.workers.values()}
    source = replace(SOURCE, rate_per_s=rate_per_s, arrivals=Arrivals.PERIODIC)
    return plan([source], operators, routes, workers)


def simulated_p99_s(found: Plan, requests: int) -> float:
    duration_s = requests / found.sources[0].rate_per_s
    return simulate(
        found, brains, SimulationSettings(duration_s=duration_s, warmup_s=0.1 * duration_s, seed=1)
    ).latency_p99_s


def test_ways_of_different_length_meet_again_out_of_step() -> None:
    """Its pattern repeats, so p99 is all that the slowest route ever waits: 26 % above a form that takes it as even."""
    found = of([planned(name) for name in OPERATORS], ROUTES, RATE)
    simulated_s = simulated_p99_s(found, 1000)
    assert 0.9 * simulated_s <= latency(found).p99_s <= 1.6 * simulated_s


def even(seconds: tuple[float, float], count: int = 2, rate_per_s: float = 10.0) -> Plan:
    """So many replicas of a first operator, then one worker."""
    first = operator(
        "op1", [Edge("image", "op1")], rate_per_s, {"a": ServiceTime(seconds[0], seconds[0])}, {"op2": 1.0}
    )
    last = operator("op2", [Edge("op1", "op2")], rate_per_s, {"b": ServiceTime(seconds[1], seconds[1])})
    routes = tuple(Route(1 / count, {"op1": f"a-{n}", "op2": "b-1"}) for n in range(count))
    return of([first, last], routes, rate_per_s)


@pytest.mark.parametrize("count", (1, 2, 3))
def test_replicas_that_share_evenly_keep_the_pace(count: int) -> None:
    found = even((count * 0.08, 0.08), count)
    assert all(station.own.mean_s == 0.0 for station in Stations(found).workers.values())
    assert latency(found).p99_s == pytest.approx(simulated_p99_s(found, 200), rel=0.05)


def test_replicas_of_different_speed_do_not() -> None:
    found = even((0.16, 0.08))
    slow = operator(
        "op1", [Edge("image", "op1")], 10.0, {"a": ServiceTime(0.16, 0.16), "z": ServiceTime(0.1, 0.1)}, {"op2": 1.0}
    )
    routes = (Route(0.5, {"op1": "a-1", "op2": "b-1"}), Route(0.5, {"op1": "z-1", "op2": "b-1"}))
    mixed = of([slow, found.operators[1]], routes, 10.0)
    assert Stations(mixed).workers["b-1"].own.mean_s > 0.0


def test_one_worker_that_keeps_up_has_nobody_wait() -> None:
    """It is done with all of a request before the next one comes, whatever it does in between."""
    operators = [
        operator(
            f"op{n}",
            [Edge(f"op{n - 1}" if n > 1 else "image", f"op{n}")],
            10.0,
            {"a": ServiceTime(0.03, 0.03)},
            {f"op{n + 1}": 1.0},
        )
        for n in (1, 2, 3)
    ]
    found = of(operators, (Route(1.0, {"op1": "a-1", "op2": "a-1", "op3": "a-1"}),), 10.0)
    assert latency(found).p99_s == pytest.approx(simulated_p99_s(found, 200), rel=0.05)


def test_what_only_some_go_on_with_makes_all_others_wait() -> None:
    """One request in 20 stays at its worker for longer than the next one takes to come."""
    first = operator("op1", [Edge("image", "op1")], 10.0, {"a": ServiceTime(0.05, 0.05)}, {"op2": 1.0})
    seconds = {"a": ServiceTime(0.4, 0.4), "b": ServiceTime(0.08, 0.08)}
    last = operator("op2", [Edge("op1", "op2")], 10.0, seconds)
    routes = (Route(0.05, {"op1": "a-1", "op2": "a-1"}), Route(0.95, {"op1": "a-1", "op2": "b-1"}))
    found = of([first, last], routes, 10.0)
    assert Stations(found).workers["a-1"].own.mean_s > 0.05
    assert latency(found).p99_s >= 0.9 * simulated_p99_s(found, 500)


def test_who_comes_back_to_a_worker_whose_runs_grow_waits_less_each_time() -> None:
    """Runs of one would take 1.05 of its time. Waits as if for once each would be 1.8 of what is simulated."""
    times = {1: ServiceTime(0.035, 0.035), 4: ServiceTime(0.1, 0.1)}
    operators = []
    for n in (1, 2, 3):
        edges = [Edge(f"op{n - 1}" if n > 1 else "image", f"op{n}")]
        one = operator(f"op{n}", edges, 10.0, {"a": times[1]}, {f"op{n + 1}": 1.0}, 4)
        operators.append(replace(one, service={"a": times}, batch={"a": 4}))
    found = of(operators, (Route(1.0, {"op1": "a-1", "op2": "a-1", "op3": "a-1"}),), 10.0)
    assert 0.9 <= latency(found).p99_s / simulated_p99_s(found, 500) <= 1.6
