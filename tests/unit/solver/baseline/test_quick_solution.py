"""Plans by a simple rule where plans mix variants or survive losses, for a search that found none in its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jellybean_solver import (
    Clock,
    Independent,
    Link,
    LossKind,
    Network,
    Objective,
    OutOfTimeError,
    Pool,
    Problem,
    Sharing,
    Slo,
    Termination,
    combine_workflows,
    evaluate,
    losses,
    plan_after,
    quick_solution,
    solve,
)
from jellybean_solver.mixture.blocks import blocks_of
from jellybean_solver.mixture.ways import all_ways
from jellybean_solver.planning.mixed import plan_with_spare_workers
from tests import plan_check
from tests.support.small_problems import operator, problem, variant


def losses_problem(**changes: Any) -> Problem:
    """Two operators of two variants each, on six pools of two tiers, that go on after a loss."""
    variants = [variant(name, dict.fromkeys(POOLS, s), {"b": 1e3}) for name, s in (("s", 0.01), ("l", 0.03))]
    accuracy = Independent({"a": {"s": 90.0, "l": 99.0}, "b": {"s": 95.0, "l": 99.0}})
    case = problem(
        operator("a", ["camera"], *variants),
        operator("b", ["a"], *(replace(one, message_bytes={}) for one in variants)),
        pools=[Pool(name, "cloud" if name.startswith("gpu") else "edge", 9, price) for name, price in POOLS.items()],
        accuracy=accuracy,
        links=[Link("edge", "cloud", 0.1, 1e6)],
        rate_per_s=100.0,
    )
    return replace(case, **{"slo": Slo(accuracy=88.0, survives=(LossKind.WORKER, LossKind.LINK)), **changes})


POOLS = {"box-1": 0.1, "box-2": 0.2, "box-3": 0.3, "gpu-1": 0.4, "gpu-2": 0.5, "gpu-3": 0.6}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slo": Slo(accuracy=88.0, survives=(LossKind.SITE,))},
        {"slo": Slo(mean_accuracy=92.0)},
        {"slo": Slo(mean_accuracy=97.0, penalty_usd_per_h=0.05, survives=(LossKind.WORKER,))},
        {"slo": Slo(budget_usd_per_h=9.0), "objective": Objective.MEAN_ACCURACY},
    ],
    ids=["worker and link", "site", "mean", "soft mean and worker", "most accurate"],
)
def test_a_quick_plan_of_few_variants_and_pools_where_plans_mix_or_survive_losses(changes: dict[str, Any]) -> None:
    case = losses_problem(**changes)
    with pytest.raises(OutOfTimeError) as late:
        solve(case, time_limit_s=0.0, clock=lambda: 0.0)
    solution, best = quick_solution(case, Clock(), late.value.bound), solve(case).plan
    assert solution is not None and solution.plan is not None and best is not None
    assert evaluate(case, solution.plan).complaints == ()
    proof, optimum = solution.plan.certificate, best.certificate
    assert proof.termination in ("time_limit", "optimal")
    if case.objective is Objective.MEAN_ACCURACY:
        assert proof.objective <= optimum.objective + 1e-6 <= proof.bound + 1e-3
    else:
        assert proof.bound <= optimum.objective * (1 + 1e-9) <= proof.objective * (1 + 1e-6)


@pytest.mark.parametrize("ended", [Termination.GAP, Termination.TIME_LIMIT])
def test_the_certificate_of_a_quick_plan_says_why_the_search_found_none(ended: Termination) -> None:
    solution = quick_solution(losses_problem(), Clock(), ended=ended)
    assert solution is not None and solution.certificate is not None
    assert solution.certificate.termination == ended


def test_there_is_no_quick_plan_where_no_restriction_has_one() -> None:
    crowded = replace(losses_problem(), sources=(replace(losses_problem().sources[0], rate_per_s=1e6),))
    assert quick_solution(crowded, Clock()) is None
    assert quick_solution(losses_problem(), Clock(lambda: 1.0, 0.0)) is None


def shop(name: str, target: float) -> Problem:
    """A chain of two operators on the same six pools."""
    return replace(losses_problem(slo=Slo(accuracy=target)), name=name)


@pytest.mark.parametrize("targets", [(88.0,), (88.0, 96.0), (85.0, 90.0, 97.0)])
def test_several_workflows_have_a_quick_plan_with_each_ones_accuracy(targets: tuple[float, ...]) -> None:
    own = {f"w{number}": shop(f"w{number}", target) for number, target in enumerate(targets)}
    case = combine_workflows("shops", own)
    solution, best = quick_solution(case, Clock()), solve(case).plan
    assert solution is not None and solution.plan is not None and best is not None
    assert evaluate(case, solution.plan).complaints == ()
    proof = solution.plan.certificate
    assert 0.0 < proof.bound <= best.cost.total_usd_per_h <= proof.objective * (1 + 1e-9)


@pytest.mark.parametrize(("least", "count"), [(None, 4), (91.0, 2), (99.9, 0)])
def test_selections_are_listed_without_those_that_no_variant_makes_accurate_enough(
    least: float | None, count: int
) -> None:
    asked = losses_problem()
    network, blocks = Network(asked), blocks_of(replace(asked, slo=replace(asked.slo, accuracy=least)))
    ways = all_ways(network, blocks)
    assert len({way.variants for way in ways}) == count
    with pytest.raises(OutOfTimeError, match="listed"):
        all_ways(network, blocks, limit=Clock(lambda: 1.0, 0.0))


def test_a_tight_accuracy_of_many_operators_lists_few_selections() -> None:
    """4^12 selections, of which one is accurate enough."""
    names = [f"o{number}" for number in range(12)]
    each = {f"v{index}": 99.0 - index for index in range(4)}
    case = problem(
        *(
            operator(name, [before], *(variant(v, {"gpu": 0.01}, {after: 1.0}) for v in each))
            for before, name, after in zip(["camera", *names], names, [*names[1:], "end"], strict=False)
        ),
        pools=[Pool("gpu", "cloud", 9, 1.0)],
        accuracy=Independent(dict.fromkeys(names, each)),
        links=[Link("edge", "cloud", 0.0)],
    )
    asked = replace(case, slo=Slo(mean_accuracy=50.0, accuracy=100.0 * 0.99**12 - 1e-9))
    ways = all_ways(Network(asked), blocks_of(asked))
    assert {way.variants for way in ways} == {("v0",) * 12}


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("others", [(), (LossKind.LINK,)])
def test_a_worker_to_spare_in_each_group_survives_the_loss_of_any_one(
    sharing: Sharing, others: tuple[LossKind, ...]
) -> None:
    case = losses_problem(slo=Slo(accuracy=88.0, survives=(LossKind.WORKER, *others)))
    case = replace(case, pools=tuple(replace(pool, sharing=sharing) for pool in case.pools))
    plan = plan_with_spare_workers(case, gap=0.1, limit=Clock())
    assert plan is not None
    assert evaluate(case, plan).complaints == ()
    for loss in losses(plan, case.slo.survives):
        left = plan_after(case, plan, loss)
        assert left is not None
        assert plan_check.complaints(case, left) == []


def test_there_is_no_plan_with_workers_to_spare_where_a_pool_has_one_worker() -> None:
    case = losses_problem()
    alone = replace(case, pools=tuple(replace(pool, count=1) for pool in case.pools))
    assert plan_with_spare_workers(alone, gap=0.1, limit=Clock()) is None


@pytest.mark.parametrize("means", [(88.0, None), (90.0, 96.0)])
def test_several_workflows_have_a_quick_plan_with_each_ones_mean(means: tuple[float | None, ...]) -> None:
    own = {
        f"w{number}": replace(losses_problem(), slo=Slo(accuracy=85.0) if mean is None else Slo(mean_accuracy=mean))
        for number, mean in enumerate(means)
    }
    case = combine_workflows("shops", own)
    solution, best = quick_solution(case, Clock()), solve(case).plan
    assert solution is not None and solution.plan is not None and best is not None
    assert evaluate(case, solution.plan).complaints == ()
    assert solution.plan.cost.total_usd_per_h >= best.cost.total_usd_per_h * (1 - 1e-6)
