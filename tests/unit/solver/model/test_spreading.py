"""Children that go round alike workers: which are alike, that nothing but waiting changes, and who may be left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_agent import PlanViewError, RouteTable, plan_view
from jellybean_agent.brain import route_table
from jellybean_solver import (
    Edge,
    EdgeKind,
    Loss,
    LossKind,
    Plan,
    Problem,
    Sharing,
    Slo,
    evaluate,
    from_document,
    groups_by_worker,
    plan_after,
    solve,
    to_document,
)
from jellybean_solver.model.spreading import child_operators, child_worker, identical_workers, round_robin_offset
from jellybean_solver.simulation.group_simulation import GroupSimulation
from tests.support.small_problems import EndToEnd, box, operator, problem, variant

CHILDREN = 6


def cars(workers: int = 9) -> Problem:
    """A detector whose children two operators see, and a gather; a mean accuracy is asked, so that plans mix."""
    return problem(
        operator("detect", ["camera"], variant("only", {"box": 0.05}, {"classify": 1.0})),
        operator(
            "classify",
            [Edge("detect", "classify", EdgeKind.FAN_OUT, float(CHILDREN))],
            variant("small", {"box": 0.02}, {"tell": 1.0}),
            variant("large", {"box": 0.045}, {"tell": 1.0}),
        ),
        operator("tell", [Edge("classify", "tell", EdgeKind.GATHER, 1.0 / CHILDREN)], variant("only", {"box": 0.001})),
        pools=[box(workers, sharing=Sharing.EXCLUSIVE)],
        rate_per_s=10.0,
        accuracy=EndToEnd(("classify",), {("small",): 80.0, ("large",): 95.0}),
        slo=Slo(mean_accuracy=88.0),
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = solve(cars()).plan
    assert found is not None
    return found


def test_a_plan_that_may_mix_spreads_its_children(plan: Plan) -> None:
    assert child_operators(plan) == ("classify",)  # what gathers them has one request again
    assert plan.spread == identical_workers(plan) != {}
    for group in plan.spread["classify"]:
        rates = [plan.worker_by_name[name].rates_per_s["classify"] for name in group]
        assert rates == pytest.approx([rates[0]] * len(rates), rel=1e-6)
        assert len({plan.operator_at("classify", name).variant for name in group}) == 1
    assert from_document(to_document(plan)) == plan


def test_one_selection_for_all_spreads_none() -> None:
    asked = replace(cars(20), slo=Slo(accuracy=90.0))
    found = solve(asked).plan
    assert found is not None
    assert found.spread == {}
    assert "spread" not in to_document(found)


@pytest.mark.slow
def test_only_the_waiting_changes(plan: Plan) -> None:
    """Each worker is as busy as without, and requests wait less for their slowest child."""
    spread, plain = (simulate_plan(one, duration_s=200.0) for one in (plan, replace(plan, spread={})))
    assert spread.throughput_per_s == pytest.approx(plain.throughput_per_s, rel=0.02)
    for name, share in spread.utilisation.items():
        assert share == pytest.approx(plain.utilisation[name], abs=0.03)
    assert spread.latency_p99_s < plain.latency_p99_s
    assert GroupSimulation(plan).slowest_s() < GroupSimulation(replace(plan, spread={})).slowest_s()


def test_agents_and_simulation_agree_where_a_child_goes(plan: Plan) -> None:
    groups = groups_by_worker(plan)
    view = plan_view(to_document(plan))
    assert dict(view.groups) == dict(groups)
    assert len(view.table) == 2 * len(plan.routes)
    seen: Counter[str] = Counter()
    for route, one in enumerate(plan.routes):
        base = one.workers["classify"]
        for number in range(100):
            for index in range(CHILDREN):
                path, key = ((index, CHILDREN),), f"g1-{number}"
                at = view.table.worker(view.table.spread(route), "classify", path, key)
                group = groups.get(("classify", base))
                assert at == (base if group is None else child_worker(group, round_robin_offset(number), path))
                assert view.table.worker(route, "classify", path, key) == base
                seen[at] += 1
                assert at in view.table.workers(view.table.spread(route))
        assert view.table.workers(route) == frozenset(one.workers.values())
        assert view.table.plain(view.table.spread(route)) == route
    for group in plan.spread["classify"]:
        assert max(seen[name] for name in group) <= 1.1 * min(seen[name] for name in group)


def test_workers_that_are_not_alike_are_refused(plan: Plan) -> None:
    detector = next(worker.name for worker in plan.workers if "detect" in worker.rates_per_s)
    (group, *_) = plan.spread["classify"]
    for wrong in ((group[0], detector), (group[0], "box-99")):
        bad = replace(plan, spread={"classify": (wrong,)})
        assert any(text.startswith("spread: ") for text in evaluate(cars(), bad).violations)
        with pytest.raises(PlanViewError):
            plan_view(to_document(bad))
    with pytest.raises(PlanViewError):
        plan_view(to_document(replace(plan, spread={"detect": (group,)})))
    assert evaluate(cars(), plan).violations == ()


def test_without_a_worker_none_are_spread(plan: Plan) -> None:
    (group, *_) = plan.spread["classify"]
    left = plan_after(cars(), plan, Loss(LossKind.WORKER, (group[0],)))
    assert left is not None
    assert left.spread == {}


def test_a_table_without_groups_has_one_number_a_route() -> None:
    table = RouteTable([{"a": "w1"}, {"a": "w2"}])
    assert len(table) == 2
    assert table.spread(1) == table.plain(1) == 1
    assert table.worker(1, "a", ((3, 4),), "r") == "w2"


def test_every_id_has_a_turn() -> None:
    """Of whatever form: all senders of a request's messages must agree."""
    for request in ("", "-", "r", "g-12", "g-" + "9" * 400, "g-١٢", "12", "g-1x", "\ud7ff"):
        assert 0.0 <= route_table.round_robin_offset(request) < 1.0
    assert route_table.round_robin_offset("g-12") == round_robin_offset(12)
