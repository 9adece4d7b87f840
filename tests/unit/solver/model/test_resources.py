"""Energy and carbon as uses of workers and links, as prices, and as limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import Objective, Plan, Problem, Slo, counted, in_money, in_true_prices, solve
from tests.support.small_problems import GIB, box, gpu, operator, problem, variant


def _problem() -> Problem:
    """detect runs at the edge for little power, or in the cloud for little money; a GiB an hour crosses then."""
    found = problem(
        operator("detect", ["camera"], variant("d", {"box": 0.05, "gpu": 0.05})),
        pools=[replace(box(price=3.0), uses={"energy": 20.0}), replace(gpu(price=1.0), uses={"energy": 300.0})],
    )
    camera = replace(found.sources[0], message_bytes=GIB / 36000)
    return replace(found, sources=(camera,), links=tuple(replace(one, uses={"energy": 7.0}) for one in found.links))


def _plan(of: Problem) -> Plan:
    plan = solve(of).plan
    assert plan is not None
    return plan


def test_a_plan_states_what_its_workers_and_traffic_use() -> None:
    plan = _plan(_problem())
    assert [worker.pool for worker in plan.workers] == ["gpu"]
    assert plan.uses == {"energy": pytest.approx(307.0)}


def test_the_plan_of_least_energy_is_stated_in_money() -> None:
    asked = counted(replace(_problem(), objective=Objective.ENERGY), 0.001)
    plan = _plan(asked)
    assert plan.cost.total_usd_per_h == pytest.approx(0.02)
    stated = in_true_prices(asked, plan)
    assert stated.cost.total_usd_per_h == pytest.approx(3.0)
    assert stated.uses == {"energy": 20.0}
    assert stated.workers[0].price_usd_per_h == 3.0
    assert stated.certificate.objective_of is Objective.ENERGY
    assert stated.certificate.objective == pytest.approx(0.02)


def test_a_budget_limits_the_money_of_the_plan_of_least_energy() -> None:
    limited = replace(_problem(), objective=Objective.ENERGY, slo=Slo(budget_usd_per_h=2.0))
    plan = in_true_prices(counted(limited, 1.0), _plan(counted(limited, 1.0)))
    assert [worker.pool for worker in plan.workers] == ["gpu"]
    assert plan.cost.total_usd_per_h <= 2.0
    assert plan.slo.budget_usd_per_h == 2.0


def test_a_limit_leads_to_the_cheapest_plan_within_it() -> None:
    plan = _plan(replace(_problem(), most={"energy": 100.0}))
    assert plan.cost.total_usd_per_h == pytest.approx(3.0)
    assert plan.certificate.is_optimal


def test_below_what_any_plan_uses_the_least_is_said() -> None:
    refused = solve(replace(_problem(), most={"energy": 10.0}))
    assert refused.plan is None and refused.infeasibility is not None
    assert refused.infeasibility.reasons == ("no plan is within 10.0 W; the least that a plan uses is 20.0 W",)


def test_prices_come_back() -> None:
    asked = replace(_problem(), most={"energy": 100.0}, slo=Slo(budget_usd_per_h=2.0))
    there = counted(replace(asked, objective=Objective.ENERGY), 0.5)
    assert there.most == {"energy": 100.0, "cost": 2.0}
    assert in_money(there) == asked
    assert counted(asked, 0.5) is asked
