from __future__ import annotations

import importlib
import itertools
from dataclasses import replace

import pytest

from jellybean_solver import (
    Edge,
    EndToEnd,
    Independent,
    Link,
    Network,
    Pool,
    Problem,
    Sharing,
    Slo,
    SolverError,
    Source,
    evaluate,
    solve,
    to_document,
)
from jellybean_solver.small.beam_search import BeamSearch, BeamSettings
from tests.support.small_problems import GIB, box, gpu, operator, problem, variant
from tests.vqa_medium import vqa_problem


@pytest.mark.parametrize(("sharing", "expected"), [(Sharing.SHARED, 7.0115), (Sharing.EXCLUSIVE, 7.4850)])
def test_published_instance(sharing: Sharing, expected: float) -> None:
    solution = solve(vqa_problem(40.0, 56.0, sharing))

    assert solution.status == "optimal"
    assert solution.plan is not None
    assert solution.plan.cost.total_usd_per_h == pytest.approx(expected, abs=5e-5)
    assert solution.plan.certificate.gap == 0
    assert solution.plan.accuracy == 56.59
    chosen = solution.plan.selection
    assert chosen["image_features"] == "resnet18"
    assert chosen["speech_to_text"] == "wav2vec2-large-960h-lv60-self"


def test_the_same_problem_has_the_same_plan() -> None:
    first, second = (solve(vqa_problem()).plan for _ in range(2))

    assert first is not None
    assert second is not None
    assert to_document(first)["hash"] == to_document(second)["hash"]


@pytest.mark.parametrize("beam_width", [1, 2, 100])
def test_the_beam_changes_the_effort_not_the_answer(beam_width: int) -> None:
    network = Network(vqa_problem(80.0, 57.0))
    outcome = BeamSearch(network, 57.0, settings=BeamSettings(width=beam_width)).run()

    assert outcome.value == pytest.approx(26.7314, abs=5e-5)
    assert outcome.gap == 0


def _diamond(rate_per_s: float) -> Problem:
    """split feeds left and right, which join in the cloud; the box has time for one of the two branches."""
    heavy = GIB / 3600
    return problem(
        operator("split", ["camera"], variant("v", {"box": 0.0}, {"left": heavy, "right": heavy})),
        operator("left", ["split"], variant("v", {"box": 0.1, "gpu": 0.001}, {"join": 1.0})),
        operator("right", ["split"], variant("v", {"box": 0.1, "gpu": 0.001}, {"join": 1.0})),
        operator("join", ["left", "right"], variant("v", {"gpu": 0.001})),
        pools=[box(), gpu()],
        rate_per_s=rate_per_s,
    )


def test_a_diamond_is_placed_by_whole_requests() -> None:
    case = _diamond(10.0)
    plan = solve(case).plan

    assert plan is not None
    assert evaluate(case, plan).complaints == ()
    # Ten heavy messages a second cross to the branch that is not at the edge, whichever it is: 10 GiB/h at 0.1.
    assert plan.cost.network_usd_per_h == pytest.approx(1.0, abs=1e-4)


def test_workers_of_a_shared_pool_carry_the_same_load() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.13}, {"b": 0.0})),
        operator("b", ["a"], variant("y", {"box": 0.11})),
        pools=[box(count=9)],
    )
    plan = solve(case).plan

    assert plan is not None
    assert [worker.name for worker in plan.workers] == ["box-1", "box-2", "box-3"]
    assert [worker.load for worker in plan.workers] == [pytest.approx(0.8)] * 3
    assert sum(len(worker.rates_per_s) for worker in plan.workers) <= 4  # at most one operator per cut
    assert len(plan.routes) <= 5


def test_free_workers_are_not_hoarded() -> None:
    case = problem(operator("a", ["camera"], variant("x", {"box": 0.15})), pools=[box(count=5, price=0.0)])
    plan = solve(case).plan

    assert plan is not None
    assert len(plan.workers) == 2


def test_an_operator_that_takes_no_time_still_has_a_worker() -> None:
    case = problem(operator("a", ["camera"], variant("x", {"box": 0.0})), pools=[box()])
    plan = solve(case).plan

    assert plan is not None
    assert plan.routes[0].workers == {"a": "box-1"}
    assert plan.cost.total_usd_per_h == 1.0


def test_components_without_a_common_operator_are_planned_together() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.15})),
        operator("b", ["microphone"], variant("y", {"box": 0.02})),
        pools=[box(count=3)],
    )
    case = replace(case, sources=(*case.sources, Source("microphone", "edge", 40.0, 0.0)))
    plan = solve(case).plan

    assert plan is not None
    assert evaluate(case, plan).complaints == ()
    assert len(plan.workers) == 3
    assert sum(route.weight for route in plan.routes) == pytest.approx(1.0, abs=1e-12)


