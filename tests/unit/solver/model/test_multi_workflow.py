"""Several workflows as one problem: margins, streams, routes, and a p99 latency for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_agent import plan_part
from jellybean_solver import (
    Arrivals,
    Edge,
    Independent,
    Link,
    Margins,
    Operator,
    Plan,
    Pool,
    Problem,
    RequirementKind,
    ServiceTime,
    Slo,
    SolverError,
    Source,
    Variant,
    baselines,
    combine_workflows,
    evaluate,
    explain,
    from_document,
    request_streams,
    selection_shares,
    solve,
    to_document,
)
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.route_drawing import own_routes
from jellybean_solver.planning.requirements import drop, relaxed, requirements

POOLS = (Pool("box", "edge", 6, 0.1), Pool("gpu", "cloud", 3, 0.6))
LINKS = (Link("edge", "cloud", 0.1, 5e6, 0.01),)


def service(mean_s: float) -> Mapping[int, ServiceTime]:
    return {1: ServiceTime(mean_s, mean_s, ((0.5, 0.95 * mean_s), (0.9, 1.2 * mean_s), (0.99, 1.6 * mean_s)))}


def workflow(rate_per_s: float, times_s: Mapping[str, float], accuracy: float | None = 70.0) -> Problem:
    """A chain of operators whose better variant takes twice as long; five times as fast in the cloud."""
    names = list(times_s)
    operators = []
    for index, (name, box_s) in enumerate(times_s.items()):
        sent = dict.fromkeys(names[index + 1 : index + 2], 20000.0)
        variants = tuple(
            Variant(variant, {"box": service(more * box_s), "gpu": service(more * box_s / 5)}, sent)
            for variant, more in (("fast", 1.0), ("good", 2.0))
        )
        operators.append(Operator(name, (Edge(names[index - 1] if index else "camera", name),), variants))
    return Problem(
        name="chain",
        tiers=("edge", "cloud"),
        sources=(Source("camera", "edge", rate_per_s, 1e5, Arrivals.POISSON),),
        operators=tuple(operators),
        pools=POOLS,
        links=LINKS,
        accuracy=Independent({names[0]: {"fast": 80.0, "good": 95.0}}),
        slo=Slo(accuracy=accuracy),
        hop_s=0.001,
    )


def two(accuracy: float | None = 70.0) -> Problem:
    return combine_workflows(
        "two", {"a": workflow(10.0, {"detect": 0.06, "read": 0.01}), "b": workflow(4.0, {"listen": 0.05}, accuracy)}
    )


def with_p99(problem: Problem, **targets_s: float) -> Problem:
    workflows = tuple(replace(w, slo=replace(w.slo, latency_p99_s=targets_s.get(w.name))) for w in problem.workflows)
    return replace(problem, workflows=workflows)


def cheapest(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assert plan is not None
    return plan


def test_margins_are_points_above_each_target() -> None:
    model = two(accuracy=90.0).accuracy
    assert isinstance(model, Margins)
    assert model.value({"a/detect": "fast", "a/read": "fast", "b/listen": "good"}) == pytest.approx(5.0)
    assert model.value({"a/detect": "fast", "a/read": "fast", "b/listen": "fast"}) == pytest.approx(-10.0)
    assert model.upper_bound({"b/listen": "good"}) == pytest.approx(5.0)


def test_a_workflow_without_a_target_takes_the_cheapest_variant() -> None:
    problem = two(accuracy=None)
    assert problem.accuracy_target == 0.0
    plan = cheapest(problem)
    assert plan.selection["b/listen"] == "fast"
    assert [own.accuracy for own in plan.workflows] == [80.0, 80.0]


def test_a_better_target_of_one_changes_nothing_of_the_other() -> None:
    plan = cheapest(two(accuracy=90.0))
    assert plan.selection["a/detect"] == "fast"
    assert plan.selection["b/listen"] == "good"


def test_other_fleets_and_names_taken_are_refused() -> None:
    one = workflow(1.0, {"detect": 0.01})
    with pytest.raises(SolverError, match="b is not on the fleet of a"):
        combine_workflows("two", {"a": one, "b": replace(one, pools=POOLS[:1])})
    with pytest.raises(SolverError, match="no workflow"):
        combine_workflows("none", {})
    with pytest.raises(SolverError, match="names of sources and operators must hold no '/'"):
        combine_workflows("nested", {"a": two()})


def test_requests_are_of_one_workflow_even_at_equal_rates() -> None:
    one = workflow(5.0, {"detect": 0.01})
    problem = combine_workflows("two", {"a": one, "b": one})
    streams = request_streams(cheapest(problem))
    assert [(s.workflow, s.operators, s.sinks, s.rate_per_s) for s in streams] == [
        ("a", ("a/detect",), ("a/detect",), 5.0),
        ("b", ("b/detect",), ("b/detect",), 5.0),
    ]
    assert single_workflow(problem, problem.workflows[1]).operators == problem.operators[1:]


def test_each_draws_from_the_ways_that_differ_to_it() -> None:
    plan = cheapest(two())
    for stream in request_streams(plan):
        ways = own_routes(plan.routes, stream.operators)
        seen = [tuple(plan.routes[index].workers[name] for name in stream.operators) for index in ways]
        assert len(set(seen)) == len(seen)
        assert math.fsum(ways.values()) == pytest.approx(1.0)


def test_one_after_the_other_is_a_baseline_that_costs_no_less() -> None:
    problem = two()
    first = baselines(problem)[0]
    assert first.name == "planning one workflow after the other"
    assert first.cost_usd_per_h is not None
    assert first.cost_usd_per_h >= cheapest(problem).cost.total_usd_per_h - 1e-9
    alone_usd = sum(cheapest(single_workflow(problem, w)).cost.total_usd_per_h for w in problem.workflows)
    assert first.cost_usd_per_h >= alone_usd - 1e-9


def test_what_is_asked_of_each_can_be_eased_by_itself() -> None:
    problem = with_p99(two(accuracy=90.0), b=0.5)
    asked = {(r.kind, *r.subjects): r for r in requirements(problem)}
    assert asked[RequirementKind.ACCURACY, "b"].words == "the accuracy target of 90 of b"
    assert asked[RequirementKind.LATENCY_P99, "b"].words == "the p99 latency of 500 ms of b"
    lower = relaxed(problem, asked[RequirementKind.ACCURACY, "b"], 80.0)
    assert cheapest(lower).selection["b/listen"] == "fast"
    dropped = drop(problem, asked[RequirementKind.ACCURACY, "a"], asked[RequirementKind.LATENCY_P99, "b"])
    assert [w.slo for w in dropped.workflows] == [Slo(), Slo(accuracy=90.0)]
    more = relaxed(problem, asked[RequirementKind.RATE, "a/camera"], 1.1)
    assert [source.rate_per_s for source in more.sources] == [pytest.approx(11.0), 4.0]


@pytest.mark.slow
def test_an_explanation_holds_each_target_against_the_plan() -> None:
    found = explain(two(accuracy=90.0))
    used = {
        limit.requirement.subjects: limit.used
        for limit in found.limits
        if limit.requirement.kind is RequirementKind.ACCURACY
    }
    assert used == {("a",): 80.0, ("b",): 95.0}
    dearer = {change.words: change for change in found.values}
    assert dearer["accuracy of a above this plan's 80"].delta_usd_per_h == pytest.approx(0.1, abs=1e-6)
    conflict = explain(two(accuracy=99.0)).conflict
    assert conflict is not None
    assert [(r.kind, r.subjects) for r in conflict.members] == [(RequirementKind.ACCURACY, ("b",))]
    assert [(r.helps, r.value, r.accuracy) for r in conflict.relaxations] == [(True, 95.0, 95.0)]


def test_deadlines_are_shares_of_the_longest() -> None:
    problem = with_p99(two(), a=0.4, b=0.1)
    assert problem.deadline_s == 0.4
    assert problem.deadline_shares == {"a": 1.0, "b": 0.25}
    assert with_p99(two(), b=0.1).deadline_shares == {"b": 1.0}
    assert two().deadline_shares == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_closed_form_of_each_is_near_the_simulator(name: str) -> None:
    plan = cheapest(with_p99(two(), **{name: 1.0}))
    simulated = simulate_plan(plan, duration_s=150).workflows[name].latency_p99_s
    assert 0.75 <= latency(plan).p99_s / simulated <= 1.6


@pytest.mark.slow
@pytest.mark.parametrize("targets_s", [{"a": 0.2}, {"b": 0.15}, {"a": 0.25, "b": 0.17}])
def test_a_plan_is_found_that_keeps_the_p99_of_each(targets_s: dict[str, float]) -> None:
    problem = with_p99(two(), **targets_s)
    before = simulate_plan(cheapest(problem), duration_s=100).workflows
    assert any(before[name].latency_p99_s > target_s for name, target_s in targets_s.items())
    solution = solve(problem, p99_s=problem.deadline_s)
    plan = solution.plan
    assert plan is not None
    assert plan.certificate.bound <= plan.cost.total_usd_per_h
    result = simulate_plan(plan, duration_s=100)
    for own in plan.workflows:
        if own.slo.latency_p99_s is not None:
            assert result.workflows[own.name].latency_p99_s <= 1.15 * own.slo.latency_p99_s


def test_a_p99_that_nothing_keeps_is_told_by_workflow() -> None:
    problem = with_p99(two(), a=0.5, b=0.002)
    solution = solve(problem, p99_s=0.5)
    assert solution.plan is None
    assert solution.infeasibility is not None
    assert solution.infeasibility.reasons == (
        "no plan keeps p99 latencies of 500 ms for a and 2.00 ms for b even with zero queueing delay",
    )


def mixed() -> tuple[Problem, Plan]:
    """Two workflows, of which one mixes its variants, and their plan."""
    first = workflow(30.0, {"detect": 0.05, "read": 0.02}, None)
    parts = {"a": replace(first, slo=Slo(mean_accuracy=84.0)), "b": workflow(10.0, {"detect": 0.04})}
    both = combine_workflows("both", parts)
    plan = solve(both).plan
    assert plan is not None
    return both, plan


def test_each_workflow_has_the_mean_of_its_own_selections() -> None:
    both, plan = mixed()
    assert evaluate(both, plan).complaints == ()
    parts = selection_shares(plan)
    by_workflow = {name: [part for part in parts if part.workflow == name] for name in ("a", "b")}
    assert len(by_workflow["a"]) > 1
    assert len(by_workflow["b"]) == 1
    for one in plan.workflows:
        own = by_workflow[one.name]
        assert math.fsum(part.share for part in own) == pytest.approx(1.0)
        assert all(plan.workflow_of(name) == one.name for part in own for name in part.selection)
        assert isinstance(both.accuracy, Margins)
        model = both.accuracy.models[one.name]
        mean = math.fsum(part.share * (model.value(part.selection) or 0.0) for part in own)
        assert one.accuracy == pytest.approx(mean)
    assert plan.workflows[0].accuracy == pytest.approx(84.0, abs=0.01)


def test_a_route_of_two_workflows_tells_no_selection() -> None:
    both, plan = mixed()
    first = next(route for route in plan.routes if "a/detect" in route.workers)
    second = next(route for route in plan.routes if "b/detect" in route.workers)
    joined = replace(first, workers={**first.workers, **second.workers})
    wrong = replace(plan, routes=(joined, *(route for route in plan.routes if route not in (first, second))))
    complaints = " ".join(evaluate(both, wrong).complaints)
    assert "route 1 is of several workflows, but a plan that mixes variants has one on each" in complaints


def test_the_views_of_a_mixed_plan_have_their_own_names_and_parts_of_the_price() -> None:
    _, plan = mixed()
    document = to_document(plan)
    views = [from_document(plan_part(document, name)) for name in ("a", "b")]
    assert [view.mixes for view in views] == [True, False]
    for view in views:
        assert all("/" not in name for one in view.variants for name in (one.name, *one.message_bytes))
        assert all("/" not in name for worker in view.workers for name in worker.variants)
    paid = math.fsum(worker.price_usd_per_h for view in views for worker in view.workers)
    assert paid == pytest.approx(plan.cost.compute_usd_per_h)


@pytest.mark.parametrize(("worth", "left"), [(1.0, ["b"]), (None, None)])
def test_a_workflow_that_is_always_late_is_left_out_if_it_may_be(worth: float | None, left: list[str] | None) -> None:
    both = with_p99(two(), a=2.0, b=0.03)  # a run of b takes 50 ms on a box, and 10 ms on a gpu after 30 ms of the link
    workflows = tuple(replace(one, worth_usd_per_h=worth if one.name == "b" else None) for one in both.workflows)
    solution = solve(replace(both, workflows=workflows), p99_s=2.0, explained=False)
    if left is None:
        assert solution.plan is None
        return
    assert solution.plan is not None
    assert [one.name for one in solution.plan.left_out] == left
    assert solution.plan.certificate.forgone_usd_per_h == worth
    assert solution.plan.certificate.bound <= solution.plan.cost.total_usd_per_h + 1.0 + 1e-9
