"""Decisions on running plans that can be worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from jellybean_solver import (
    Independent,
    Link,
    MigrationPrices,
    ModelRef,
    Plan,
    Pool,
    Problem,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Sharing,
    Slo,
    SolverError,
    Verdict,
    load_prices,
    plan_diff,
    replan,
    solve,
    with_change,
)
from jellybean_solver.migration.migration_cost import cheapest_migration
from tests.support.small_problems import GIB, box, gpu, operator, problem, variant


def two_ways(rate_per_s: float = 10.0, box_price: float = 1.0, target: float | None = None) -> Problem:
    """`find` takes 0.1 s on a box and 0.02 s on a dearer `gpu`; `exact` is better and takes twice as long."""
    quick = variant("quick", {"box": 0.1, "gpu": 0.02}, memory_bytes={"box": GIB, "gpu": GIB})
    exact = variant("exact", {"box": 0.2, "gpu": 0.04}, memory_bytes={"box": 3 * GIB, "gpu": 3 * GIB})
    return problem(
        operator("find", ["camera"], quick, exact),
        pools=[box(4, box_price), gpu(2, 3.0)],
        rate_per_s=rate_per_s,
        links=[Link("edge", "cloud", 0.5)],
        accuracy=Independent({"find": {"quick": 80.0, "exact": 90.0}}),
        slo=Slo(accuracy=target),
    )


def running(asked: Problem) -> Plan:
    plan = solve(asked).plan
    assert plan is not None
    return plan


def boxes(found: Replanned) -> int:
    assert found.best is not None
    return sum(worker.pool == "box" for worker in found.best.workers)


def test_an_unchanged_problem_keeps_its_plan_for_nothing() -> None:
    before = running(two_ways())
    found = replan(two_ways(), before, ReplanSettings(MigrationPrices(1.0)))
    assert found.verdict is Verdict.KEEP
    assert found.running == before
    assert found.saved_usd == pytest.approx(0.0)
    assert found.migration is not None
    assert (found.migration.loads, found.migration.kept, found.migration.dropped) == ((), 1, 0)


def test_a_change_must_save_enough() -> None:
    before = running(two_ways(20.0))  # two boxes; 10/s would need one
    assert len(before.workers) == 2
    keep = replan(two_ways(10.0), before, ReplanSettings(horizon_h=10.0, least_saved_share=0.51))
    assert keep.verdict is Verdict.KEEP
    assert keep.saved_usd == pytest.approx(10.0)
    assert keep.saved_share == pytest.approx(0.5)
    change = replan(two_ways(10.0), before, ReplanSettings(horizon_h=10.0, least_saved_share=0.5))
    assert change.verdict is Verdict.REPLACE
    assert boxes(change) == 1
    assert change.migration is not None
    assert (change.migration.loads, change.migration.kept, change.migration.dropped) == ((), 1, 1)


def test_a_large_enough_rate_changes_the_plan() -> None:
    before = running(two_ways(10.0))
    found = replan(two_ways(30.0), before, ReplanSettings(MigrationPrices(100.0), 24.0))
    assert found.verdict is Verdict.REPLACE
    assert found.broken == ("box-1 would be busy 3.0000 of the time, above the cap of 1",)
    assert found.migration is not None
    # A gpu costs as much per hour as three boxes, but is one replica to start where two boxes more are two.
    assert [(load.pool, load.replicas) for load in found.migration.loads] == [("gpu", 1)]


def test_the_horizon_decides_whether_migration_pays() -> None:
    before = running(two_ways(10.0))
    dear = two_ways(10.0, box_price=6.0)  # boxes cost 6 now, a gpu 3
    start = MigrationPrices(30.0)  # and the model is free to bring to the top tier
    short, long = (replan(dear, before, ReplanSettings(start, horizon_h)) for horizon_h in (9.0, 11.0))
    assert short.verdict is Verdict.KEEP
    assert short.migration is not None
    assert short.migration.total_usd == 0.0  # the best change is none
    assert long.verdict is Verdict.REPLACE
    assert long.running_usd == pytest.approx(66.0)
    assert long.best_usd == pytest.approx(33.0 + 30.0)
    assert long.saved_usd == pytest.approx(3.0)


def test_a_plan_that_breaks_a_target_is_replaced_whatever_it_costs() -> None:
    before = running(two_ways())
    found = replan(two_ways(target=85.0), before, ReplanSettings(MigrationPrices(1e6), 1.0, least_saved_share=1.0))
    assert found.verdict is Verdict.REPLACE
    assert found.broken == ("accuracy 80 is below the target of 85",)
    assert found.saved_usd is not None
    assert found.saved_usd < -1e5
    assert found.best is not None
    assert found.best.selection == {"find": "exact"}


def test_without_any_plan_there_is_no_change_and_the_reasons_are_told() -> None:
    before = running(two_ways())
    found = replan(two_ways(target=95.0), before, ReplanSettings())
    assert found.verdict is Verdict.NONE
    assert found.best is None
    assert found.infeasibility is not None
    assert found.infeasibility.nearest_accuracy == 90.0


def test_a_pool_that_has_vanished_breaks_the_plan_and_holds_nothing() -> None:
    before = running(two_ways())
    today = two_ways()
    today = replace(today, pools=tuple(pool for pool in today.pools if pool.name != "box"))
    found = replan(today, before, ReplanSettings(MigrationPrices(2.0)))
    assert found.verdict is Verdict.REPLACE
    assert found.broken == ("box-1 is of pool box, which does not exist",)
    assert found.migration is not None
    assert [(load.pool, load.replicas) for load in found.migration.loads] == [("gpu", 1)]
    assert found.migration.dropped == 1


def test_another_file_of_the_model_is_another_model() -> None:
    def with_file(sha256: str) -> Problem:
        asked = two_ways()
        find = asked.operators[0]
        variants = tuple(replace(v, model=ModelRef("find.onnx", sha256 * 32, GIB / 2)) for v in find.variants)
        return replace(asked, operators=(replace(find, variants=variants),))

    found = replan(with_file("cd"), running(with_file("ab")), ReplanSettings())
    assert found.verdict is Verdict.REPLACE
    assert found.broken == ("find runs another file of variant quick: SHA-256 abababababab, now cdcdcdcdcdcd",)
    assert found.migration is not None
    assert found.migration.download_usd == pytest.approx(0.25)  # half a GiB over the link at 0.5 USD/GiB


def only_exact(asked: Problem) -> Problem:
    find = asked.operators[0]
    return replace(asked, operators=(replace(find, variants=find.variants[1:]),))


def renamed(asked: Problem) -> Problem:
    """The same workflow in other words: the operator is called otherwise."""
    find = asked.operators[0]
    look = replace(find, name="look", inputs=tuple(replace(edge, downstream="look") for edge in find.inputs))
    return replace(asked, operators=(look,), accuracy=Independent({}))


def other_source(asked: Problem) -> Problem:
    find = asked.operators[0]
    inputs = tuple(replace(edge, upstream="eye") for edge in find.inputs)
    sources = (replace(asked.sources[0], name="eye"),)
    return replace(asked, sources=sources, operators=(replace(find, inputs=inputs),))


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        (only_exact, ("operator find has no variant quick",)),
        (renamed, ("the plan has no operator look", "the problem has no operator find")),
        (other_source, ()),
    ],
)
def test_a_plan_of_other_documents_is_told_and_compared(
    changed: Callable[[Problem], Problem], broken: Sequence[str]
) -> None:
    for before, today in ((two_ways(), changed(two_ways())), (changed(two_ways()), two_ways())):
        found = replan(today, running(before), ReplanSettings())
        assert found.best is not None
        assert found.migration is not None
        assert not plan_diff(found.running, found.running).workers
        diff = plan_diff(found.running, found.best, load_prices(found.best, found.settings.prices))
        assert sum(len(change.load) for change in diff.workers) == found.migration.replicas
        if today == changed(two_ways()):
            assert found.broken[: len(broken)] == tuple(broken)
            assert (found.verdict is Verdict.REPLACE) == bool(broken)


def test_a_running_plan_that_misses_another_target_is_replaced() -> None:
    before = running(two_ways(10.0))
    kept = replan(two_ways(10.0), before, ReplanSettings())
    assert (kept.verdict, kept.broken) == (Verdict.KEEP, ())
    late = replan(two_ways(10.0), before, ReplanSettings(), SearchSettings(missed="slow"))
    assert (late.verdict, late.broken) == (Verdict.REPLACE, ("slow",))


def test_another_change_than_the_best_one_is_weighed_with_its_migration() -> None:
    before, today = running(two_ways(30.0)), two_ways(10.0)  # a gpu
    two_boxes = running(two_ways(20.0))
    for share, verdict in ((0.3, Verdict.REPLACE), (0.4, Verdict.KEEP)):
        settings = ReplanSettings(MigrationPrices(0.01), 24.0, share)
        best = replan(today, before, settings)
        moved = cheapest_migration(before, two_boxes, settings.prices)
        found = with_change(best, two_boxes, moved, best.bound_usd, refused="slow")
        assert (found.verdict, found.refused, found.best) == (verdict, "slow", two_boxes)
        assert found.best_usd == pytest.approx(48.0 + 2 * (0.01 + 0.5))
        assert found.saved_share == pytest.approx((72.0 - 49.02) / 72.0)
        assert found.bound_usd == pytest.approx(24.0 + 0.01 + 0.5)


def test_the_budget_is_on_the_plan_without_the_way_there() -> None:
    before = running(two_ways(10.0))
    dear = two_ways(10.0, box_price=6.0)
    today = replace(dear, slo=Slo(budget_usd_per_h=3.0))
    found = replan(today, before, ReplanSettings(MigrationPrices(500.0), 1.0))
    assert found.verdict is Verdict.REPLACE
    assert found.broken == ("budget: 6.00 USD/h is 3.00 USD/h more than the 3.00 USD/h allowed",)
    assert found.best_usd == pytest.approx(503.0)


def test_when_time_ends_a_good_running_plan_is_kept() -> None:
    before = running(two_ways())
    ticks = itertools.count()

    def clock() -> float:
        return float(next(ticks))

    found = replan(two_ways(), before, ReplanSettings(), search=SearchSettings(time_limit_s=0.5, clock=clock))
    assert (found.verdict, found.best, found.broken) == (Verdict.KEEP, None, ())
    with pytest.raises(SolverError, match="no plan was found in the time allowed"):
        replan(two_ways(30.0), before, ReplanSettings(), search=SearchSettings(time_limit_s=0.5, clock=clock))


def test_when_time_ends_a_running_plan_that_is_too_slow_is_replaced_by_what_is_known_instead() -> None:
    before, busy = running(two_ways()), two_ways(30.0)
    other = solve(busy).plan
    assert other is not None
    ticks = itertools.count()
    settings = SearchSettings(time_limit_s=0.5, clock=lambda: float(next(ticks)), instead=lambda: other)
    found = replan(busy, before, ReplanSettings(), settings)
    assert found.verdict is Verdict.REPLACE
    assert found.best == other
    assert found.broken
    assert found.migration is not None


def test_a_horizon_is_longer_than_nothing() -> None:
    with pytest.raises(SolverError, match="horizon"):
        replan(two_ways(), running(two_ways()), ReplanSettings(horizon_h=0.0))


def three_tiers() -> Problem:
    """`find` on a `box` at the edge, `read` on a `hub`."""
    find = variant("v", {"box": 0.1}, {"read": 1.0}, {"box": 2 * GIB})
    read = variant("v", {"hub": 0.1})
    asked = problem(
        operator("find", ["camera"], find),
        operator("read", ["find"], read),
        pools=[box(3), Pool("hub", "hub", 3, 1.0)],
        links=[Link("edge", "hub", 0.1), Link("hub", "cloud", 0.2), Link("edge", "cloud", 0.9)],
    )
    return replace(asked, tiers=("edge", "hub", "cloud"))


def test_downloads_take_the_cheapest_links_from_the_top_tier() -> None:
    plan, empty = running(three_tiers()), replace(running(three_tiers()), workers=(), routes=())
    found = cheapest_migration(empty, plan, MigrationPrices(0.01))
    assert [(load.operator, load.tier, load.usd_per_gib) for load in found.loads] == [
        ("find", "edge", pytest.approx(0.3)),
        ("read", "hub", 0.2),
    ]
    assert found.loads[0].size_bytes == 2 * GIB  # no file: what it takes in memory
    assert found.loads[1].size_bytes is None
    assert found.start_usd == pytest.approx(0.02)
    assert found.download_usd == pytest.approx(0.6)
    assert cheapest_migration(empty, plan, MigrationPrices(0.0, 2.0)).total_usd == pytest.approx(4.0)
    assert cheapest_migration(plan, empty, MigrationPrices(1.0)).total_usd == 0.0
    apart = replace(plan, links=())
    assert [load.usd_per_gib for load in cheapest_migration(empty, apart, MigrationPrices()).loads] == [None, None]


@pytest.mark.parametrize("sharing", Sharing)
def test_running_workers_are_used_for_what_they_hold(sharing: Sharing) -> None:
    """Twice the rate: `a` and `b` need two boxes each, and no worker that holds one should load the other."""
    pieces = [variant("v", {"box": 0.09}, {"b": 1.0}), variant("v", {"box": 0.09})]

    def at(rate_per_s: float) -> Problem:
        operators = operator("a", ["camera"], pieces[0]), operator("b", ["a"], pieces[1])
        return problem(*operators, pools=[box(5, sharing=sharing)], rate_per_s=rate_per_s)

    before = running(at(10.0))
    found = replan(at(20.0), before, ReplanSettings(MigrationPrices(0.5)))
    assert found.best is not None
    assert found.migration is not None
    assert len(found.best.workers) == 4
    assert (found.migration.replicas, found.migration.dropped) == (2, 0)
    assert found.best.certificate.gap == 0
    assert found.best.certificate.objective == pytest.approx(found.best.cost.total_usd_per_h + 1.0 / 24.0)
    loads = sorted(worker.load for worker in found.best.workers)
    assert loads == pytest.approx([0.9] * 4)
