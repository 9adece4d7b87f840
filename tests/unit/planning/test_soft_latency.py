"""Plans of projects with a soft p99 latency, compared with those for a grid of hard targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from jellybean.documents import Project, build_problem, load_project
from jellybean.frontier import find_frontier
from jellybean.planning import (
    PlanFile,
    Planned,
    current_plan,
    explain_project,
    plan_project,
    planned_late_p99_s,
    predicted_p99,
    replan_project,
)
from jellybean.planning.predicted_latency import simulated_p99_s
from jellybean.planning.soft_plan import TOLERANCE, reached_s
from jellybean.planning.soft_targets import SoftTarget, as_hard, soft_targets
from jellybean.whatif import plan_by_time
from jellybean_solver import (
    MigrationPrices,
    Plan,
    Termination,
    TimedPlan,
    Verdict,
    cheapest_migration,
    from_document,
    rescore,
    to_document,
)
from tests.support.scales_project import make_scales_project

QUEUES = (  # 1 box has a p99 of 0.4 s, 2 have 0.09 s, 3 have 0.06 s, and 4 have 0.04 s
    "sources.x.arrivals=poisson",
    "workers.box.count=6",
    "limits.utilisation=0.95",
    "profiles.operators.first.two.latency.box=40 ms",
    "profiles.operators.first.five.latency.box=45 ms",
)
TIGHTER = ("limits.utilisation=0.45",)
MIXED = ("slo.accuracy={mean: 85}", "profiles.operators.first.five.latency.box=60 ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scales_project(tmp_path_factory.mktemp("soft") / "scales")


def soft(folder: Path, penalty: str, *options: str, target: str = "60 ms") -> Project:
    return load_project(folder, [*QUEUES, f"slo.latency_p99={{target: {target}, penalty: {penalty}}}", *options])


def hard(folder: Path, target_s: float, *options: str) -> Project:
    return load_project(folder, [*QUEUES, f"slo.latency_p99={1e3 * target_s:g} ms", *options])


def value(planned: Planned, project: Project) -> float:
    """Cost of a plan, with the penalties that the project states."""
    assert planned.plan is not None
    slo = build_problem(project).slo
    late = slo.latency_penalty(predicted_p99(planned.plan)[""].p99_s)
    return planned.plan.cost.total_usd_per_h + late + slo.penalty(planned.plan.accuracy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("penalty", "options"),
    [
        ("0.1 USD/h per s", ()),
        ("0.3 USD/h per s", ()),
        ("10 USD/h per s", ()),
        pytest.param("3 USD/h per s", (), marks=pytest.mark.nightly),
        pytest.param("1 USD/h per s", MIXED, marks=pytest.mark.nightly),
        pytest.param("1 USD/h per s", ("slo.accuracy={mean: 90, penalty: 0.02 USD/h}",), marks=pytest.mark.nightly),
    ],
)
def test_no_plan_for_a_hard_target_is_better(folder: Path, penalty: str, options: tuple[str, ...]) -> None:
    asked = soft(folder, penalty, *options)
    planned = plan_project(asked)
    assert planned.plan is not None and planned.solution.certificate == planned.plan.certificate
    proof = planned.plan.certificate
    assert proof.objective == pytest.approx(value(planned, asked))
    assert proof.objective - proof.penalty_usd_per_h == pytest.approx(planned.plan.cost.total_usd_per_h)
    for target_s in (0.03, 0.045, 0.06, 0.065, 0.08, 0.1, 0.2, 0.5):
        other = plan_project(hard(folder, target_s, *options), compare=False)
        if other.plan is not None:
            assert proof.bound <= value(other, asked) * (1 + 1e-9)
            assert proof.objective <= value(other, asked) / (1 - TOLERANCE)


@pytest.mark.slow
def test_what_few_requests_visit_proves_nothing(folder: Path) -> None:
    """One request of 200 takes half a second more: no plan's p99 latency depends on it."""
    rare = (
        "operators.triple.inputs=[{from: first, ratio: 0.005}]",
        "profiles.operators.triple.three.latency.server=500 ms",
    )
    asked = soft(folder, "0.03 USD/h per 10 ms", *rare)
    planned, tighter = plan_project(asked), plan_project(soft(folder, "0.03 USD/h per 10 ms", *rare, *TIGHTER))
    assert planned.plan is not None and tighter.plan is not None
    proof, other = planned.plan.certificate, tighter.plan.certificate
    assert proof.bound <= other.objective
    assert proof.objective <= other.objective * (1 + TOLERANCE)
    hard = plan_project(load_project(folder, [*QUEUES, *rare, *TIGHTER, "slo.latency_p99=100 ms"]))
    assert hard.plan is not None and hard.plan.cost.total_usd_per_h < 0.45


