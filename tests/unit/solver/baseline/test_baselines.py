from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from jellybean_solver import (
    NO_ASSIGNMENT,
    Baseline,
    Clock,
    EndToEnd,
    Link,
    OutOfTimeError,
    Problem,
    Sharing,
    Slo,
    SolverError,
    baselines,
    cut_form,
    evaluate,
    quick_solution,
    solve,
)
from tests.support.small_problems import box, gpu, operator, problem, variant
from tests.vqa_medium import vqa_problem


def test_baselines_of_the_published_instance() -> None:
    case = vqa_problem()
    found = {baseline.name: baseline for baseline in baselines(case)}
    plan = solve(case).plan

    assert plan is not None
    assert list(found) == [
        "all in edge", "all in cloud", "cheapest variants", "most accurate variants", "greedy tier by tier",
    ]  # fmt: skip
    assert found["all in edge"].status == "infeasible"
    assert found["all in edge"].cost_usd_per_h is None
    for name in ("all in cloud", "most accurate variants"):
        cost = found[name].cost_usd_per_h
        assert cost is not None
        assert cost > plan.cost.total_usd_per_h
    assert found["cheapest variants"].status == "accuracy_missed"
    assert found["cheapest variants"].note == "accuracy 54.02 is below the target of 56"
    assert found["most accurate variants"].accuracy == 58.33


def test_one_tier_has_no_cloud_baseline() -> None:
    case = problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()])
    names = [baseline.name for baseline in baselines(replace(case, tiers=("edge",), links=()))]

    assert names == ["all in edge", "cheapest variants", "most accurate variants", "greedy tier by tier"]


def test_baselines_show_a_broken_budget() -> None:
    case = problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()], slo=Slo(budget_usd_per_h=0.5))
    found: dict[str, Baseline] = {baseline.name: baseline for baseline in baselines(case)}

    assert found["all in edge"].status == "limit_broken"
    assert found["all in edge"].cost_usd_per_h == pytest.approx(1.0)


def test_a_baseline_that_time_stopped_says_so() -> None:
    known = EndToEnd(("a",), {("x",): 50.0})
    case = problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()], accuracy=known)
    ticks = itertools.count()
    found = {item.name: item for item in baselines(case, time_limit_s=0.5, clock=lambda: float(next(ticks)))}

    assert found["all in edge"].status == "time_limit"
    assert found["all in edge"].cost_usd_per_h is None
    assert "in the time allowed" in found["all in edge"].note
    assert "time ended" in found["most accurate variants"].note
    assert found["greedy tier by tier"].status == "found"
    with pytest.raises(SolverError, match="clock"):
        baselines(case, time_limit_s=1.0)


def test_an_operator_that_runs_nowhere_makes_every_baseline_infeasible() -> None:
    case = problem(operator("a", ["camera"], variant("x", {"tpu": 0.01})), pools=[box()])

    assert {baseline.status for baseline in baselines(case)} == {"infeasible", NO_ASSIGNMENT}


def test_the_greedy_rule_finds_the_published_plan() -> None:
    found = {baseline.name: baseline for baseline in baselines(vqa_problem())}["greedy tier by tier"]

    assert found.status == "found"
    assert found.cost is not None
    assert found.cost.compute_usd_per_h == pytest.approx(6.242, abs=5e-4)
    assert found.cost.network_usd_per_h == pytest.approx(1.2668, abs=5e-5)
    assert found.selection is not None
    assert found.selection["image_features"] == "resnet18"
    assert found.selection["speech_to_text"] == "wav2vec2-large-960h-lv60-self"


def _notes(case: Problem) -> dict[str, str]:
    return {baseline.name: baseline.note for baseline in baselines(case)}


def test_a_tier_that_data_or_operators_are_kept_out_of_is_not_said_to_lack_workers() -> None:
    see = operator("see", ["camera"], variant("x", {"box": 0.01, "gpu": 0.01}))
    case = problem(see, pools=[box(), gpu()])
    alone = "infeasible with the workers of cloud alone: "
    blocked = (
        f"{alone}operator see can only run in tier cloud, where its inputs cannot flow (camera in edge), as data goes "
        "up the tiers over declared links"
    )
    assert _notes(replace(case, links=()))["all in cloud"] == (
        f"{blocked}; no link from edge to cloud: add a link {{from: edge, to: cloud}}"
    )
    held = replace(case, operators=(replace(see, tiers=("edge",)),))
    assert _notes(held)["all in cloud"].startswith(f"{alone}operator see cannot run anywhere: it may run in edge only")
    kept = replace(case, operators=(replace(see, inputs=tuple(replace(e, tiers=("edge",)) for e in see.inputs)),))
    assert _notes(kept)["all in cloud"] == f"{blocked}: the data camera -> see in edge only"
    bare = problem(operator("see", ["camera"], variant("x", {"box": 0.01})), pools=[box(), gpu()])
    assert _notes(bare)["all in cloud"] == (
        f"{alone}operator see cannot run anywhere: no worker pool has a profile of its variants (x)"
    )


