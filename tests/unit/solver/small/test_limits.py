"""Memory, bandwidth and residency as constraints of the assignment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import Link, Plan, Problem, evaluate, solve
from jellybean_solver.demand.memory import Memory, MemoryLimits, PoolMemory
from jellybean_solver.demand.model_sets import largest_model_sets
from jellybean_solver.demand.settings import AssignmentSettings
from tests.support.small_problems import box, gpu, operator, problem, variant


def _plan(case: Problem) -> Plan:
    solution = solve(case)
    assert solution.plan is not None
    assert evaluate(case, solution.plan).complaints == ()
    return solution.plan


def _hosted(plan: Plan) -> list[tuple[str, ...]]:
    return sorted(tuple(sorted(worker.rates_per_s)) for worker in plan.workers)


def test_models_that_do_not_fit_together_get_workers_of_their_own() -> None:
    steps = [
        operator(name, [up], variant("v", {"box": 0.01}, {down: 0.0} if down else {}, {"box": size}))
        for name, up, down, size in (("a", "camera", "b", 3.0), ("b", "a", "c", 2.0), ("c", "b", None, 2.0))
    ]
    roomy, tight = (problem(*steps, pools=[box(5, memory=memory)]) for memory in (7.0, 4.0))

    assert _hosted(_plan(roomy)) == [("a", "b", "c")]
    assert _hosted(_plan(tight)) == [("a",), ("b", "c")]
    assert _plan(tight).cost.total_usd_per_h == pytest.approx(2 * _plan(roomy).cost.total_usd_per_h)


def test_an_operator_may_need_to_be_held_twice() -> None:
    """Three loads of 0.6 on two workers, two models each: the middle one is split."""
    steps = [
        operator(name, [up], variant("v", {"box": 0.06}, {down: 0.0} if down else {}, {"box": 1.0}))
        for name, up, down in (("a", "camera", "b"), ("b", "a", "c"), ("c", "b", None))
    ]
    plan = _plan(replace(problem(*steps, pools=[box(2, memory=2.0)], rate_per_s=10.0), utilisation=1.0))
    assert len(plan.workers) == 2
    assert sum(map(len, _hosted(plan))) == 4


def test_a_narrow_link_splits_the_load() -> None:
    step = operator("a", ["camera"], variant("v", {"box": 0.08, "gpu": 0.001}))
    links = [Link("edge", "cloud", 0.0)]
    case = problem(step, pools=[box(9, 5.0), gpu(price=1.0)], links=links, rate_per_s=30.0, message_bytes=1e4)
    free = _plan(case)
    narrow = _plan(replace(case, links=(Link("edge", "cloud", 0.0, bandwidth_bytes_per_s=3e5 / 4),)))

    assert {worker.tier for worker in free.workers} == {"cloud"}
    share = {place.tier: place.rate_per_s / 30.0 for place in narrow.placements}
    assert share["cloud"] == pytest.approx(0.25)
    assert share["edge"] == pytest.approx(0.75)
    assert narrow.cost.total_usd_per_h == 11.0  # two boxes and the GPU; three boxes alone cost 15


def test_data_and_operators_stay_where_they_must() -> None:
    first = operator("a", ["camera"], variant("v", {"box": 0.01, "gpu": 0.01}, {"b": 1.0}))
    second = operator("b", ["a"], variant("v", {"box": 0.01, "gpu": 0.01}))
    case = problem(first, second, pools=[box(3, price=5.0), gpu(price=1.0)])

    def tiers(*steps: object) -> dict[str, str]:
        plan = _plan(replace(case, operators=steps))  # type: ignore[arg-type]
        return {place.operator: place.tier for place in plan.placements}

    assert tiers(first, second) == {"a": "cloud", "b": "cloud"}
    assert tiers(replace(first, tiers=("edge",)), second) == {"a": "edge", "b": "edge"}
    kept = replace(first, inputs=(replace(first.inputs[0], tiers=("edge",)),))
    assert tiers(kept, second)["a"] == "edge"
    private = replace(second, inputs=(replace(second.inputs[0], tiers=("edge",)),))
    assert tiers(first, private) == {"a": "edge", "b": "edge"}


def test_evaluation_names_data_where_it_may_not_be() -> None:
    first = operator("a", ["camera"], variant("v", {"gpu": 0.01}))
    case = problem(first, pools=[gpu()])
    plan = _plan(case)
    kept = replace(first, tiers=("edge",), inputs=(replace(first.inputs[0], tiers=("edge",)),))
    text = "; ".join(evaluate(replace(case, operators=(kept,)), plan).violations)
    assert "a would run in tier cloud" in text
    assert "camera -> a would have its data in tier cloud, but may be in edge only" in text


def pool_memory(needs: dict[str, float], limit_bytes: float | None) -> PoolMemory:
    return PoolMemory({name: Memory(size) for name, size in needs.items()}, MemoryLimits(limit_bytes))


def test_largest_sets() -> None:
    found = largest_model_sets(pool_memory({"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.0}, 3.0))
    assert found.all_largest
    assert found.sets == (("a", "d"), ("b", "c", "d"))
    assert largest_model_sets(pool_memory({"a": 3.0, "b": 2.0}, None)).sets == (("a", "b"),)
    assert largest_model_sets(pool_memory({}, 1.0)).sets == ()


def test_operators_kept_apart_share_no_worker() -> None:
    apart = [frozenset("ab"), frozenset("cx")]
    assert set(largest_model_sets(pool_memory({"a": 0.0, "b": 0.0, "c": 0.0}, None), apart).sets) == {
        ("a", "c"),
        ("b", "c"),
    }
    assert set(largest_model_sets(pool_memory({"a": 3.0, "b": 2.0, "c": 1.0}, 3.0), apart).sets) == {("a",), ("b", "c")}


def test_sets_fit_into_both_memories() -> None:
    needs = {"a": Memory(1.0, 3.0), "b": Memory(1.0, 2.0), "c": Memory(1.0, 1.0), "d": Memory(2.0, 0.0)}
    found = largest_model_sets(PoolMemory(needs, MemoryLimits(3.0, 3.0)))
    assert found.sets == (("a", "d"), ("b", "c"), ("b", "d"), ("c", "d"))


def test_too_many_sets_are_not_all_listed_but_cover_every_operator() -> None:
    memory = {f"o{index}": 1.0 + index % 3 for index in range(9)}
    found = largest_model_sets(pool_memory(memory, 6.0), settings=AssignmentSettings(largest_sets=5))
    assert not found.all_largest
    assert {name for one in found.sets for name in one} == set(memory)
    assert all(sum(memory[name] for name in one) <= 6.0 for one in found.sets)
