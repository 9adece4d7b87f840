"""Differences of plans made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import (
    Clock,
    Link,
    MigrationPrices,
    ModelRef,
    Plan,
    ServiceTime,
    plan_diff,
)
from jellybean_solver.migration import plan_matching
from jellybean_solver.migration.migration_cost import cheapest_migration
from jellybean_solver.migration.plan_matching import hosted_models, match_workers
from tests import report_plans
from tests.support.hosting_plans import FLEETS, hosting


@pytest.mark.parametrize("plan", [report_plans.vqa(), report_plans.digits(), report_plans.large()])
def test_a_plan_does_not_differ_from_itself(plan: Plan) -> None:
    diff = plan_diff(plan, plan)
    assert diff.is_empty
    assert diff.names == {worker.name: worker.name for worker in plan.workers}


def test_a_changed_variant_is_loaded_wherever_it_is_served() -> None:
    before = hosting({"box-1": ["find"], "box-2": ["find", "read"]})
    diff = plan_diff(before, hosting({"box-1": ["find"], "box-2": ["find", "read"]}, {"find": "large"}))
    assert [(c.operator, c.before, c.after) for c in diff.variants] == [("find", "v", "large")]
    assert [(c.after, [m.variant for m in c.load], [m.variant for m in c.unload]) for c in diff.workers] == [
        ("box-1", ["large"], ["v"]),
        ("box-2", ["large"], ["v"]),
    ]
    assert diff.workers[0].load[0].sha256 == "ab" * 32
    assert [model.memory_bytes for model in diff.workers[0].load] == [100.0]


def test_another_file_of_the_same_variant_is_loaded_anew_but_another_measurement_is_not() -> None:
    before = hosting({"box-1": ["find"]})
    find = before.operators[0]
    retrained = replace(before, operators=(replace(find, model=ModelRef("find.onnx", "cd" * 32)),))
    measured = replace(before, operators=(replace(find, memory_bytes={"box": 120.0}),))
    assert [len(change.load) for change in plan_diff(before, retrained).workers] == [1]
    again = plan_diff(before, measured)
    assert again.workers == ()
    assert [(c.figure, c.before, c.after) for c in again.figures] == [("operators.find.memory_bytes.box", 100.0, 120.0)]


def test_a_model_that_was_trained_anew_changes_no_route() -> None:
    before = hosting({"box-1": ["find"], "box-2": ["find", "read"]})
    find, read = before.operators
    retrained = replace(before, operators=(replace(find, model=ModelRef("find.onnx", "cd" * 32)), read))
    diff = plan_diff(before, retrained)
    assert [(c.operator, c.variant, c.sha256_before, c.sha256_after) for c in diff.models] == [
        ("find", "v", "ab" * 32, "cd" * 32)
    ]
    assert not diff.is_empty
    assert (diff.variants, diff.pools, diff.placements, diff.figures, diff.routes_changed) == ((), (), (), (), False)
    assert [(c.before, c.after) for c in diff.workers] == [("box-1", "box-1"), ("box-2", "box-2")]


def test_another_variant_on_the_same_workers_changes_no_route() -> None:
    diff = plan_diff(hosting({"box-1": ["find"]}), hosting({"box-1": ["find"]}, {"find": "large"}))
    assert (diff.models, diff.routes_changed) == ((), False)


def test_targets_and_figures_are_differences() -> None:
    before = hosting({"box-1": ["find"]})
    find, worker = before.operators[0], before.workers[0]
    link = Link("edge", "cloud", 0.1, 1e6, 0.01)
    before = replace(before, links=(link,))
    for changed, path in (
        (replace(before, slo=replace(before.slo, latency_p99_s=0.123)), "slo.latency_p99_s"),
        (replace(before, utilisation=0.123), "utilisation"),
        (replace(before, links=(replace(link, latency_s=0.02),)), "links.edge.cloud.latency_s"),
        (replace(before, links=(replace(link, bandwidth_bytes_per_s=None),)), "links.edge.cloud.bandwidth_bytes_per_s"),
        (replace(before, workers=(replace(worker, memory_bytes=5.0),)), "workers.box.memory_bytes"),
        (
            replace(before, operators=(replace(find, service={"box": {1: ServiceTime(0.01, 0.02)}}),)),
            "operators.find.service.box.1.mean_s",
        ),
    ):
        diff = plan_diff(before, changed)
        assert [change.figure for change in diff.figures] == [path]
        assert not diff.is_empty
        (back,) = plan_diff(changed, before).figures
        assert (back.before, back.after) == (diff.figures[0].after, diff.figures[0].before)


def test_figures_of_another_variant_are_not_listed_beside_it() -> None:
    before = hosting({"box-1": ["find"]})
    after = hosting({"box-1": ["find"]}, {"find": "large"})
    after = replace(after, operators=(replace(after.operators[0], memory_bytes={"box": 900.0}),))
    assert plan_diff(before, after).figures == ()


def test_workers_go_on_where_most_models_stay() -> None:
    """By names, or by the best pair first, more models would move: {a b c} with {a b} leaves {c} nothing."""
    before = hosting({"box-1": ["a", "b", "c"], "box-2": ["a", "b"]})
    after = hosting({"box-1": ["a", "b", "d"], "box-2": ["a", "c", "b", "e"]})
    pairs = {(one.name, two.name) for one, two in match_workers(before, after).pairs if one and two}
    assert pairs == {("box-1", "box-2"), ("box-2", "box-1")}
    diff = plan_diff(before, after)
    assert sum(len(change.load) + len(change.unload) for change in diff.workers) == 2


OVER = Clock(lambda: 1.0, 0.0)
CROSSWISE = [
    ({"box-1": ["a", "b", "c"], "box-2": ["d"]}, {"box-1": ["d", "e"], "box-2": ["a", "b"]}),
    ({"box-1": ["a", "b"], "box-2": ["c"], "box-3": ["d"]}, {"box-1": ["c", "e"], "box-2": ["a"], "box-3": ["b"]}),
    ({"gpu-1": ["a", "b"], "gpu-2": ["c", "d"]}, {"gpu-1": ["c", "e"]}),
]


@pytest.mark.parametrize(("before", "after"), CROSSWISE)
def test_the_workers_of_a_few_groups_are_matched_exactly_at_any_time(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    one, two, prices = hosting(before), hosting(after), MigrationPrices(1.0, 0.0)
    assert cheapest_migration(one, two, prices, OVER) == cheapest_migration(one, two, prices)
    assert plan_diff(one, two, limit=OVER) == plan_diff(one, two)


@pytest.mark.parametrize("kind", FLEETS)
def test_at_the_time_limit_many_unlike_workers_are_matched_by_what_they_keep(kind: str) -> None:
    sets, count, prices = FLEETS[kind], 70, MigrationPrices(1.0, 0.0)
    one = hosting({f"box-{i}": sets(i)[0] for i in range(count)})
    two = hosting({f"box-{count - i}": sets(i)[1] for i in range(count - 5)})
    late, exact = cheapest_migration(one, two, prices, OVER), cheapest_migration(one, two, prices)
    assert (late.out_of_time, exact.out_of_time) == (True, False)
    assert late.kept + late.replicas == exact.kept + exact.replicas
    assert exact.total_usd <= late.total_usd
    assert late.kept >= exact.kept / 2  # a greedy matching has at least half of the greatest value
    assert late.kept >= count - 5  # that of any pairs
    matching = match_workers(one, two, None, OVER)
    paired = [[worker.name for worker in side if worker is not None] for side in zip(*matching.pairs, strict=True)]
    assert [len(set(names)) for names in paired] == [len(names) for names in paired] == [count, count - 5]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"box-1": ["a"], "box-2": ["b"]}, {"box-1": ["b"], "box-2": ["a"]}),
        ({"box-1": ["a"]}, {"box-1": ["b"]}),
        ({"box-1": ["a"]}, {"gpu-1": ["a"]}),
    ],
    ids=["renumbered", "nothing in common", "another pool"],
)
def test_a_matching_that_no_search_decides_is_not_cut_short(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    late, exact = plan_diff(hosting(before), hosting(after), limit=OVER), plan_diff(hosting(before), hosting(after))
    assert late == exact
    assert not late.out_of_time


def test_workers_start_and_stop_by_pool() -> None:
    diff = plan_diff(hosting({"box-1": ["a"], "box-2": ["a", "b"]}), hosting({"box-1": ["a", "b"], "gpu-1": ["a"]}))
    assert [(pool.pool, pool.before, pool.after) for pool in diff.pools] == [("box", 2, 1), ("gpu", 0, 1)]
    assert diff.names == {"box-2": "box-1"}
    assert [(change.before, len(change.unload)) for change in diff.workers if change.after is None] == [("box-1", 1)]
    assert [(change.after, len(change.load)) for change in diff.workers if change.before is None] == [("gpu-1", 1)]
    assert len(diff.workers) == 2


def test_a_worker_without_anything_in_common_goes_on_rather_than_stop() -> None:
    diff = plan_diff(hosting({"box-1": ["a"]}), hosting({"box-7": ["b"]}))
    assert [(change.before, change.after) for change in diff.workers] == [("box-1", "box-7")]


def test_other_shares_of_routes_are_a_difference() -> None:
    plan = report_plans.digits()
    first, second = plan.routes
    diff = plan_diff(plan, replace(plan, routes=(replace(first, weight=0.6), replace(second, weight=0.4))))
    assert diff.routes_changed
    assert not diff.is_empty
    assert diff.workers == ()


def test_traffic_by_link() -> None:
    plan = report_plans.digits()
    operators = tuple(
        replace(op, message_bytes={k: 2 * v for k, v in op.message_bytes.items()}) for op in plan.operators
    )
    (link,) = plan_diff(plan, replace(plan, operators=operators)).links
    assert (link.upstream_tier, link.downstream_tier) == ("edge", "cloud")
    assert link.bytes_after_per_s == pytest.approx(2 * link.bytes_before_per_s)
    assert link.cost_after_usd_per_h == pytest.approx(2 * link.cost_before_usd_per_h)


def test_hosted_names_the_model_and_its_memory() -> None:
    plan = hosting({"box-1": ["find"]})
    (model,) = hosted_models(plan, plan.workers[0])
    assert (model.operator, model.variant, model.memory_bytes) == ("find", "v", 100.0)


@pytest.mark.parametrize("kind", FLEETS)
@pytest.mark.parametrize("at_once", [1, 100, 1000])
def test_groups_that_are_looked_at_in_parts_are_matched_as_all_at_once(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs of thousands of unlike workers would take gigabytes."""
    one, two = (hosting({f"box-{i}": FLEETS[kind](i)[side] for i in range(20 + side)}) for side in range(2))
    every = match_workers(one, two)
    monkeypatch.setattr(plan_matching, "MOST_AT_ONCE", at_once)
    assert match_workers(one, two) == every
