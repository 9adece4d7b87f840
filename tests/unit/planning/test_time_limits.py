"""A time limit ends simulations, searches and comparisons where they are, with what is known by then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jellybean.cli import run
from jellybean.cli.init import Example, copy_example
from jellybean.documents import build_problem, load_project
from jellybean.frontier import find_frontier, timed_solver
from jellybean.planning import plan_project, predict, predicted_latency, project_plan, searched_objectives, simulation
from jellybean.planning.predicted_latency import judge, judged_latency, predicted_p99
from jellybean.planning.simulation import (
    LEAST_REQUESTS,
    MAX_RUNS_PER_REQUEST,
    MOST_PER_S,
    first_rate_per_s,
    is_search_limit,
    simulate_plan,
    sustained_rate,
    window_s,
)
from jellybean.whatif import calendar, check, plan_by_time
from jellybean_solver import OutOfTimeError, Plan, limited_work, solve, work_limit
from jellybean_solver.simulation import simulator

Clock = Callable[[], float]

RATE = ("objective=rate", "slo.latency_p99=null")
REQUESTS = 200  # of a simulation: as many as take a few hundredths of a second

WORKFLOW = """\
kind: Workflow
name: pages
sources:
  camera: {tier: edge, rate: 2/s, message: 100 KiB}
operators:
  find: {inputs: [camera], variants: [net]}
  read: {inputs: [{from: find, ratio: RATIO}], variants: [small, large]}
  join: {inputs: [{from: read, gather: true}], variants: [sum]}
slo: {latency_p99: 5 s}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 4, price: 0.05 USD/h}
  gpu: {tier: cloud, count: 4, price: 0.5 USD/h}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB, bandwidth: 100 Mbit/s, latency: 20 ms}
"""
PROFILES = """\
kind: Profiles
operators:
  find: {net: {message: 10 KiB, latency: {box: 10 ms, gpu: 2 ms}}}
  read:
    small: {message: 1 KiB, latency: {box: 1 ms, gpu: 0.2 ms}}
    large: {message: 1 KiB, latency: {box: 2 ms, gpu: 0.4 ms}}
  join: {sum: {message: 1 KiB, latency: {box: 0.1 ms, gpu: 0.1 ms}}}
accuracy: {independent: {find: {net: 99}, read: {small: 97, large: 99}, join: {sum: 100}}}
"""


def write_pages(folder: Path, ratio: int = 8) -> Path:
    """A project whose requests have so many children."""
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("RATIO", str(ratio)), encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (folder / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    return folder


def cheapest(folder: Path) -> Plan:
    """The cheapest plan of a project, whatever its p99 latency."""
    plan = solve(build_problem(load_project(folder))).plan
    assert plan is not None
    return plan


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    return write_pages(tmp_path)


@pytest.fixture(autouse=True)
def _few_requests_and_no_simulation_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "REQUESTS", REQUESTS)
    monkeypatch.setattr(simulation, "PROBE_REQUESTS", REQUESTS)
    monkeypatch.setattr(simulator, "EVENTS_BETWEEN_CHECKS", 16)
    monkeypatch.setattr(predicted_latency, "_cached", {})


class Alarm:
    """A clock that stands still until a function has been called so often, and then is past every limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, calls: int = 1) -> None:
        self.left, self.function = calls, getattr(module, name)
        monkeypatch.setattr(module, name, self.call)

    def call(self, *arguments: Any, **options: Any) -> Any:
        result = self.function(*arguments, **options)
        self.left -= 1
        return result

    def __call__(self) -> float:
        return 0.0 if self.left > 0 else 1e9


def steps(seconds: float = 1.0) -> Clock:
    """A clock that is so much later each time it is read."""
    times = itertools.count()
    return lambda: seconds * next(times)


def test_the_work_inside_ends_with_the_work_around_it() -> None:
    def now() -> float:
        return 10.0

    with limited_work(5.0, now), limited_work(60.0, now):
        assert work_limit().left() == 5.0
        with limited_work(None, now), limited_work(2.0, now):
            assert work_limit().left() == 2.0
        assert work_limit().left() == 5.0
    assert work_limit().left() is None


