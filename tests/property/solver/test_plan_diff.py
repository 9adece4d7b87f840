"""Differences of random plans: nothing against itself, mirrored, complete, and with as few moves as can be."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_solver import Plan, PlanDiff, plan_diff, solve
from jellybean_solver.migration.plan_matching import hosted_models
from tests.property.simulator.plans import random_plan
from tests.strategies import problems
from tests.support.examples import examples
from tests.unit.solver.diff.test_plan_diff import hosting

randoms = st.randoms(use_true_random=False)
fleets = st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=5)


def renumbered(plan: Plan, rng: random.Random) -> Plan:
    """The same plan with its workers' names exchanged within each pool, and all in another order."""
    names: dict[str, str] = {}
    for pool in dict.fromkeys(worker.pool for worker in plan.workers):
        old = [worker.name for worker in plan.workers if worker.pool == pool]
        names |= dict(zip(old, rng.sample(old, len(old)), strict=True))
    workers = [replace(worker, name=names[worker.name]) for worker in plan.workers]
    routes = [replace(r, workers={op: names[name] for op, name in r.workers.items()}) for r in plan.routes]
    rng.shuffle(workers)
    rng.shuffle(routes)
    return replace(plan, workers=tuple(workers), routes=tuple(routes))


def mirrored(diff: PlanDiff) -> set[tuple[object, ...]]:
    return {(c.pool, c.after, c.before, c.unload, c.load) for c in diff.workers}


@settings(deadline=None, max_examples=examples(100))
@given(randoms)
def test_renumbered_workers_are_no_difference(rng: random.Random) -> None:
    plan = random_plan(rng, 0.5)
    assert plan_diff(plan, plan).is_empty
    assert plan_diff(plan, renumbered(plan, rng)).is_empty


@settings(deadline=None, max_examples=examples(60))
@given(problems(), randoms)
def test_renumbered_workers_of_solved_plans_are_no_difference(problem, rng: random.Random) -> None:  # type: ignore[no-untyped-def]
    plan = solve(problem).plan
    if plan is not None:
        assert plan_diff(plan, renumbered(plan, rng)).is_empty


@settings(deadline=None, max_examples=examples(150))
@given(fleets, fleets)
def test_loads_and_unloads_lead_from_one_plan_to_the_other(one: list[set[str]], two: list[set[str]]) -> None:
    before = hosting({f"box-{i}": sorted(held) for i, held in enumerate(one, 1)})
    after = hosting({f"box-{i}": sorted(held) for i, held in enumerate(two, 2)})
    diff = plan_diff(before, after)
    held = {worker.name: set(hosted_models(before, worker)) for worker in before.workers}
    for change in (change for change in diff.workers if change.after is None):
        assert set(change.unload) == held.pop(change.before or "")
    reached = {diff.names[name]: models for name, models in held.items()}
    for change in diff.workers:
        if change.after is not None:
            reached.setdefault(change.after, set())
            assert set(change.unload) <= reached[change.after]
            reached[change.after] -= set(change.unload)
            reached[change.after] |= set(change.load)
    assert reached == {worker.name: hosted_models(after, worker) for worker in after.workers}
    assert sum(len(c.load) + len(c.unload) for c in diff.workers) == fewest_moves(one, two)
    assert mirrored(diff) == {(c.pool, c.before, c.after, c.load, c.unload) for c in plan_diff(after, before).workers}


@settings(deadline=None, max_examples=examples(150))
@given(fleets, fleets, st.fixed_dictionaries({name: st.sampled_from((0.0, 0.1, 1.0, 5.0)) for name in "abcd"}))
def test_with_prices_the_least_is_paid(one: list[set[str]], two: list[set[str]], price: dict[str, float]) -> None:
    before = hosting({f"box-{i}": sorted(held) for i, held in enumerate(one, 1)})
    after = hosting({f"box-{i}": sorted(held) for i, held in enumerate(two, 2)})
    diff = plan_diff(before, after, lambda model, worker: price[model.operator])
    paid = sum(price[model.operator] for change in diff.workers for model in change.load)
    from_each = [*one, *([set()] * len(two))]
    least = min(
        sum(price[name] for start, held in zip(chosen, two, strict=True) for name in held - start)
        for chosen in itertools.permutations(from_each[: max(len(one), len(two))], len(two))
    )
    assert paid == pytest.approx(least, abs=1e-4)
    assert len(diff.names) == min(len(one), len(two))
    if not any(price.values()):
        assert sum(len(c.load) + len(c.unload) for c in diff.workers) == fewest_moves(one, two)


def fewest_moves(one: list[set[str]], two: list[set[str]]) -> int:
    """By trying every way to match the smaller fleet."""
    if len(one) > len(two):
        one, two = two, one
    kept = max(
        sum(len(a & b) for a, b in zip(one, chosen, strict=True)) for chosen in itertools.permutations(two, len(one))
    )
    return sum(map(len, one)) + sum(map(len, two)) - 2 * kept
