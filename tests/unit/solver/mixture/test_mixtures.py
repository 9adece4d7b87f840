"""Plans that mix variants, on problems whose optimum can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import load_by_worker, simulate_plan
from jellybean_solver import (
    Certificate,
    Deadline,
    Edge,
    EdgeKind,
    Independent,
    LossKind,
    Objective,
    Plan,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Variant,
    evaluate,
    flows,
    from_document,
    selection_shares,
    solve,
    to_document,
)
from tests import plan_check
from tests.support.small_problems import EndToEnd, box, operator, problem, variant

SMALL_S, LARGE_S = 0.1, 0.4


def reading(mean: float | None, boxes: int = 4, sharing: Sharing = Sharing.EXCLUSIVE, **slo: float) -> Problem:
    """10 requests/s: all small keep 1 box busy and all large 4; accuracy 80 or 90."""
    return problem(
        operator("read", ["camera"], variant("small", {"box": SMALL_S}), variant("large", {"box": LARGE_S})),
        pools=[box(boxes, sharing=sharing)],
        accuracy=Independent({"read": {"small": 80.0, "large": 90.0}}),
        slo=Slo(mean_accuracy=mean, **slo),
    )


def planned(asked: Problem) -> Plan:
    """The plan, which the two checkers find nothing wrong with."""
    plan = solve(asked).plan
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    assert plan_check.complaints(asked, plan) == []
    return plan


def test_a_part_of_the_requests_gets_the_better_variant() -> None:
    plan = planned(reading(85.0))
    assert plan.accuracy == pytest.approx(85.0)
    assert plan.cost.total_usd_per_h == 3.0  # half of the requests: 2 boxes of large, 1 of small; for all: 4
    assert plan.certificate == Certificate(3.0, 3.0, 0.0, "optimal")
    assert {part.selection["read"]: part.share for part in selection_shares(plan)} == pytest.approx(
        {"small": 0.5, "large": 0.5}
    )
    assert [(place.variant, place.count, place.rate_per_s) for place in plan.placements] == [
        ("small", 1, pytest.approx(5.0)),
        ("large", 2, pytest.approx(5.0)),
    ]


def test_without_a_mean_all_requests_get_one_variant() -> None:
    plan = planned(replace(reading(None), slo=Slo(accuracy=85.0)))
    assert not plan.mixes
    assert plan.cost.total_usd_per_h == 4.0
    assert "others" not in str(to_document(plan)) and '"variants"' not in str(to_document(plan))


def test_no_request_gets_less_than_the_least_accuracy() -> None:
    plan = planned(reading(85.0, accuracy=81.0))
    assert not plan.mixes
    assert plan.accuracy == 90.0


def test_the_highest_mean_accuracy_uses_all_workers() -> None:
    asked = replace(reading(None, boxes=3), objective=Objective.MEAN_ACCURACY)
    plan = planned(asked)
    assert plan.accuracy == pytest.approx(85.0)  # 2 boxes of large serve half of the requests
    assert plan.certificate.objective_of is Objective.MEAN_ACCURACY
    assert plan.certificate.objective == pytest.approx(85.0)
    assert plan.certificate.bound == pytest.approx(85.0, abs=1e-2)


def test_the_budget_limits_the_accuracy() -> None:
    asked = replace(reading(None, boxes=9, budget_usd_per_h=2.0), objective=Objective.MEAN_ACCURACY)
    assert planned(asked).accuracy == pytest.approx(82.5)  # 1 box of large serves a quarter of the requests


def test_a_mean_that_the_workers_do_not_allow_is_refused_with_the_highest() -> None:
    solution = solve(reading(88.0, boxes=3))
    assert solution.plan is None and solution.infeasibility is not None
    assert solution.infeasibility.reasons == ("no plan reaches a mean accuracy of 88; the highest is 85",)
    assert solution.infeasibility.nearest_accuracy == pytest.approx(85.0)


def test_rates_that_nothing_carries_are_explained_as_without_mixing() -> None:
    solution = solve(reading(80.0, boxes=0))
    assert solution.plan is None and solution.infeasibility is not None
    assert "read" in " ".join(solution.infeasibility.reasons)


def test_shared_workers_run_one_variant_of_an_operator_each() -> None:
    plan = planned(reading(85.0, sharing=Sharing.SHARED))
    assert plan.cost.total_usd_per_h == 3.0
    assert all(len(worker.rates_per_s) == 1 for worker in plan.workers)


def detecting(mean: float) -> Problem:
    """A detector with 1 or 4 crops a frame, which a reader takes; 10 frames/s."""
    detect = operator(
        "detect",
        ["camera"],
        Variant("near", {"box": {1: ServiceTime(0.05, 0.05)}}, {"read": 1000.0}, ratios={"read": 1.0}),
        Variant("far", {"box": {1: ServiceTime(0.1, 0.1)}}, {"read": 3000.0}, ratios={"read": 4.0}),
    )
    read = operator("read", [Edge("detect", "read", EdgeKind.FAN_OUT, 1.0)], variant("only", {"box": 0.2}))
    accuracy = Independent({"detect": {"near": 60.0, "far": 100.0}, "read": {"only": 100.0}})
    return problem(
        detect, read, pools=[box(20, sharing=Sharing.EXCLUSIVE)], accuracy=accuracy, slo=Slo(mean_accuracy=mean)
    )


def test_rates_below_a_fan_out_are_those_of_each_selection() -> None:
    plan = planned(detecting(80.0))
    assert plan.mixes
    read = plan.operator_by_name["read"]
    assert read.rate_per_s == pytest.approx(10.0 * (0.5 * 1 + 0.5 * 4))
    assert read.inputs[0].ratio == pytest.approx(2.5)
    assert {one.variant: one.ratios["read"] for one in plan.operator_by_name["detect"].variants} == {
        "near": 1.0,
        "far": 4.0,
    }
    by_selection = {part.selection["detect"]: part.rates_per_s["read"] for part in selection_shares(plan)}
    assert by_selection == pytest.approx({"near": 10.0, "far": 40.0})
    assert sum(flow.messages_per_s for flow in flows(plan) if flow.downstream == "read") == pytest.approx(25.0)
    sent = sum(flow.bytes_per_s for flow in flows(plan) if flow.downstream == "read")
    assert sent == pytest.approx(5.0 * 1000.0 + 20.0 * 3000.0)


@pytest.mark.slow
def test_a_simulation_is_as_busy_as_planned() -> None:
    plan = planned(replace(detecting(80.0), utilisation=0.7))
    result = simulate_plan(plan, duration_s=400.0)
    assert load_by_worker(plan) == pytest.approx({worker.name: worker.load for worker in plan.workers})
    for worker in plan.workers:
        assert result.utilisation[worker.name] == pytest.approx(worker.load, rel=0.1)


def test_the_document_gives_the_same_plan() -> None:
    plan = planned(detecting(80.0))
    document = to_document(plan)
    assert document["version"] == 7  # its children are spread
    assert from_document(document) == plan


@pytest.mark.slow
def test_a_deadline_is_kept_by_smaller_batches_and_less_busy_workers() -> None:
    """Alone a request takes 20 ms; in full batches of 16 it would wait for runs of 80 ms."""
    batches = {1: ServiceTime(0.02, 0.02), 4: ServiceTime(0.032, 0.032), 16: ServiceTime(0.08, 0.08)}
    small = {size: ServiceTime(time.load_s / 2, time.mean_s / 2) for size, time in batches.items()}
    read = operator("read", ["camera"], Variant("small", {"box": small}, {}), Variant("large", {"box": batches}, {}))
    asked = problem(
        read,
        pools=[box(3, sharing=Sharing.EXCLUSIVE)],
        rate_per_s=550.0,
        accuracy=Independent({"read": {"small": 80.0, "large": 90.0}}),
        slo=Slo(latency_p99_s=0.1),
    )
    asked = replace(asked, utilisation=0.95, objective=Objective.MEAN_ACCURACY)
    loose, tight = solve(asked).plan, solve(asked, deadline=Deadline(0.1, _simulated)).plan
    assert loose is not None and tight is not None
    assert simulate_plan(tight).latency_p99_s <= 0.1 < simulate_plan(loose).latency_p99_s
    assert (tight.accuracy or 0.0) < (loose.accuracy or 0.0) <= tight.certificate.bound + 1e-6
    assert plan_check.complaints(asked, tight) == []


def _simulated(plan: Plan) -> float:
    return simulate_plan(plan).latency_p99_s / 0.1


def streamed(asked: Problem, streams: int) -> Problem:
    """The problem whose requests come in so many streams, of which the first operator keeps a state."""
    stateful = replace(asked.operators[0], state=(("state", "state_next"),))
    sources = tuple(replace(source, streams=streams) for source in asked.sources)
    return replace(asked, sources=sources, operators=(stateful, *asked.operators[1:]))


def test_a_stream_gets_one_variant() -> None:
    """All large keep 4 boxes busy. Of 4 streams 2 get the large variant, where half of the requests do: a box each."""
    plan = planned(streamed(reading(85.0), 4))
    assert plan.cost.total_usd_per_h == 3.0
    assert sorted(route.weight for route in plan.routes) == [0.25, 0.25, 0.5]
    assert planned(streamed(reading(84.0), 4)).accuracy == pytest.approx(85.0)  # of requests 40 % would do
    assert load_by_worker(plan) == pytest.approx({worker.name: worker.load for worker in plan.workers})


def test_a_worker_takes_whole_streams() -> None:
    """One of 5 streams takes 0.8 of a box with the large variant: half of the requests keep 2 busy, 3 streams 3."""
    assert planned(reading(85.0)).cost.total_usd_per_h == 3.0
    assert planned(streamed(reading(85.0), 5)).cost.total_usd_per_h == 4.0
    assert planned(reading(82.0)).cost.total_usd_per_h == 2.0
    assert solve(streamed(reading(82.0), 3)).plan is None  # no box takes one of 3 streams with the large variant


def test_a_worker_with_an_unknown_variant_is_a_violation() -> None:
    plan = planned(reading(85.0))
    wrong = replace(plan, workers=(replace(plan.workers[0], variants={"read": "huge"}), *plan.workers[1:]))
    complaints = evaluate(reading(85.0), wrong).violations
    assert any("runs read with variant huge, which the plan does not describe" in text for text in complaints)


def test_a_mean_below_the_target_is_a_violation() -> None:
    plan = planned(reading(85.0))
    complaints = evaluate(reading(86.0), plan).violations
    assert complaints == ("mean accuracy 85 is below the target of 86",)


def test_variants_that_fit_beside_another_where_the_first_choice_does_not() -> None:
    """Both variants of `read` are as accurate; the relaxation takes the one that no worker can hold beside `look`."""
    look = operator("look", ["camera"], variant("only", {"box": 0.1}, {"read": 1.0}, {"box": 2.0}))
    read = operator(
        "read",
        ["look"],
        variant("large", {"box": 0.001}, memory_bytes={"box": 1.0}),
        variant("small", {"box": 0.001}, memory_bytes={"box": 0.0}),
    )
    accuracy = EndToEnd(("look", "read"), {("only", "large"): 99.0, ("only", "small"): 99.0})
    asked = replace(
        problem(look, read, pools=[box(2, memory=2.0)], accuracy=accuracy, rate_per_s=12.0),
        objective=Objective.MEAN_ACCURACY,
    )
    plan = planned(asked)
    assert plan.selection["read"] == "small"
    assert plan.accuracy == 99.0


@pytest.mark.parametrize(("penalty", "cost", "counts"), [(0.2, 1.0, 2.0), (0.29, 1.0, 2.9), (0.31, 4.0, 0.0)])
def test_a_soft_mean_is_bought_while_it_is_worth_its_price(penalty: float, cost: float, counts: float) -> None:
    """All small: 1 USD/h and 10 points below; all large: 4 USD/h. What lies between costs more than one of them."""
    asked = replace(reading(None), slo=Slo(mean_accuracy=90.0, penalty_usd_per_h=penalty))
    plan = planned(asked)
    assert plan.cost.total_usd_per_h == pytest.approx(cost)
    proof = plan.certificate
    assert proof.is_optimal
    assert (proof.objective, proof.penalty_usd_per_h) == pytest.approx((cost + counts, counts))
    assert from_document(to_document(plan)) == plan


def test_a_soft_mean_that_no_plan_reaches_has_a_plan() -> None:
    asked = replace(reading(None, boxes=3), slo=Slo(mean_accuracy=95.0, penalty_usd_per_h=1.0))
    plan = planned(asked)
    assert plan.accuracy == pytest.approx(85.0)  # the most that 3 boxes can do
    assert plan.certificate.objective == pytest.approx(3.0 + 10.0)
    assert solve(replace(asked, slo=Slo(mean_accuracy=95.0))).plan is None
    within = replace(asked, slo=replace(asked.slo, budget_usd_per_h=2.0))
    assert planned(within).cost.total_usd_per_h <= 2.0  # the penalty is no part of the budget


def test_a_program_that_presolve_calls_infeasible_is_tried_without_it() -> None:
    """Five workers are just enough: two that take no time, and of those that need two, one more."""
    free, busy = ({"box": 0.0}, {"b": 0.0}), ({"box": 0.01}, {})
    first = operator("a", ["camera"], variant("v0", *free), variant("v1", *free))
    second = operator("b", ["a"], variant("v0", *busy), variant("v1", {"box": 0.05}, {}))
    pools = [replace(box(5, price=0.0), sharing=Sharing.EXCLUSIVE)]
    fanned = tuple(
        replace(one, inputs=tuple(replace(edge, kind=EdgeKind.FAN_OUT, ratio=2.0) for edge in one.inputs))
        for one in (first, second)
    )
    slo = Slo(survives=(LossKind.WORKER,))
    asked = replace(problem(*fanned, pools=pools, rate_per_s=25.0, slo=slo), utilisation=0.5)
    plan = solve(asked).plan
    assert plan is not None
    assert len(plan.workers) == 5