@pytest.mark.parametrize("ratio", [1, 100, 1000])
def test_requests_of_many_runs_are_simulated_in_smaller_numbers(ratio: int, tmp_path: Path) -> None:
    plan = cheapest(write_pages(tmp_path, ratio))
    requests = window_s(plan) * plan.sources[0].rate_per_s
    runs = requests * (2 + ratio)
    assert requests >= LEAST_REQUESTS
    assert runs <= 1.01 * max(REQUESTS * MAX_RUNS_PER_REQUEST, LEAST_REQUESTS * (2 + ratio))
    assert ratio > 1 or requests == pytest.approx(REQUESTS)


def test_a_simulation_ends_at_the_limit_with_the_figures_so_far(pages: Path) -> None:
    plan = cheapest(pages)
    whole = simulate_plan(plan)
    with limited_work(40.0, steps()):
        part = simulate_plan(plan)
    assert whole.complete
    assert not part.complete
    assert 0 < part.completed < whole.completed
    assert part.throughput_per_s == pytest.approx(whole.throughput_per_s, rel=0.5)
    assert part.latency_p99_s == pytest.approx(whole.latency_p99_s, rel=0.5)


def test_a_p99_without_time_for_a_simulation_is_the_closed_form(pages: Path) -> None:
    plan = cheapest(pages)
    with limited_work(0.0, steps(0.0)):
        estimated = predicted_p99(plan)[""]
        judged = judged_latency(plan)
        quick = judge(plan)
    assert (estimated.simulations, estimated.requests, estimated.complete) == (0, 0, False)
    assert estimated.low_s < estimated.p99_s < estimated.high_s
    assert judged is not None
    assert quick is not None
    assert judged.p99[""].p99_s == quick.p99[""].p99_s == estimated.p99_s
    assert predicted_p99(plan)[""].complete, "what was estimated is not taken for a simulation later"


def test_a_p99_that_is_cut_short_says_so(pages: Path) -> None:
    plan = cheapest(pages)
    with limited_work(40.0, steps()):
        part = predicted_p99(plan)[""]
        again = predicted_p99(plan)[""]  # no time is left: what was simulated before counts
    assert (part.simulations, part.complete) == (1, False)
    assert 0 < part.requests < REQUESTS
    assert again == part


@pytest.mark.parametrize("setting", ["slo.latency_p99=null", "slo.latency_p99=5 s"])
def test_a_plan_at_the_limit_has_a_valid_bound(setting: str, pages: Path) -> None:
    project = load_project(pages, (setting,))
    whole = plan_project(project)
    with limited_work(30.0, steps(0.02)):
        planned = plan_project(project)
    if planned.plan is None:
        assert planned.reasons
        return
    least = whole.solution.certificate
    assert least is not None
    assert planned.plan.certificate.bound <= least.objective + 1e-9
    assert planned.plan.cost.total_usd_per_h >= least.bound - 1e-9


