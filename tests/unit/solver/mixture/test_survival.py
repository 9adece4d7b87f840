"""Plans that hold after the loss of a worker, a site or a link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Deadline,
    Edge,
    EdgeKind,
    Independent,
    Link,
    Loss,
    LossKind,
    Plan,
    Pool,
    Problem,
    Route,
    Sharing,
    Slo,
    Source,
    evaluate,
    from_document,
    judged_losses,
    losses,
    plan_after,
    solve,
    to_document,
)
from jellybean_solver.model.loss import crossings
from tests import plan_check
from tests.support.small_problems import box, gpu, operator, problem, variant

ONE_WORKER = (LossKind.WORKER,)


def is_used(plan: Plan, route: Route, lost: Loss) -> bool:
    """True if requests on a route need what is lost."""
    if lost.kind is LossKind.WORKER:
        return lost.of[0] in route.workers.values()
    if lost.kind is LossKind.SITE:
        return any(plan.worker_by_name[worker].tier == lost.of[0] for worker in route.workers.values())
    return lost.of in crossings(plan, route)


def served(asked: Problem) -> Plan:
    """The plan, which holds without any of its workers by the two checkers."""
    plan = solve(asked).plan
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    assert plan_check.complaints(asked, plan) == []
    assert from_document(to_document(plan)) == plan
    for loss in losses(plan, asked.slo.survives):
        left = plan_after(asked, plan, loss)
        assert left is not None
        assert not any(is_used(plan, route, loss) for route in left.routes)
        assert plan_check.complaints(asked, left) == []
        assert sum(route.weight for route in left.routes) == pytest.approx(1.0)
    return plan


def reading(rate_per_s: float, boxes: int, sharing: Sharing = Sharing.EXCLUSIVE, **slo: float) -> Problem:
    """A request keeps a box busy for 0.1 s."""
    asked = problem(
        operator("read", ["camera"], variant("only", {"box": 0.1})),
        pools=[box(boxes, sharing=sharing)],
        rate_per_s=rate_per_s,
        slo=Slo(survives=ONE_WORKER, **slo),
    )
    return replace(asked, utilisation=0.8)


@pytest.mark.parametrize(
    ("rate_per_s", "workers"),
    [(8.0, 2), (16.0, 3), (24.0, 4), (80.0, 11), (1.0, 2)],  # one more than the load needs, and two at least
)
def test_one_worker_more_than_the_load_needs(rate_per_s: float, workers: int) -> None:
    assert len(served(reading(rate_per_s, 20)).workers) == workers


def test_shared_workers_all_hold_all_operators() -> None:
    first = operator("first", ["camera"], variant("only", {"box": 0.03}, {"second": 10.0}))
    second = operator("second", ["first"], variant("only", {"box": 0.05}))
    asked = problem(first, second, pools=[box(9)], rate_per_s=20.0, slo=Slo(survives=ONE_WORKER))
    plan = served(replace(asked, utilisation=0.8))
    assert len(plan.workers) == 3
    assert all(set(worker.rates_per_s) == {"first", "second"} for worker in plan.workers)


def test_one_selection_serves_all_requests_unless_a_mean_is_asked_for() -> None:
    read = operator("read", ["camera"], variant("small", {"box": 0.1}), variant("large", {"box": 0.2}))
    accuracy = Independent({"read": {"small": 80.0, "large": 90.0}})
    asked = problem(
        read, pools=[box(9, sharing=Sharing.EXCLUSIVE)], accuracy=accuracy, slo=Slo(accuracy=85.0, survives=ONE_WORKER)
    )
    plan = served(asked)
    assert not plan.mixes
    assert plan.selection == {"read": "large"}
    mixed = served(replace(asked, slo=Slo(mean_accuracy=85.0, survives=ONE_WORKER)))
    assert mixed.cost.total_usd_per_h <= plan.cost.total_usd_per_h + 2.0


def test_a_tier_with_one_worker_cannot_spare_it() -> None:
    solution = solve(reading(1.0, 1))
    assert solution.plan is None and solution.infeasibility is not None
    (reason,) = solution.infeasibility.reasons
    assert "no plan holds after the loss of any one worker" in reason
    assert "without `survive` a plan costs 1.00 USD/h" in reason


def test_links_have_room_for_what_comes_when_a_worker_is_lost() -> None:
    link = Link("edge", "cloud", 0.0, 2_000.0)
    far = operator("far", ["camera"], variant("only", {"gpu": 0.1}))
    asked = problem(
        far, pools=[gpu(9)], rate_per_s=10.0, message_bytes=100.0, links=[link], slo=Slo(survives=ONE_WORKER)
    )
    assert len(served(asked).workers) == 2


def test_a_plan_without_a_spare_is_a_violation() -> None:
    asked = reading(16.0, 20)
    plan = solve(replace(asked, slo=Slo())).plan
    assert plan is not None and len(plan.workers) == 2
    assert any(
        "survive: without box-1, box-2 would be busy 1.6000" in text for text in evaluate(asked, plan).violations
    )
    alone = solve(replace(reading(8.0, 20), slo=Slo())).plan
    assert alone is not None
    assert any(
        "survive: without box-1, no request is answered" in text
        for text in evaluate(reading(8.0, 20), alone).violations
    )


@pytest.mark.slow
def test_the_p99_holds_without_any_one_worker() -> None:
    asked = reading(24.0, 20, latency_p99_s=0.35)

    def judge(plan: Plan) -> float:
        return simulate_plan(plan, duration_s=200.0).latency_p99_s / 0.35

    plan = solve(asked, deadline=Deadline(0.35, judge)).plan
    assert plan is not None
    assert judge(plan) <= 1.0
    lost = [*judged_losses(plan)]
    assert lost == [Loss(LossKind.WORKER, (worker.name,)) for worker in plan.workers]
    for loss in lost:
        left = plan_after(asked, plan, loss)
        assert left is not None
        assert judge(left) <= 1.0


def test_of_many_workers_the_busiest_of_each_kind_is_lost() -> None:
    plan = served(reading(160.0, 40))
    assert len(plan.workers) > 12
    assert len([*judged_losses(plan)]) == 1


def two_ways_up(*survives: LossKind) -> Problem:
    """A request keeps a worker of hub or cloud busy for 0.1 s; the link to the hub is narrow. 8 requests/s."""
    pools = [Pool(tier, tier, 9, price, Sharing.SHARED, None) for tier, price in (("hub", 3.0), ("cloud", 1.0))]
    links = [Link("edge", "hub", 0.0, 900.0), Link("edge", "cloud", 0.5)]
    far = operator("far", ["camera"], variant("only", {"hub": 0.1, "cloud": 0.1}))
    asked = problem(far, pools=pools, rate_per_s=8.0, message_bytes=100.0, links=links, slo=Slo(survives=survives))
    return replace(asked, tiers=("edge", "hub", "cloud"), utilisation=0.8)


@pytest.mark.parametrize("kind", [LossKind.LINK, LossKind.SITE])
def test_the_other_way_up_stands_ready_and_is_rehearsed(kind: LossKind) -> None:
    plan = served(two_ways_up(kind))
    assert sorted(worker.name for worker in plan.workers) == ["cloud-1", "hub-1"]
    share_of = {route.workers["far"]: route.weight for route in plan.routes}
    assert share_of["hub-1"] >= 5e-5  # else nobody would know that it works
    assert sum(share_of.values()) == pytest.approx(1.0)


def test_a_spare_of_the_cheap_kind_where_a_worker_may_be_lost() -> None:
    assert [w.name for w in served(two_ways_up(LossKind.WORKER)).workers] == ["cloud-1", "cloud-2"]
    every = served(two_ways_up(*LossKind))
    assert sorted(worker.name for worker in every.workers) == ["cloud-1", "hub-1"]


def test_a_link_that_is_too_narrow_for_all_bears_no_loss() -> None:
    asked = two_ways_up(LossKind.LINK)
    narrow = replace(asked, links=(replace(asked.links[0], bandwidth_bytes_per_s=700.0), asked.links[1]))
    solution = solve(narrow)
    assert solution.plan is None and solution.infeasibility is not None
    assert "no plan holds after the loss of any one link" in solution.infeasibility.reasons[0]
    plan = served(asked)
    said = " ".join(evaluate(narrow, plan).violations)
    assert "survive: without the link edge -> cloud, the link edge -> hub would carry 14.3 % more" in said


def test_a_fallback_states_a_share_for_each_route() -> None:
    asked = two_ways_up(LossKind.LINK)
    plan = served(asked)
    hub = next(one for one in plan.fallbacks if one.weights)  # all but a few requests go there
    others = [one for one in plan.fallbacks if one is not hub]
    assert [hub.lost, *(one.lost for one in others)] == ["the link edge -> hub", "the link edge -> cloud"]
    for weights in (hub.weights[1:], (0.5,) * len(plan.routes) * 2, (2.0, -1.0)):
        broken = replace(plan, fallbacks=(replace(hub, weights=weights), *others))
        assert any("does not state a share for each route" in text for text in evaluate(asked, broken).violations)
    missing = replace(plan, fallbacks=(hub,))
    assert any(
        "the plan says of other routes that they are closed" in text for text in evaluate(asked, missing).violations
    )
    useless = replace(plan, fallbacks=(replace(hub, weights=tuple(r.weight for r in plan.routes)), *others))
    assert any("its fallback uses it" in text for text in evaluate(asked, useless).violations)


def test_rehearsals_stay_within_the_budget() -> None:
    """The spare way has dear traffic: what rehearses it costs more than the program counts."""
    asked = replace(two_ways_up(LossKind.LINK), sources=(Source("camera", "edge", 8.0, 10e6),))
    links = (Link("edge", "hub", 0.001), Link("edge", "cloud", 0.5))
    free = served(replace(asked, links=links))
    assert free.certificate.bound < free.cost.total_usd_per_h
    between = (free.certificate.bound + free.cost.total_usd_per_h) / 2.0
    tight = solve(replace(asked, links=links, slo=replace(asked.slo, budget_usd_per_h=between))).plan
    assert tight is None or tight.cost.total_usd_per_h <= between * (1 + 1e-6)
    roomy = replace(asked, links=links, slo=replace(asked.slo, budget_usd_per_h=1.01 * free.cost.total_usd_per_h))
    assert served(roomy).cost.total_usd_per_h == pytest.approx(free.cost.total_usd_per_h)


def test_a_soft_accuracy_is_no_lower_after_a_loss() -> None:
    """A tiny model would do after the loss of the hub; but a loss is not to make answers worse."""
    pools = [Pool(tier, tier, 3, price, Sharing.SHARED, None) for tier, price in (("hub", 1.0), ("cloud", 5.0))]
    far = operator("far", ["camera"], variant("good", {"hub": 0.1, "cloud": 0.1}), variant("bad", {"cloud": 0.001}))
    asked = problem(
        far,
        pools=pools,
        rate_per_s=8.0,
        links=[Link("edge", "hub", 0.0), Link("edge", "cloud", 0.0)],
        accuracy=Independent({"far": {"good": 95.0, "bad": 10.0}}),
        slo=Slo(mean_accuracy=95.0, penalty_usd_per_h=1.0, survives=(LossKind.SITE,)),
    )
    asked = replace(asked, tiers=("edge", "hub", "cloud"), utilisation=0.8)
    plan = served(asked)
    for loss in losses(plan, asked.slo.survives):
        left = plan_after(asked, plan, loss)
        assert left is not None
        reached = evaluate(replace(asked, slo=Slo()), left).accuracy
        assert reached is not None and plan.accuracy is not None and reached >= plan.accuracy - 1e-6


def test_without_requests_an_operator_has_a_worker_all_the_same() -> None:
    for asked in (reading(0.0, 9), replace(reading(0.0, 9), slo=Slo(mean_accuracy=None))):
        plan = solve(asked).plan
        assert plan is not None
        assert evaluate(asked, plan).complaints == ()


def test_a_variant_that_the_relaxation_leaves_out_is_taken_where_it_is_cheaper() -> None:
    """Could `large` and `look` share workers, 5 would do; apart they need 7. `small` shares them with `look`: 6."""
    pool = Pool("box", "edge", 20, 0.01, Sharing.SHARED, 2.0)
    read = operator(
        "read",
        ["camera"],
        variant("large", {"box": 1e-6}, memory_bytes={"box": 2.0}),
        variant("small", {"box": 0.03}, memory_bytes={"box": 0.0}),
    )
    look = operator("look", ["camera"], variant("only", {"box": 0.1}, memory_bytes={"box": 1.0}))
    asked = problem(read, look, pools=[pool], rate_per_s=25.0, slo=Slo(survives=ONE_WORKER))
    plan = served(replace(asked, utilisation=0.8))
    assert plan.cost.total_usd_per_h == pytest.approx(0.06)
    assert plan.selection["read"] == "small"
    assert plan.certificate.is_optimal


def test_requests_lack_no_more_of_a_soft_mean_after_a_loss_than_before() -> None:
    """A second good worker is dear, so after the loss of the good one all requests get the quick variant."""
    read = operator(
        "read", ["camera"], variant("good", {"fine": 0.01, "dear": 0.01}), variant("quick", {"plain": 0.01})
    )
    prices = {"fine": 0.1, "dear": 10.0, "plain": 1.0}
    asked = problem(
        read,
        pools=[Pool(name, "edge", 1, price, Sharing.EXCLUSIVE) for name, price in prices.items()],
        accuracy=Independent({"read": {"good": 90.0, "quick": 80.0}}),
        slo=Slo(mean_accuracy=85.0, penalty_usd_per_h=0.1, survives=ONE_WORKER),
    )
    plan = served(asked)
    assert sorted(worker.name for worker in plan.workers) == ["fine-1", "plain-1"]
    assert plan.accuracy == pytest.approx(80.0, abs=0.01)  # a few requests rehearse what follows on the loss of plain-1
    assert plan.certificate.objective == pytest.approx(1.1 + 0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("target", "counts", "kinds", "rate_per_s"),
    [
        (90.0, (2, 2), ONE_WORKER, 9.0),  # too many for the better variant alone, at the same cost
        (85.0, (2, 2), (LossKind.LINK, LossKind.WORKER), 9.0),
        (95.0, (3, 0), ONE_WORKER, 6.0),
    ],
)
def test_variants_with_ratios_of_their_own_are_mixed_and_survive(
    target: float, counts: tuple[int, int], kinds: tuple[LossKind, ...], rate_per_s: float
) -> None:
    """A variant that finds more needs more of the next operator, after a loss too."""
    find = [
        replace(variant(name, {"box": s, "gpu": s}, {"read": 1e3}), ratios={"read": ratio})
        for name, s, ratio in (("few", 0.05, 1.0), ("many", 0.1, 4.0))
    ]
    read = replace(
        operator("read", ["find"], variant("x", {"box": 0.02, "gpu": 0.01})),
        inputs=(Edge("find", "read", EdgeKind.FAN_OUT, 1.0),),
    )
    asked = problem(
        operator("find", ["camera"], *find),
        read,
        pools=[box(counts[0]), gpu(counts[1])],
        rate_per_s=rate_per_s,
        accuracy=Independent({"find": {"few": 80.0, "many": 99.0}}),
        slo=Slo(mean_accuracy=target, survives=kinds),
    )
    plan = served(replace(asked, utilisation=0.8))
    assert plan.mixes or rate_per_s < 9.0


def test_streams_move_whole_after_a_loss() -> None:
    """A box takes 2 of 4 streams: of 3 boxes each may be lost, and its streams then fill the other two."""
    source = Source("camera", "edge", 4.0, 0.0, streams=4)
    remember = replace(operator("remember", ["camera"], variant("v", {"box": 0.5})), state=(("before", "after"),))
    asked = replace(problem(remember, pools=[box(3)], slo=Slo(survives=ONE_WORKER)), sources=(source,))
    plan = served(asked)
    assert sorted(route.weight for route in plan.routes) == [0.25, 0.25, 0.5]  # none goes elsewhere as a rehearsal
    assert sorted(len(one.weights) for one in plan.fallbacks) == [0, 3, 3]  # in proportion: 1.33 and 2.67 streams
    for lost in losses(plan, ONE_WORKER):
        left = plan_after(asked, plan, lost)
        assert left is not None
        assert [route.weight for route in left.routes] == [0.5, 0.5]
        assert max(simulate_plan(left).utilisation.values()) == pytest.approx(1.0, abs=0.1)
