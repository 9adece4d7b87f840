"""Decisions on running plans that mix variants or bear losses, which can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    Deadline,
    Independent,
    LossKind,
    MigrationPrices,
    ModelRef,
    Objective,
    Plan,
    Pool,
    Problem,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Sharing,
    Slo,
    Verdict,
    evaluate,
    plan_diff,
    replan,
    solve,
)
from jellybean_solver.migration.migration_cost import cheapest_migration
from tests.support.small_problems import box, gpu, operator, problem, variant

START = MigrationPrices(1.0)


def reading(mean: float | None = None, boxes: int = 9, sharing: Sharing = Sharing.EXCLUSIVE, **slo: object) -> Problem:
    """10 requests/s: all small keep 1 box busy and all large 4; accuracy 80 or 90."""
    return problem(
        operator("read", ["camera"], variant("small", {"box": 0.1}), variant("large", {"box": 0.4})),
        pools=[box(boxes, sharing=sharing)],
        accuracy=Independent({"read": {"small": 80.0, "large": 90.0}}),
        slo=Slo(mean_accuracy=mean, **slo),  # type: ignore[arg-type]
    )


def faster(asked: Problem) -> Problem:
    """The same with 20 requests/s."""
    return replace(asked, sources=(replace(asked.sources[0], rate_per_s=20.0),))


def running(asked: Problem) -> Plan:
    plan = solve(asked).plan
    assert plan is not None
    return plan


def shares(plan: Plan | None) -> dict[str, int]:
    """Variant -> its workers."""
    assert plan is not None
    return {place.variant: place.count for place in plan.placements}


def loaded(found: Replanned) -> list[tuple[str, int]]:
    assert found.migration is not None
    return [(load.variant, load.replicas) for load in found.migration.loads]


def test_a_mixture_is_kept_while_nothing_changes() -> None:
    asked = reading(85.0)
    found = replan(asked, running(asked), ReplanSettings(START))
    assert (found.verdict, found.broken) == (Verdict.KEEP, ())
    assert found.saved_usd == pytest.approx(0.0)
    assert loaded(found) == []


def test_a_higher_mean_loads_one_worker_more() -> None:
    before = running(reading(85.0))
    assert shares(before) == {"small": 1, "large": 2}
    found = replan(reading(87.5), before, ReplanSettings(START))
    assert found.verdict is Verdict.REPLACE
    assert found.broken == ("mean accuracy 85 is below the target of 87.5",)
    assert shares(found.best) == {"small": 1, "large": 3}
    assert loaded(found) == [("large", 1)]
    assert found.bound_usd == pytest.approx(4.0 * 24.0 + 1.0)


def test_migration_decides_between_mixtures_of_equal_cost() -> None:
    """Workers `old` hold the large variant, `new` ones cost a little less: that does not pay for three loads."""
    read = operator("read", ["camera"], variant("small", {"box": 0.1}), variant("large", {"old": 0.4, "new": 0.4}))
    pools = [box(1), Pool("old", "edge", 4, 1.0, Sharing.EXCLUSIVE), Pool("new", "edge", 3, 0.99, Sharing.EXCLUSIVE)]
    accuracy = Independent({"read": {"small": 80.0, "large": 90.0}})
    today = problem(read, pools=pools, accuracy=accuracy, slo=Slo(mean_accuracy=87.5))
    before = running(replace(today, pools=tuple(pool for pool in pools if pool.name != "new")))
    stays = replan(today, before, ReplanSettings(START, horizon_h=24.0, least_saved_share=0.0))
    assert stays.verdict is Verdict.KEEP
    assert stays.best_usd == pytest.approx(4.0 * 24.0)
    moves = replan(today, before, ReplanSettings(START, horizon_h=240.0, least_saved_share=0.0))
    assert moves.verdict is Verdict.REPLACE
    assert loaded(moves) == [("large", 3)]
    assert moves.best_usd == pytest.approx((1.0 + 3 * 0.99) * 240.0 + 3.0)


def test_shared_workers_load_only_what_they_lack() -> None:
    """Two operators on shared boxes: loads are minimised over all sets of models, not only the largest."""
    sent = {"second": 10.0}
    first = operator("first", ["camera"], variant("a", {"box": 0.05}, sent), variant("b", {"box": 0.1}, sent))
    second = operator("second", ["first"], variant("only", {"box": 0.1}))
    accuracy = Independent({"first": {"a": 80.0, "b": 90.0}, "second": {"only": 100.0}})
    asked = problem(first, second, pools=[box(4)], accuracy=accuracy, slo=Slo(mean_accuracy=80.0))
    before = running(asked)
    found = replan(replace(asked, slo=Slo(mean_accuracy=85.0)), before, ReplanSettings(START))
    assert found.verdict is Verdict.REPLACE
    assert found.best is not None and found.best.certificate.is_optimal
    assert loaded(found) == [("b", 1)]


def test_a_soft_mean_counts_its_penalty_on_both_sides() -> None:
    before = running(reading(85.0))
    found = replan(reading(90.0, penalty_usd_per_h=0.1), before, ReplanSettings(horizon_h=10.0))
    assert found.broken == ()
    assert found.running_usd == pytest.approx(10.0 * (3.0 + 0.5))
    assert found.best is not None
    assert shares(found.best) == {"small": 1}  # 1 + 10 x 0.1
    assert found.best_usd == pytest.approx(10.0 * (1.0 + 1.0))
    assert found.verdict is Verdict.REPLACE


def test_without_a_mixture_that_meets_the_mean_there_is_none() -> None:
    before = running(reading(85.0))
    none = replan(reading(95.0), before, ReplanSettings(START))
    assert none.verdict is Verdict.NONE
    assert none.infeasibility is not None
    assert "the highest is 90" in none.infeasibility.reasons[0]


def test_a_plan_that_must_bear_a_loss_gets_a_spare() -> None:
    before = running(reading(85.0))
    asked = reading(85.0, survives=(LossKind.WORKER,))
    found = replan(asked, before, ReplanSettings(START))
    assert found.verdict is Verdict.REPLACE
    assert any("survive: without box-" in text for text in found.broken)
    assert found.best is not None
    assert evaluate(asked, found.best).complaints == ()
    assert len(found.best.workers) == 5  # 3 of large, as one may be lost, and 2 of small; or 4 that bear all alone
    assert sum(replicas for _, replicas in loaded(found)) == 2
    again = replan(asked, found.best, ReplanSettings(START))
    assert (again.verdict, again.broken, loaded(again)) == (Verdict.KEEP, (), [])


def test_the_mean_accuracy_must_rise_by_a_share_of_the_errors() -> None:
    before = running(reading(85.0))
    asked = replace(reading(boxes=4), objective=Objective.MEAN_ACCURACY)
    found = replan(asked, before, ReplanSettings(START))
    assert found.verdict is Verdict.REPLACE
    assert found.maximises_accuracy
    assert found.gained_points == pytest.approx(5.0, abs=0.01)
    assert found.removed_share == pytest.approx(1 / 3, abs=1e-3)
    assert found.accuracy_bound == pytest.approx(90.0, abs=0.02)
    assert loaded(found) == [("large", 2)]
    assert replan(asked, before, ReplanSettings(START, least_saved_share=0.34)).verdict is Verdict.KEEP


def test_an_equally_accurate_plan_must_save_enough() -> None:
    busy = replace(reading(boxes=8), objective=Objective.MEAN_ACCURACY)
    before = running(faster(busy))
    assert shares(before) == {"large": 8}
    found = replan(busy, before, ReplanSettings(START))
    assert (found.verdict, shares(found.best), loaded(found)) == (Verdict.REPLACE, {"large": 4}, [])
    assert replan(busy, before, ReplanSettings(START, least_saved_share=0.51)).verdict is Verdict.KEEP


@pytest.mark.slow
def test_the_p99_is_kept_at_the_least_cost_with_migration() -> None:
    before = running(reading(82.0))
    asked = reading(82.0, latency_p99_s=0.9)

    def judge(plan: Plan) -> float:
        return simulate_plan(plan, duration_s=500.0).latency_p99_s / 0.9

    assert judge(before) > 1.0
    search = SearchSettings(missed="too slow", deadline=Deadline(0.9, judge))
    found = replan(asked, before, ReplanSettings(START), search)
    assert found.broken == ("too slow",)
    assert (found.verdict, found.refused) == (Verdict.REPLACE, None)
    assert found.best is not None and judge(found.best) <= 1.0
    assert found.bound_usd <= (found.best_usd or 0.0)
    assert len(found.best.workers) > len(before.workers)


def test_whole_streams_go_on_from_a_running_plan() -> None:
    """Half of 4 streams get the better variant: two of four boxes. Where all should, each box takes one of them."""
    asked = reading(85.0)
    source, operator_ = replace(asked.sources[0], streams=4), replace(asked.operators[0], state=(("before", "after"),))
    streamed = replace(asked, sources=(source,), operators=(operator_,))
    before = running(streamed)
    assert sorted(route.weight for route in before.routes) == [0.25, 0.25, 0.5]
    assert replan(streamed, before, ReplanSettings()).verdict is Verdict.KEEP
    better = replan(replace(streamed, slo=Slo(mean_accuracy=90.0)), before, ReplanSettings(START))
    assert better.verdict is Verdict.REPLACE and better.best is not None
    assert [route.weight for route in better.best.routes] == [0.25] * 4


def test_workers_of_a_mixture_are_matched_by_variant() -> None:
    """Workers of two variants have the same rates and routes here, and change names."""
    small, large = variant("small", {"box": 0.1}, {"keep": 1e6}), variant("large", {"box": 0.1}, {"keep": 1e7})
    asked = problem(
        operator("read", ["camera"], small, large),
        operator("keep", ["read"], variant("only", {"gpu": 0.01})),
        pools=[box(2, sharing=Sharing.EXCLUSIVE), gpu(1)],
        rate_per_s=20.0,
        accuracy=Independent({"read": {"small": 80.0, "large": 90.0}, "keep": {"only": 100.0}}),
        slo=Slo(mean_accuracy=85.0),
    )
    before = running(asked)
    assert shares(before) == {"small": 1, "large": 1, "only": 1}
    names = {"box-1": "box-2", "box-2": "box-1", "gpu-1": "gpu-1"}
    routes = (replace(one, workers={name: names[at] for name, at in one.workers.items()}) for one in before.routes)
    workers = (replace(worker, name=names[worker.name]) for worker in before.workers)
    moved = cheapest_migration(before, replace(before, workers=tuple(workers), routes=tuple(routes)), START)
    assert (moved.loads, moved.kept, moved.dropped) == ((), 3, 0)


def test_another_file_of_one_variant_is_loaded_where_it_runs() -> None:
    asked = reading(85.0)
    small, large = asked.operators[0].variants
    today = replace(
        asked,
        operators=(
            replace(asked.operators[0], variants=(small, replace(large, model=ModelRef("l.onnx", "ab" * 32, 1.0)))),
        ),
    )
    found = replan(today, running(asked), ReplanSettings(START))
    assert found.broken == ("read runs another file of variant large: SHA-256 none, now abababababab",)
    assert loaded(found) == [("large", 2)]


def test_the_difference_of_mixtures_is_told_by_variant() -> None:
    diff = plan_diff(running(faster(reading(85.0))), running(faster(reading(87.5))))
    assert diff.variants == ()
    assert {(one.variant, round(one.before, 6), round(one.after, 6)) for one in diff.shares} == {
        ("small", 0.5, 0.25),
        ("large", 0.5, 0.75),
    }
    assert {(one.variant, one.workers_before, one.workers_after) for one in diff.placements} == {
        ("small", 1, 1),
        ("large", 4, 6),
    }
    one = plan_diff(running(reading(85.0)), running(replace(reading(), slo=Slo(accuracy=90.0))))
    assert [(change.before, change.after) for change in one.variants] == [("large + small", "large")]


def test_with_too_many_sets_of_models_the_loads_have_a_lower_bound() -> None:
    """Nine operators have 511 sets of models or more: loads are counted by replicas, and the bound is of that."""
    names = [f"o{number}" for number in range(9)]
    operators = [
        operator(
            name,
            ["camera" if number == 0 else names[number - 1]],
            *(
                variant(quality, {"box": load_s}, {names[number + 1]: 1.0} if number < 8 else {})
                for quality, load_s in (("low", 0.02), ("high", 0.05))[: 2 if number == 0 else 1]
            ),
        )
        for number, name in enumerate(names)
    ]
    asked = problem(
        *operators,
        pools=[box(6)],
        accuracy=Independent({"o0": {"low": 80.0, "high": 90.0}, **{name: {"low": 100.0} for name in names[1:]}}),
        slo=Slo(mean_accuracy=80.0),
    )
    before = running(asked)
    found = replan(replace(asked, slo=Slo(mean_accuracy=85.0)), before, ReplanSettings(START))
    assert found.verdict is Verdict.REPLACE
    assert found.best is not None and found.best_usd is not None
    assert evaluate(replace(asked, slo=Slo(mean_accuracy=85.0)), found.best).complaints == ()
    assert ("high", 1) in loaded(found)
    assert found.bound_usd <= found.best_usd
