from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import Edge, EdgeKind, EndToEnd, Link, Plan, Problem, Route, Sharing, Slo, evaluate, solve
from tests.support.small_problems import GIB, box, gpu, operator, problem, variant


def _two_tiers(**kwargs: object) -> Problem:
    """detect must run at the edge, label in the cloud; one GiB per second crosses for each request per second."""
    return problem(
        operator("detect", ["camera"], variant("d", {"box": 0.05}, {"label": GIB / 36000}, {"box": 100.0})),
        operator("label", ["detect"], variant("l", {"gpu": 0.02}, {}, {"gpu": 300.0})),
        pools=[box(), gpu()],
        **kwargs,  # type: ignore[arg-type]
    )


def _plan(of: Problem) -> Plan:
    plan = solve(of).plan
    assert plan is not None
    return plan


def _rates(plan: Plan) -> dict[str, dict[str, float]]:
    return {worker.name: dict(worker.rates_per_s) for worker in plan.workers}


def test_figures_of_a_plan_worked_out_by_hand() -> None:
    case = _two_tiers()
    scored = evaluate(case, _plan(case))

    assert scored.complaints == ()
    assert _rates(scored.plan) == {"box-1": {"detect": 10.0}, "gpu-1": {"label": 10.0}}
    assert scored.loads == {"box-1": pytest.approx(0.5), "gpu-1": pytest.approx(0.2)}
    assert scored.cost.compute_usd_per_h == pytest.approx(4.0)
    assert scored.cost.network_usd_per_h == pytest.approx(0.1)  # 10/s x GiB/36000 x 3600 s/h = 1 GiB/h at 0.1
    assert scored.by_operator["label"].network_usd_per_h == pytest.approx(0.1)
    assert sum(cost.total_usd_per_h for cost in scored.by_operator.values()) == pytest.approx(4.1)


def test_compute_is_apportioned_by_load() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.06}, {"b": 0.0})),
        operator("b", ["a"], variant("y", {"box": 0.02})),
        pools=[box(price=4.0)],
    )
    by_operator = evaluate(case, _plan(case)).by_operator

    assert by_operator["a"].compute_usd_per_h == pytest.approx(3.0)
    assert by_operator["b"].compute_usd_per_h == pytest.approx(1.0)


def test_ratios_reach_rates_and_traffic() -> None:
    case = problem(
        operator("find", ["camera"], variant("f", {"box": 0.001}, {"read": GIB / 36000})),
        operator("read", [Edge("find", "read", EdgeKind.FAN_OUT, 4.0)], variant("r", {"gpu": 0.01}, {"join": 1.0})),
        operator("join", [Edge("read", "join", EdgeKind.GATHER, 0.25)], variant("j", {"gpu": 0.01})),
        pools=[box(), gpu()],
    )
    scored = evaluate(case, _plan(case))

    assert _rates(scored.plan) == {"box-1": {"find": 10.0}, "gpu-1": {"read": 40.0, "join": 10.0}}
    assert scored.loads["gpu-1"] == pytest.approx(0.5)
    assert scored.cost.network_usd_per_h == pytest.approx(0.4)  # four children cross per request


def _violations(case: Problem, plan: Plan) -> str:
    return "\n".join(evaluate(case, plan).complaints)


def test_overload_is_named_with_its_figure() -> None:
    case = _two_tiers()
    assert "box-1 would be busy 0.5000 of the time, above the cap of 0.4" in _violations(
        replace(case, utilisation=0.4), _plan(case)
    )


def test_more_workers_than_the_pool_has() -> None:
    case = _two_tiers()
    fewer = replace(case, pools=(replace(case.pools[0], count=0), case.pools[1]))
    assert "uses 1 workers of pool box, which has 0" in _violations(fewer, _plan(case))


def test_flow_without_a_link() -> None:
    case = _two_tiers()
    assert "detect -> label would flow from tier edge to cloud" in _violations(replace(case, links=()), _plan(case))


def test_exclusive_worker_shared() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": 0.0})),
        operator("b", ["a"], variant("y", {"box": 0.01})),
        pools=[box()],
    )
    alone = replace(case, pools=(replace(case.pools[0], sharing=Sharing.EXCLUSIVE),))
    assert "box-1 is exclusive but serves a, b" in _violations(alone, _plan(case))


def test_routes_that_lose_requests() -> None:
    case = _two_tiers()
    plan = _plan(case)
    half = replace(plan, routes=(Route(0.5, plan.routes[0].workers),))
    assert "weights sum to 0.5 instead of 1" in _violations(case, half)
    assert "box-1 states 10/s of detect, but the routes bring 5/s" in _violations(case, half)
    gap = replace(plan, routes=(Route(1.0, {"detect": "box-1"}),))
    assert "route 1 leaves out operator label" in _violations(case, gap)
    assert "gpu-1 is paid for but serves nothing" in _violations(case, gap)
    ghost = replace(plan, routes=(Route(1.0, {"detect": "box-1", "label": "nobody"}),))
    assert "sends label to nobody, which is no worker of the plan" in _violations(case, ghost)


def test_a_plan_for_another_problem() -> None:
    case = _two_tiers()
    other = problem(operator("detect", ["camera"], variant("tiny", {"box": 0.01})), pools=[box()])
    text = _violations(other, _plan(case))
    assert "operator detect has no variant d" in text
    assert "the problem has no operator label" in text


def test_a_worker_of_an_unknown_pool_or_tier() -> None:
    case = _two_tiers()
    plan = _plan(case)
    strange = replace(plan.workers[0], pool="tpu", tier="moon")
    text = _violations(case, replace(plan, workers=(strange, *plan.workers[1:])))
    assert "box-1 is of pool tpu, which does not exist" in text


def test_accuracy_below_the_target() -> None:
    case = _two_tiers(accuracy=EndToEnd(("detect",), {("d",): 70.0}))
    assert "accuracy 70 is below the target of 71" in _violations(replace(case, slo=Slo(accuracy=71.0)), _plan(case))


def test_limits_of_memory_bandwidth_and_budget() -> None:
    case = _two_tiers()
    plan = _plan(case)
    small = replace(case, pools=(case.pools[0], replace(case.pools[1], memory_bytes=200.0)))
    narrow = replace(case, links=(Link("edge", "cloud", 0.1, bandwidth_bytes_per_s=1e5),))
    assert "memory: gpu-1 would hold label in 300 B, 100 B more than its 200 B" in _violations(small, plan)
    assert "the link edge -> cloud would carry 2.386 Mbit/s" in _violations(narrow, plan)
    (breach,) = evaluate(replace(case, slo=Slo(budget_usd_per_h=4.0)), plan).breaches
    assert breach == "budget: 4.10 USD/h is 0.10 USD/h more than the 4.00 USD/h allowed"
