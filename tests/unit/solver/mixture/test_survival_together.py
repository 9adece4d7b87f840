"""Several workflows on one fleet of which some survive losses, and gateways that serve what is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from jellybean.serving.gateway.plans.closed_routes import ClosedRoutes
from jellybean.serving.gateway.plans.open_routes import OpenRoutes
from jellybean_agent import workflow_views
from jellybean_protos.plan_format import PARTIAL_VERSION
from jellybean_solver import (
    Deadline,
    Independent,
    Link,
    Loss,
    LossKind,
    Plan,
    Pool,
    Problem,
    Sharing,
    Slo,
    Terms,
    combine_workflows,
    evaluate,
    from_document,
    losses,
    plan_after,
    served_shares,
    solve,
    to_document,
)
from jellybean_solver.model.accuracy import Margins
from jellybean_solver.model.loss import RoutesAfterLoss
from tests.support.small_problems import box, operator, problem, variant

ONE_WORKER = (LossKind.WORKER,)


def together(first: Slo, second: Slo, pools: list[Pool], *, rates: tuple[float, float] = (4.0, 8.0)) -> Problem:
    """Workflow `a` reads and `b` looks: a request of either keeps a box busy for 0.1 s of the 0.8 s that it may."""
    parts = {
        name: replace(
            problem(operator(what, ["camera"], variant("only", {"box": 0.1})), pools=pools, rate_per_s=rate, slo=slo),
            utilisation=0.8,
        )
        for name, what, rate, slo in zip("ab", ("read", "look"), rates, (first, second), strict=True)
    }
    return combine_workflows("both", parts)


def plan_for(asked: Problem) -> Plan:
    """The plan, which the scorer finds no fault with, as agents read it."""
    plan = solve(asked).plan
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    return from_document(to_document(plan))


def shares(asked: Problem, plan: Plan, loss: Loss) -> dict[str, float]:
    after = RoutesAfterLoss(asked, plan)
    return dict(after.shares(after.weights(loss)))


def test_a_workflow_that_does_not_survive_gets_what_is_left() -> None:
    """Of 2 boxes one is left: `a` needs half of it, which leaves the other half to `b`, half of what that needs."""
    asked = together(Slo(survives=ONE_WORKER), Slo(), [box(9)])
    plan = plan_for(asked)
    assert len(plan.workers) == 2, "it costs nothing extra"
    for loss in losses(plan, asked.survives):
        assert shares(asked, plan, loss) == {"a": pytest.approx(1.0), "b": pytest.approx(0.5)}
        left = plan_after(asked, plan, loss)
        assert left is not None
        assert {one.name: one.slo.survives for one in left.workflows} == {"a": ONE_WORKER, "b": ()}
        assert [source.rate_per_s for source in left.sources] == [4.0, pytest.approx(4.0)]
        assert [worker.load for worker in left.workers] == [pytest.approx(0.8)]


def test_a_workflow_of_which_next_to_nothing_is_left_is_left_out() -> None:
    asked = together(Slo(survives=ONE_WORKER), Slo(), [box(9)])
    plan = plan_for(asked)
    of = RoutesAfterLoss(asked, plan).workflow
    tiny = tuple(
        replace(
            one,
            weights=tuple(w * (1e-10 if name == "b" else 1.0) for w, name in zip(one.weights, of, strict=True)),
        )
        for one in plan.fallbacks
    )
    for loss in losses(plan, asked.survives):
        left = plan_after(asked, replace(plan, fallbacks=tiny), loss)
        assert left is not None
        assert [one.name for one in left.workflows] == ["a"]


def test_whole_streams_get_what_is_left() -> None:
    """Of 5 streams of `b` each needs a fifth of a box. `a` leaves half of the last box, in which 2 of them fit."""
    asked = together(Slo(survives=ONE_WORKER), Slo(), [box(9)])
    look = replace(asked.operators[1], state=(("before", "after"),))
    sources = asked.sources[0], replace(asked.sources[1], streams=5)
    asked = replace(asked, sources=sources, operators=(asked.operators[0], look))
    plan = plan_for(asked)
    assert len(plan.workers) == 2
    for loss in losses(plan, asked.survives):
        assert shares(asked, plan, loss) == {"a": pytest.approx(1.0), "b": pytest.approx(0.4)}
        left = plan_after(asked, plan, loss)
        assert left is not None
        assert [source.streams for source in left.sources] == [0, 2]
        assert [worker.load for worker in left.workers] == [pytest.approx(0.72)]


def test_if_both_survive_both_are_paid_for() -> None:
    asked = together(Slo(survives=ONE_WORKER), Slo(survives=ONE_WORKER), [box(9)])
    plan = plan_for(asked)
    assert len(plan.workers) == 3
    assert all(shares(asked, plan, loss) == {"a": 1.0, "b": 1.0} for loss in losses(plan, asked.survives))


def test_many_workflows_survive_in_one_program() -> None:
    """16 workflows keep two boxes busy; half of them survive the loss of one, and one box carries these."""
    parts = {}
    for number in range(16):
        slo = Slo(survives=ONE_WORKER) if number % 2 else Slo()
        read = operator("read", ["camera"], variant("only", {"box": 0.1}))
        parts[f"w{number}"] = replace(problem(read, pools=[box(9)], rate_per_s=1.0, slo=slo), utilisation=0.8)
    asked = combine_workflows("many", parts)
    plan = plan_for(asked)
    assert len(plan.workers) == 2
    for shares in served_shares(plan).values():
        assert all(shares[f"w{number}"] == pytest.approx(1.0) for number in range(1, 16, 2))
        assert sum(shares.values()) == pytest.approx(8.0), "the box that is left is full"


def test_exclusive_workers_are_spared_for_the_one_that_survives_only() -> None:
    asked = together(Slo(survives=ONE_WORKER), Slo(), [box(9, sharing=Sharing.EXCLUSIVE)])
    plan = plan_for(asked)
    runs = Counter(next(iter(worker.rates_per_s)) for worker in plan.workers)
    assert runs == {"a/read": 2, "b/look": 1}
    (only,) = (worker.name for worker in plan.workers if "b/look" in worker.rates_per_s)
    assert shares(asked, plan, Loss(LossKind.WORKER, (only,))) == {"a": 1.0, "b": 0.0}
    left = plan_after(asked, plan, Loss(LossKind.WORKER, (only,)))
    assert left is not None
    assert [one.name for one in left.workflows] == ["a"]


def test_a_spot_worker_is_not_any_worker() -> None:
    """Only the spot worker may be lost: what is left are on-demand workers, which nothing is spared for."""
    spot = replace(box(1, sharing=Sharing.SHARED), terms=Terms.SPOT, price_usd_per_h=0.1)
    asked = together(Slo(survives=(LossKind.SPOT_WORKER,)), Slo(), [spot, Pool("box2", "edge", 3, 1.0)])
    named = replace(
        asked,
        operators=tuple(
            replace(one, variants=(variant("only", {"box": 0.1, "box2": 0.1}),)) for one in asked.operators
        ),
    )
    plan = plan_for(named)
    assert sorted(worker.pool for worker in plan.workers) == ["box", "box2"]
    (lost,) = losses(plan, named.survives)
    assert lost.of == ("box-1",)
    assert shares(named, plan, lost) == {"a": pytest.approx(1.0), "b": pytest.approx(0.5)}


def test_a_mean_accuracy_need_not_hold_for_what_is_left() -> None:
    """Of two boxes one has the good variant of `b`. Without it all of `b` gets the quick one, below its mean."""
    asked = together(Slo(survives=ONE_WORKER), Slo(mean_accuracy=70.0), [box(2)])
    look = operator("b/look", ["b/camera"], variant("good", {"box": 0.2}), variant("quick", {"box": 0.05}))
    models = {"a": Independent({}), "b": Independent({"b/look": {"good": 90.0, "quick": 60.0}})}
    mixed = replace(asked, operators=(asked.operators[0], look), accuracy=Margins(models, {}))
    plan = plan_for(mixed)
    runs = {worker.variants["b/look"]: worker.name for worker in plan.workers}
    good, quick = (Loss(LossKind.WORKER, (runs[name],)) for name in ("good", "quick"))
    assert shares(mixed, plan, good) == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}
    assert shares(mixed, plan, quick) == {"a": pytest.approx(1.0), "b": pytest.approx(0.25)}
    left = plan_after(mixed, plan, good)
    assert left is not None
    assert left.workflows[1].slo.mean_accuracy is None
    untargeted = replace(mixed, workflows=tuple(replace(one, slo=Slo()) for one in mixed.workflows))
    assert evaluate(untargeted, left).workflows[1].accuracy == pytest.approx(60.0)


def test_what_survives_takes_the_link_that_is_left() -> None:
    """Either link carries all of `a`, the narrow one nothing else."""
    links = [Link("edge", "hub", 0.0, 400.0), Link("edge", "cloud", 0.5)]
    pools = [Pool(tier, tier, 9, 1.0, Sharing.SHARED) for tier in ("hub", "cloud")]
    parts = {}
    for name, slo in (("a", Slo(survives=(LossKind.LINK,))), ("b", Slo())):
        far = operator("far", ["camera"], variant("only", {"hub": 0.05, "cloud": 0.05}))
        one = problem(far, pools=pools, rate_per_s=4.0, message_bytes=100.0, links=links, slo=slo)
        parts[name] = replace(one, tiers=("edge", "hub", "cloud"), utilisation=0.8)
    asked = combine_workflows("both", parts)
    plan = plan_for(asked)
    cloud = next(loss for loss in losses(plan, asked.survives) if loss.of == ("edge", "cloud"))
    assert shares(asked, plan, cloud) == {"a": pytest.approx(1.0), "b": pytest.approx(0.0)}


def test_what_is_left_does_not_make_the_others_late() -> None:
    """A worker that is busy more than 0.65 of the time is late: `b` fills the box that is left up to there only."""
    asked = together(Slo(latency_p99_s=10.0, survives=ONE_WORKER), Slo(latency_p99_s=10.0), [box(9)])

    def judge(plan: Plan) -> float:
        return max(worker.load for worker in plan.workers) / 0.65

    plan = solve(asked, deadline=Deadline(10.0, judge)).plan
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    assert len(plan.workers) == 2, "it costs nothing extra"
    for own in served_shares(plan).values():
        assert own == {"a": pytest.approx(1.0), "b": pytest.approx(0.25)}


def test_plans_that_are_too_much_after_a_loss_are_violations() -> None:
    asked = together(Slo(survives=ONE_WORKER), Slo(), [box(9)])
    plan = plan_for(asked)
    bare = replace(plan, fallbacks=())
    assert any(
        "survive: without box-1, box-2 would be busy 1.2000" in text for text in evaluate(asked, bare).violations
    )
    every = replace(asked, workflows=tuple(replace(one, slo=Slo(survives=ONE_WORKER)) for one in asked.workflows))
    told = " ".join(evaluate(every, plan).violations)
    assert "survive: without box-1, only 50.00% of the requests are answered of b" in told
    alone = solve(together(Slo(), Slo(), [box(9)], rates=(4.0, 4.0))).plan
    assert alone is not None
    small = together(Slo(survives=ONE_WORKER), Slo(), [box(9)], rates=(4.0, 4.0))
    assert any("without box-1, no request is answered of a" in text for text in evaluate(small, alone).violations)


def test_older_readers_refuse_the_plan() -> None:
    plan = plan_for(together(Slo(survives=ONE_WORKER), Slo(), [box(9)]))
    assert to_document(plan)["version"] == PARTIAL_VERSION
    assert to_document(replace(plan, fallbacks=()))["version"] < PARTIAL_VERSION


def test_gateways_serve_the_share_that_is_left_and_refuse_the_rest() -> None:
    plan = plan_for(together(Slo(survives=ONE_WORKER), Slo(), [box(9)]))
    away: set[str] = set()
    closed = ClosedRoutes()
    routes = {
        name: OpenRoutes(view, away.__contains__, closed) for name, view in workflow_views(to_document(plan)).items()
    }
    for name, one in routes.items():
        closed.listen(name, one.reweight)

    def answered(name: str) -> float:
        drawn = [routes[name].draw() for _ in range(1000)]
        assert all(is_open for _, is_open in filter(None, drawn))
        return sum(one is not None for one in drawn) / len(drawn)

    for one in routes.values():
        one.reweight()
    assert (answered("a"), answered("b")) == (1.0, 1.0)
    away.add("box-1")
    routes["a"].reweight()  # only this one has noticed: the other leaves it the workers all the same
    for one in routes.values():
        one.reweight()
    assert (answered("a"), answered("b")) == (1.0, pytest.approx(0.5, abs=0.01))
    assert routes["a"].refused_text == ""
    assert routes["b"].refused_text.startswith("box-1 is lost, and what is left must serve other workflows: 50 %")
    assert not routes["b"].refuses_all
    away.clear()
    for one in routes.values():
        one.reweight()
    assert (answered("a"), answered("b")) == (1.0, 1.0)
    assert routes["b"].refused_text == ""


def test_a_workflow_makes_room_after_a_loss_that_closes_none_of_its_routes() -> None:
    """`a` runs on a cheap worker of its own, and after its loss on the one of `b`."""
    cheap = Pool("cheap", "edge", 1, 0.1, Sharing.SHARED)
    asked = together(Slo(survives=ONE_WORKER), Slo(), [cheap, box(1)])
    read = operator("a/read", ["a/camera"], variant("only", {"cheap": 0.1, "box": 0.1}))
    plan = plan_for(replace(asked, operators=(read, asked.operators[1])))
    views, closed, away = workflow_views(to_document(plan)), ClosedRoutes(), {"cheap-1"}
    assert "cheap-1" not in views["b"].workers
    routes = {name: OpenRoutes(view, away.__contains__, closed) for name, view in views.items()}
    closed.listen("b", routes["b"].reweight)
    routes["a"].reweight()
    drawn = Counter(routes["b"].draw() is None for _ in range(1000))
    assert drawn[True] == pytest.approx(500, abs=2)
    away.clear()
    routes["a"].reweight()
    assert all(routes["b"].draw() is not None for _ in range(100))


def test_a_gateway_says_that_nothing_is_left() -> None:
    """`a` fills the box that is left."""
    plan = plan_for(together(Slo(survives=ONE_WORKER), Slo(), [box(9)], rates=(8.0, 8.0)))
    (view,) = (view for name, view in workflow_views(to_document(plan)).items() if name == "b")
    routes = OpenRoutes(view, {"box-1"}.__contains__)
    routes.reweight()
    assert routes.refuses_all
    assert "no request is answered until it is back" in routes.refused_text
    assert {routes.draw() for _ in range(20)} == {None}