def test_an_infeasible_baseline_says_what_it_lacks() -> None:
    case = problem(operator("see", ["camera"], variant("x", {"box": 0.3, "gpu": 0.01})), pools=[box(2), gpu()])
    notes = _notes(case)  # 10 requests of 0.3 s keep three boxes busy
    assert notes["all in edge"].startswith("infeasible with the workers of edge alone: capacity: at most 0.66")
    late = _notes(problem(operator("see", ["camera"], variant("x", {"box": 0.3})), pools=[box(2)]))
    assert late["greedy tier by tier"] == (
        "the rule finds no assignment: no free workers, one operator each, sustain the rate of see in a tier that its "
        "inputs reach, after the operators before it were placed"
    )


def crossing_problem(bandwidth_bytes_per_s: float) -> Problem:
    """A cheap fast box, then a model that only the cloud runs: the message between them may not fit over the link."""
    return problem(
        operator("a", ["camera"], variant("x", {"box": 0.01, "gpu": 0.01}, {"b": 1e6})),
        operator("b", ["a"], variant("x", {"gpu": 0.01})),
        pools=[box(price=0.1, sharing=Sharing.EXCLUSIVE), gpu(3, sharing=Sharing.EXCLUSIVE)],
        message_bytes=1e3,
        links=(Link("edge", "cloud", 0.0, bandwidth_bytes_per_s),),
    )


@pytest.mark.parametrize(("bandwidth", "where"), [(1e9, {"box", "gpu"}), (1e5, {"gpu"})])
def test_a_quick_plan_keeps_the_bandwidth(bandwidth: float, where: set[str]) -> None:
    case = crossing_problem(bandwidth)
    solution, best = quick_solution(case, Clock()), solve(case).plan
    assert solution is not None and solution.plan is not None and best is not None
    assert {worker.pool for worker in solution.plan.workers} == where
    assert not evaluate(case, solution.plan).complaints
    certificate = solution.plan.certificate
    assert certificate.termination == "time_limit"
    assert 0.0 < certificate.bound <= best.cost.total_usd_per_h <= certificate.objective


def test_what_one_search_has_proven_bounds_the_quick_plan() -> None:
    case = crossing_problem(1e9)
    best = solve(case).plan
    assert best is not None
    solution = quick_solution(case, Clock(), best.cost.total_usd_per_h)
    assert solution is not None and solution.certificate is not None
    assert solution.certificate.bound == pytest.approx(best.cost.total_usd_per_h)


def cut_case(head_s: float, tail_s: float) -> Problem:
    """A model that a GPU runs best, and a cut of it: the head on boxes, the tail on GPUs, each in so many seconds."""
    case = problem(
        operator("find", ["camera"], variant("net", {"box": 0.1, "gpu": 0.1})),
        pools=[box(20, 1.0), gpu(20, 1.0)],
        rate_per_s=100.0,
        links=[Link("edge", "cloud", 0.0)],
    )
    head = replace(variant("net.head", {"box": head_s, "gpu": 0.09}), message_bytes={"find": 10.0})
    tail = variant("net", {"box": 0.08, "gpu": tail_s})
    (find,) = case.operators
    return replace(case, operators=(replace(find, forms=(cut_form(find, head, tail, ("camera",)),)),))


@pytest.mark.parametrize("parts", [(0.02, 0.01), (0.05, 0.01), (0.02, 0.06)])
def test_a_quick_plan_of_whole_models_is_not_proven_cheaper_than_one_with_a_cut(
    parts: tuple[float, float],
) -> None:
    case = cut_case(*parts)
    best = solve(case).plan
    assert best is not None
    with pytest.raises(OutOfTimeError) as late:
        solve(case, gap=0.0, time_limit_s=0.0, clock=lambda: 0.0)
    assert late.value.bound > 0.0
    solution = quick_solution(case, Clock(), late.value.bound)
    assert solution is not None and solution.certificate is not None
    cost = best.cost.total_usd_per_h
    assert solution.certificate.bound <= cost * (1 + 1e-9) < solution.certificate.objective
    assert not solution.certificate.is_optimal


def test_there_is_no_quick_plan_where_no_link_is_wide_enough() -> None:
    case = crossing_problem(1e2)
    assert quick_solution(case, Clock()) is None


@pytest.mark.parametrize("counts", [(40, 0), (3, 40), (2, 1)])
def test_the_greedy_rule_takes_many_workers_of_several_pools(counts: tuple[int, int]) -> None:
    """30 workers' worth of requests: the cheapest by throughput are used up first, the last is the cheapest."""
    small, large = counts
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 3.0, "gpu": 1.0})),
        pools=[box(small, 0.1, Sharing.EXCLUSIVE), gpu(large, 0.5, Sharing.EXCLUSIVE)],
    )
    rule = {baseline.name: baseline for baseline in baselines(case)}["greedy tier by tier"]
    if counts == (2, 1):
        assert rule.status == NO_ASSIGNMENT
        return
    (plan,) = rule.plans
    used = Counter(worker.pool for worker in plan.workers)
    assert used == ({"box": 30} if not large else {"box": 3, "gpu": 9})