def test_rules_that_plans_are_compared_with_end_with_the_plan(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with limited_work(50.0, Alarm(monkeypatch, project_plan, "solve_with")):
        planned = plan_project(load_project(pages, ("slo.latency_p99=null",)))
    assert planned.plan is not None
    assert "time_limit" in {baseline.status for baseline in planned.baselines}


def test_a_plan_without_time_for_a_search_is_that_of_a_simple_rule(pages: Path) -> None:
    project = load_project(pages, ("slo.latency_p99=null", "sources.camera.rate=20/s"))
    best = plan_project(project, compare=False).plan
    with limited_work(0.0, steps(0.0)):
        plan = plan_project(project).plan
    assert best is not None
    assert plan is not None
    assert plan.certificate.termination == "time_limit"
    assert 0.0 < plan.certificate.bound <= best.cost.total_usd_per_h <= plan.cost.total_usd_per_h + 1e-9
    out_of_reach = load_project(pages, ("slo.latency_p99=null", "slo.accuracy=99.9"))
    with limited_work(0.0, steps(0.0)):
        assert plan_project(out_of_reach).plan is None


@pytest.mark.parametrize("calls", [1, 4])
def test_a_search_of_the_highest_rates_tries_no_plan_after_its_time(
    calls: int, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would take up to a second more, for a plan by a simple rule."""
    project, search, solved = load_project(pages, RATE), project_plan.solve_with, list[None]()

    def solve_counted(*arguments: Any, **options: Any) -> Any:
        solved.append(None)
        return search(*arguments, **options)

    monkeypatch.setattr(project_plan, "solve_with", solve_counted)
    alarm = Alarm(monkeypatch, project_plan, "solve_with", calls)
    for module in (project_plan, searched_objectives):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=alarm, perf_counter=lambda: 0.0))
    assert plan_project(project, time_limit_s=60.0, compare=False).plan is not None
    assert len(solved) == calls + 1  # the last one makes the plan of the rates that were found


def test_a_curve_at_the_limit_keeps_its_points(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = load_project(pages, ("slo.latency_p99=null", "sources.camera.rate=200/s"))
    whole = find_frontier(project)
    with limited_work(50.0, Alarm(monkeypatch, timed_solver, "solve_with")):
        part = find_frontier(project)
    assert whole.curve.finished
    assert not part.curve.finished
    assert len(part.curve.points) == 1 < len(whole.curve.points)


def test_a_calendar_at_the_limit_has_the_plan_for_the_highest_rates(
    pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = pages / "day.csv"
    rows = "".join(f"{hour * 3600},camera,{rate}\n" for hour, rate in enumerate((1, 2, 3, 4, 2, 1)))
    trace.write_text(f"time_s,source,rate_per_s\n{rows}21600,camera,1\n", encoding="utf-8")
    project = load_project(pages, ("slo.latency_p99=null",))
    whole = plan_by_time(project, trace)
    assert (whole.unplanned, whole.wanted_plans) == (0, 4)
    with limited_work(50.0, Alarm(monkeypatch, calendar, "plan_project")):
        part = plan_by_time(project, trace)
    assert part.unplanned == 3
    assert part.bound_usd <= whole.bound_usd
    assert part.total_usd >= whole.total_usd - 1e-9
    assert {one.plan.sources[0].rate_per_s for one in part.periods} == {4.0}


def test_figures_at_the_limit_say_what_they_are_of(pages: Path) -> None:
    plan = cheapest(pages)
    with limited_work(40.0, steps()):
        record = predict(plan)
    assert "time limit" in record["ended_by_time_limit"]
    assert record["simulations"] == 1
    with limited_work(0.0, steps(0.0)), pytest.raises(OutOfTimeError):
        predict(plan)


def test_no_rate_is_sought_above_what_serving_carries(pages: Path) -> None:
    plan = cheapest(pages)
    tiny = replace(
        plan,
        operators=tuple(
            replace(
                operator,
                service={
                    pool: {size: replace(one, mean_s=1e-9, quantiles=()) for size, one in times.items()}
                    for pool, times in operator.service.items()
                },
            )
            for operator in plan.operators
        ),
        links=tuple(replace(link, bandwidth_bytes_per_s=None) for link in plan.links),
    )
    assert sustained_rate(tiny, 0, None) == pytest.approx(MOST_PER_S)
    assert first_rate_per_s(tiny) == 2.0
    assert is_search_limit(tiny, MOST_PER_S)
    assert not is_search_limit(tiny, 0.99 * MOST_PER_S)


def test_a_command_with_a_limit_that_is_over_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "vqa"
    copy_example(Example.VQA, folder)
    status = run(["simulate", str(folder), "--time-limit", "0.01"])
    assert status == 1
    assert "time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("replay", "time ended before a plan for camera 40/s was found"),
        ("plan_project", "but time ended before the trace was replayed over it"),
    ],
)
@pytest.mark.slow
def test_a_check_says_that_time_ended_before_a_better_plan_was_known(
    name: str, reason: str, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pages / "peak.csv").write_text("time_s,source,rate_per_s\n0,camera,40\n60,camera,2\n", encoding="utf-8")
    cheapest(pages)
    with limited_work(1.0, Alarm(monkeypatch, check, name)):
        checked = check.check_trace(load_project(pages), pages / "peak.csv")
    assert checked.hint is not None
    assert checked.hint.command is None
    assert reason in checked.hint.reasons[0]