@pytest.mark.slow
def test_the_plan_states_its_targets_and_stays_current(folder: Path) -> None:
    asked = soft(folder, "0.3 USD/h per s")
    planned = plan_project(asked)
    plan = planned.plan
    assert plan is not None
    assert plan.slo == build_problem(asked).slo and plan.slo.latency_p99_s is None
    assert plan.overrides == asked.overrides
    assert from_document(to_document(plan)) == plan
    p99_s = predicted_p99(plan)[""].p99_s
    assert planned_late_p99_s(plan) == pytest.approx(p99_s)
    assert plan.late_usd_per_h == pytest.approx(0.3 * (p99_s - 0.06))
    assert planned.judged is not None and planned.judged.kept
    (reached,) = planned.judged.to_list()
    assert reached["penalty_usd_per_h"] == pytest.approx(plan.late_usd_per_h)
    PlanFile(folder).write(planned)
    assert current_plan(asked) == (PlanFile(folder).load().plan, "")
    other, why = current_plan(soft(folder, "0.1 USD/h per s"), writes=False)
    assert "is the plan for --set" in why and other.slo.latency_penalty_usd_per_h_per_s == 0.1


def test_a_target_that_the_cheapest_plan_meets_costs_one_search(folder: Path) -> None:
    steps: list[str] = []
    asked = soft(folder, "1 USD/h per ms", target="2 s")
    planned = plan_project(asked, progress=lambda done, total, label: steps.append(label))
    plan = planned.plan
    assert plan is not None and plan.certificate.is_optimal
    assert (plan.certificate.penalty_usd_per_h, planned.best, planned.cheapest) == (0.0, "", None)
    assert planned_late_p99_s(plan) is None
    assert not any(label.startswith("p99 within") for label in steps)


def test_without_any_plan_the_reasons_are_told(folder: Path) -> None:
    planned = plan_project(soft(folder, "1 USD/h per s", "slo.accuracy=99"))
    assert planned.plan is None and "the target is 99" in planned.reasons[0]
    assert planned.problem.slo.is_soft


@pytest.mark.slow
def test_a_time_limit_is_for_all_targets(folder: Path) -> None:
    asked = soft(folder, "0.3 USD/h per s")
    planned = plan_project(asked, time_limit_s=4.0)
    assert planned.plan is not None and planned.solve_s < 8.0
    assert planned.plan.certificate.termination in {Termination.TIME_LIMIT, Termination.GAP}
    by_rule = plan_project(asked, time_limit_s=1e-9)
    assert by_rule.plan is not None
    assert by_rule.plan.certificate.termination is Termination.TIME_LIMIT


@pytest.mark.nightly
def test_the_explained_plan_is_the_planned_one(folder: Path) -> None:
    asked = soft(folder, "0.3 USD/h per s")
    planned = plan_project(asked)
    explained = explain_project(asked, asked.overrides)
    plan = explained.explanation.plan
    assert plan is not None and planned.plan is not None
    assert plan.cost == planned.plan.cost
    assert planned.judged is not None and explained.soft_as_s == reached_s(planned.judged)
    assert explained.to_dict()["soft_latency_p99_as_s"] == explained.soft_as_s[""]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["0 USD", "0.02 USD", "1 USD"])
def test_penalties_are_weighed_against_migration(folder: Path, start: str) -> None:
    """Over an hour, from a plan that is too slow to its targets, of which starting a model costs more and more."""
    begun = load_project(folder, [*QUEUES, "slo.latency_p99=null"])
    running = plan_project(begun, compare=False)
    PlanFile(folder).write(running)
    prices = f"migration={{start: {start}, at_least: 0 %}}"
    asked = soft(folder, "1 USD/h per s", prices)
    decision = replan_project(asked, PlanFile(folder).load(), horizon_h=1.0).decision
    slo = build_problem(asked).slo
    assert running.plan is not None and decision.best is not None and decision.best_usd is not None

    late = slo.latency_penalty(predicted_p99(running.plan)[""].p99_s)
    assert decision.penalty_usd_per_h(decision.running) == pytest.approx(late)
    assert decision.running_usd == pytest.approx(running.plan.cost.total_usd_per_h + late)
    late = slo.latency_penalty(predicted_p99(decision.best)[""].p99_s)
    moved = decision.migration.total_usd if decision.migration is not None else 0.0
    assert decision.best_usd == pytest.approx(decision.best.cost.total_usd_per_h + late + moved)
    assert decision.migration == cheapest_migration(running.plan, decision.best, decision.settings.prices)
    assert (decision.verdict is Verdict.REPLACE) is (start != "1 USD")
    for target_s in (0.045, 0.065, 0.1, 0.5):
        other = replan_project(hard(folder, target_s, prices), PlanFile(folder).load(), horizon_h=1.0).decision
        if other.best is not None and other.best_usd is not None:
            p99_s = predicted_p99(other.best)[""].p99_s
            usd = other.best_usd + slo.latency_penalty(p99_s)
            assert decision.bound_usd <= usd * (1 + 1e-9)
            assert min(decision.best_usd, decision.running_usd) <= usd / (1 - TOLERANCE)


