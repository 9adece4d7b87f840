"""A workflow beside a plan of another one, in cases that a person works out: what is left of time, memory and links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import (
    Edge,
    Independent,
    Link,
    Operator,
    Plan,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    SolverError,
    Source,
    Variant,
    add_workflows,
    combine_workflows,
    evaluate,
    restricted,
    served,
    solve,
)
from jellybean_solver.model.plan import LeftOut

TIME_S, GIB = 0.1, 2.0**30


def workflow(rate_per_s: float, pool: Pool, *, memory: float = 0.0, link: Link | None = None) -> Problem:
    """One operator that takes a tenth of a second in a pool, fed from the edge."""
    cpu = Variant("v", {pool.name: {1: ServiceTime(TIME_S, TIME_S)}}, {}, {pool.name: memory})
    return Problem(
        name="one",
        tiers=("edge", "cloud"),
        sources=(Source("s", "edge", rate_per_s, 1e6),),
        operators=(Operator("o", (Edge("s", "o"),), (cpu,)),),
        pools=(pool,),
        links=() if link is None else (link,),
        accuracy=Independent({}),
        utilisation=0.8,
    )


CPU = Pool("cpu", "edge", 2, 1.0)


def both(rate_per_s: float, pool: Pool = CPU, *, memory: float = 0.0, link: Link | None = None) -> Problem:
    """A workflow `a` of 4 requests a second, half a worker's time, and one `b` with this rate."""
    parts = {
        "a": workflow(4.0, pool, memory=memory, link=link),
        "b": workflow(rate_per_s, pool, memory=memory, link=link),
    }
    return combine_workflows("both", parts)


def running(problem: Problem) -> Plan:
    plan = solve(restricted(problem, {"a"})).plan
    assert plan is not None
    return plan


def added(problem: Problem) -> Plan | None:
    plan = add_workflows(problem, running(problem)).solution.plan
    if plan is not None:
        assert evaluate(problem, plan).complaints == ()
    return plan


def test_the_rest_of_a_worker_is_free() -> None:
    plan = added(both(4.0))
    assert plan is not None
    assert plan.cost.total_usd_per_h == 1.0
    (worker,) = plan.workers
    assert (worker.name, dict(worker.rates_per_s)) == ("cpu-1", {"a/o": 4.0, "b/o": pytest.approx(4.0)})
    assert worker.load == pytest.approx(0.8)
    assert [workflow.cost.total_usd_per_h for workflow in plan.workflows] == pytest.approx([0.5, 0.5])


def test_what_does_not_fit_there_takes_a_worker_of_its_own() -> None:
    plan = added(both(6.0))
    assert plan is not None
    assert plan.cost.total_usd_per_h == 2.0
    assert [worker.name for worker in plan.workers] == ["cpu-1", "cpu-2"]


def test_exclusive_workers_have_no_rest() -> None:
    plan = added(both(4.0, replace(CPU, sharing=Sharing.EXCLUSIVE)))
    assert plan is not None
    assert plan.cost.total_usd_per_h == 2.0


@pytest.mark.parametrize(("memory", "cost"), [(0.5 * GIB, 1.0), (0.6 * GIB, 2.0)])
def test_models_fit_into_the_memory_that_is_left(memory: float, cost: float) -> None:
    plan = added(both(4.0, replace(CPU, memory_bytes=GIB), memory=memory))
    assert plan is not None
    assert plan.cost.total_usd_per_h == cost


@pytest.mark.parametrize(("mbyte_per_s", "fits"), [(8.0, True), (7.9, False)])
def test_links_carry_what_is_left(mbyte_per_s: float, fits: bool) -> None:
    link = Link("edge", "cloud", bandwidth_bytes_per_s=mbyte_per_s * 1e6)
    assert (added(both(4.0, replace(CPU, tier="cloud"), link=link)) is not None) is fits


@pytest.mark.parametrize(("budget", "fits"), [(2.0, True), (1.9, False)])
def test_a_budget_is_for_all(budget: float, fits: bool) -> None:
    problem = both(6.0)
    assert (added(replace(problem, slo=Slo(budget_usd_per_h=budget))) is not None) is fits


def test_other_prices_change_the_cost_of_what_stays() -> None:
    problem = both(4.0)
    before = running(problem)
    dearer = replace(problem, pools=(replace(CPU, price_usd_per_h=3.0),))
    plan = add_workflows(dearer, before).solution.plan
    assert plan is not None
    assert plan.cost.total_usd_per_h == 3.0


def test_who_has_another_rate_is_planned_anew() -> None:
    problem = both(4.0)
    whole = added(problem)
    assert whole is not None
    faster = both(6.0)
    found = add_workflows(faster, whole)
    assert (found.kept.workflows, found.kept.changed) == (("a",), ("b",))
    assert found.solution.plan is not None
    assert found.solution.plan.cost.total_usd_per_h == 2.0


def test_one_workflow_alone_has_nothing_beside_it() -> None:
    problem = workflow(4.0, CPU)
    plan = solve(problem).plan
    assert plan is not None
    with pytest.raises(SolverError, match="several workflows, or of sites that differ, only"):
        add_workflows(problem, plan)


def test_leaving_out_is_checked() -> None:
    problem = both(4.0)
    plan = solve(restricted(problem, {"a"})).plan
    assert plan is not None
    without = replace(plan, left_out=(LeftOut("b", 2.0),))
    (wrong,) = evaluate(problem, without).violations
    assert wrong == "the plan leaves out b, which must be served"
    worth = replace(problem, workflows=tuple(replace(one, worth_usd_per_h=3.0) for one in problem.workflows))
    (other,) = evaluate(worth, without).violations
    assert other == "the plan leaves out b as worth 2 USD/h, but it is worth 3"
    fine = replace(plan, left_out=(LeftOut("b", 3.0),))
    assert evaluate(worth, fine).complaints == ()
    assert [one.name for one in served(worth, fine).workflows] == ["a"]
    (unknown,) = evaluate(restricted(worth, {"a"}), replace(plan, left_out=(LeftOut("c", 1.0),))).violations
    assert unknown == "the plan leaves out c, which the problem does not have"