def test_two_edges_between_the_same_operators_both_cost_traffic() -> None:
    size = GIB / 36000
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": size})),
        operator("b", [Edge("a", "b", output="boxes"), Edge("a", "b", output="scores")], variant("y", {"gpu": 0.01})),
        pools=[box(), gpu()],
    )
    plan = solve(case).plan

    assert plan is not None
    assert plan.cost.network_usd_per_h == pytest.approx(0.2)


def test_an_unknown_selection_is_allowed_only_without_a_target() -> None:
    case = problem(
        operator("a", ["camera"], variant("cheap", {"box": 0.01}), variant("known", {"gpu": 0.01})),
        pools=[box(), gpu()],
        accuracy=EndToEnd(("a",), {("known",): 90.0}),
    )
    free, asked = solve(case).plan, solve(replace(case, slo=Slo(accuracy=50.0))).plan

    assert free is not None
    assert asked is not None
    assert (free.selection["a"], free.accuracy) == ("cheap", None)
    assert (asked.selection["a"], asked.accuracy) == ("known", 90.0)


def test_an_accuracy_exactly_at_the_target_is_met() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01})),
        pools=[box()],
        accuracy=Independent({"a": {"x": 97.3}}),
        slo=Slo(accuracy=97.3),
    )
    assert solve(case).status == "optimal"


def test_a_time_limit_needs_a_clock() -> None:
    with pytest.raises(SolverError, match="needs a clock"):
        solve(vqa_problem(), time_limit_s=1.0)


def test_out_of_time_before_any_plan() -> None:
    ticks = itertools.count(0.0, 10.0)
    with pytest.raises(SolverError, match="no plan was found in the time allowed"):
        solve(_diamond(10.0), time_limit_s=1.0, clock=lambda: next(ticks))


@pytest.mark.slow
def test_out_of_time_with_a_plan_keeps_an_honest_gap() -> None:
    # Two boxes of one pool are cheap per request, but whole workers make the relaxation's bound a loose one.
    variants = [variant(f"v{i}", {"box": 0.06 + 0.001 * i, "gpu": 0.02 + 0.001 * i}) for i in range(4)]
    case = problem(operator("a", ["camera"], *variants), pools=[box(5, 1.0), gpu(5, 2.9)], rate_per_s=30.0)
    seen = []
    for limit in range(1, 40):
        ticks = itertools.count(0.0, 1.0)
        try:
            solution = solve(case, time_limit_s=float(limit), clock=lambda ticks=ticks: next(ticks))  # type: ignore[misc]
        except SolverError:
            continue
        assert solution.plan is not None
        certificate = solution.plan.certificate
        assert certificate.bound <= certificate.objective + 1e-9
        assert certificate.gap == pytest.approx((certificate.objective - certificate.bound) / certificate.objective)
        assert solution.status == certificate.termination
        seen.append(solution.status)
    assert seen[-1] == "optimal"


def test_the_selection_with_links_decides() -> None:
    big, small = GIB / 3600, 1.0
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": big}), variant("y", {"box": 0.05}, {"b": small})),
        operator("b", ["a"], variant("z", {"gpu": 0.01})),
        pools=[box(2), gpu()],
        links=[Link("edge", "cloud", 1.0)],
    )
    plan = solve(case).plan

    assert plan is not None
    assert plan.selection["a"] == "y"


def test_data_never_flows_down() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"gpu": 0.01}, {"b": 1.0})),
        operator("b", ["a"], variant("y", {"box": 0.01, "gpu": 0.05})),
        pools=[Pool("box", "edge", 1, 0.1), gpu()],
    )
    plan = solve(case).plan

    assert plan is not None
    assert {placement.pool for placement in plan.placements} == {"gpu"}


def test_a_plan_that_contradicts_the_problem_is_never_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[str]:
        return ["box-1 is overloaded"]

    case = problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()])
    scorer = importlib.import_module("jellybean_solver.model.evaluate")  # the package's name is the function
    monkeypatch.setattr(scorer, "accuracy_violations", broken)
    with pytest.raises(SolverError, match=r"contradicts the problem \(box-1 is overloaded\)"):
        solve(case)


@pytest.mark.slow
def test_out_of_time_with_a_plan_above_the_budget_proves_nothing() -> None:
    variants = [variant(f"v{i}", {"box": 0.06 + 0.001 * i, "gpu": 0.02 + 0.001 * i}) for i in range(4)]
    case = problem(operator("a", ["camera"], *variants), pools=[box(5, 1.0), gpu(5, 2.9)], rate_per_s=30.0)
    plan = solve(case).plan
    assert plan is not None
    case = replace(case, slo=Slo(budget_usd_per_h=plan.cost.total_usd_per_h * (1 + 1e-9)))
    seen = set()
    for limit in range(1, 40):
        ticks = itertools.count(0.0, 1.0)
        try:
            seen.add(solve(case, time_limit_s=float(limit), clock=lambda ticks=ticks: next(ticks)).status)  # type: ignore[misc]
        except SolverError as error:
            assert "allow more time" in str(error)
            seen.add("unknown")
    assert "infeasible" not in seen
    assert {"unknown", "optimal"} <= seen