@pytest.mark.slow
def test_the_points_of_a_frontier_are_what_plan_chooses(folder: Path) -> None:
    """At each accuracy the plan of least cost and penalty, which the curve counts together."""
    found = find_frontier(soft(folder, "1 USD/h per s", "slo.accuracy=80"), rates=lambda problem: (0.5, 1.0))
    assert [point.x for point in found.curve.points] == [80.0, 95.0]
    for point in found.curve.points:
        asked = soft(folder, "1 USD/h per s", f"slo.accuracy={point.x:g}")
        planned = plan_project(asked)
        assert planned.plan is not None and planned.plan.late_usd_per_h > 0.0
        assert point.cost_usd_per_h == pytest.approx(value(planned, asked), rel=TOLERANCE)
        assert point.bound_usd_per_h <= point.cost_usd_per_h
    assert found.rates is not None and found.rates.points[1].cost_usd_per_h == pytest.approx(
        found.curve.points[0].cost_usd_per_h, rel=TOLERANCE
    )


@pytest.mark.slow
def test_a_calendar_counts_penalties_at_the_rates_of_each_period(folder: Path) -> None:
    """The cheapest of all sequences of its plans, of which each has its p99 latency in each period."""
    trace = folder / "day.csv"
    trace.write_text("time_s,source,rate_per_s\n0,x,4\n3600,x,20\n7200,x,12\n10800,x,0\n", encoding="utf-8")
    options = [*QUEUES, "slo.latency_p99={target: 60 ms, penalty: 1 USD/h per s}", "migration.start=0.05 USD"]
    found = plan_by_time(load_project(folder, options), trace, most=3, repeats=False)
    plans = {row.plan.overrides: row.plan for row in found.periods}
    for rates in ("4/s", "20/s", "12/s"):
        asked = load_project(folder, [*options, f"sources.x.rate={rates}"])
        plans.setdefault(asked.overrides, plan_project(asked, compare=False).plan or found.periods[0].plan)
    problem, prices = build_problem(load_project(folder, options)), MigrationPrices(start_usd=0.05)

    def usd(row: TimedPlan, plan: Plan) -> float:
        sources = tuple(replace(one, rate_per_s=row.period.rates_per_s[one.name]) for one in problem.sources)
        there, score, wrong = rescore(replace(problem, sources=sources), plan)
        late = problem.slo.latency_penalty(simulated_p99_s(there)[0][""])
        return math.inf if wrong else row.period.hours * (score.cost.total_usd_per_h + late)

    def total(sequence: Sequence[Plan]) -> float:
        own = sum(usd(row, plan) for row, plan in zip(found.periods, sequence, strict=True))
        return own + sum(cheapest_migration(one, two, prices).total_usd for one, two in pairwise(sequence))

    counted = found.total_usd + found.penalty_usd
    assert found.penalty_usd > 0.0
    assert counted == pytest.approx(total([row.plan for row in found.periods]))
    assert counted <= min(map(total, product(plans.values(), repeat=3))) * (1 + 1e-9)
    assert found.bound_usd <= counted <= found.peak_usd + 1e-9


def stated(project: Project) -> SoftTarget | None:
    return soft_targets(build_problem(project)).get("")


def test_options_replace_the_long_form(folder: Path) -> None:
    long_form = ("slo.soft_latency_p99=60 ms", "slo.latency_penalty=1 USD/h per s")
    written = load_project(folder, [*QUEUES, "slo={soft_latency_p99: 60 ms, latency_penalty: 1 USD/h per s}"])
    assert stated(written) == SoftTarget(0.06, 1.0)
    read = load_project(folder, [*written.overrides, "slo.latency_p99=500 ms"])
    assert stated(read) is None and read.workflow.slo.latency_p99_s == 0.5
    assert stated(load_project(folder, [*written.overrides, "slo.latency_p99=null"])) is None
    other = load_project(folder, [*written.overrides, "slo.latency_p99={target: 1 s, penalty: 2 USD/h per s}"])
    assert stated(other) == SoftTarget(1.0, 2.0)
    assert stated(load_project(folder, ["slo.latency_p99=null", *long_form])) == SoftTarget(0.06, 1.0)


def test_only_soft_targets_are_soft(folder: Path) -> None:
    assert stated(load_project(folder, ["slo.latency_p99=1 s"])) is None
    problem = build_problem(soft(folder, "1 USD/h per s"))
    assert as_hard(problem, {"": 0.5}).slo == build_problem(hard(folder, 0.5)).slo
    assert as_hard(problem, {}).slo == replace(build_problem(hard(folder, 0.5)).slo, latency_p99_s=None)
    promised = build_problem(hard(folder, 0.5))
    assert as_hard(promised, {}) == promised
