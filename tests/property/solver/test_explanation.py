"""What an explanation states, against enumeration: every difference in cost, every conflict, every relaxation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Conflict,
    Counterfactual,
    Explanation,
    Problem,
    Question,
    Requirement,
    RequirementKind,
    Sharing,
    Slo,
    explain,
)
from jellybean_solver.planning.requirements import drop, relaxed, requirements, scaled
from tests.brute_force import optimum
from tests.brute_force.optimum import Selection
from tests.strategies import problems
from tests.support.examples import examples

STRAINED = st.booleans().flatmap(lambda limited: problems(max_operators=3, strained=True, limited=limited))
MARGIN = 1e-3  # relative; a relaxation this much smaller must not do


@pytest.mark.slow
@settings(max_examples=examples(8, nightly=300))
@given(st.booleans().flatmap(lambda limited: problems(limited=limited)))
def test_every_difference_equals_enumeration(problem: Problem) -> None:
    found = explain(problem)
    assume(found.conflict is None)
    assert found.plan is not None
    base = found.plan.cost.total_usd_per_h

    for change in (*found.choices, *found.values):
        _agrees(change, base, _expected(problem, found, change))
    for limit in found.limits:
        for change, more in ((limit.without, False), (limit.more, True)):
            if change is not None:
                event(f"{limit.requirement.kind}, one more: {more}")
                _agrees(change, base, _cheapest(_relaxed(problem, limit.requirement, one_more=more)))
    for limit in found.limits:  # what is said not to bind does not
        if limit.without is None and limit.requirement.kind is not RequirementKind.RATE:
            assert _cheapest(_relaxed(problem, limit.requirement)) == pytest.approx(base, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(8, nightly=300))
@given(problems(), st.sampled_from((None, 1.05, 1.5)), st.data())
def test_why_not_equals_enumeration(problem: Problem, room: float | None, data: st.DataObject) -> None:
    if room is not None and (least := _cheapest(problem)) is not None:
        problem = replace(problem, slo=replace(problem.slo, budget_usd_per_h=room * least))
    operator = data.draw(st.sampled_from([o.name for o in problem.operators]))
    variant = data.draw(st.sampled_from([v.name for v in problem.operator_by_name[operator].variants]))
    pool = data.draw(st.sampled_from([pool.name for pool in problem.pools]))
    questions = [
        Question("v", operator, variant=variant),
        Question("o", operator, place=pool),
        Question("p", place=pool),
    ]
    found = explain(problem, questions)
    assume(found.conflict is None)
    assert found.plan is not None
    base = found.plan.cost.total_usd_per_h
    of_variant, of_operator, of_pool = found.why_not
    event(f"{of_variant.verdict}, {of_operator.verdict}, {of_pool.verdict}")

    if of_variant.change is not None:
        _agrees(of_variant.change, base, _cheapest(problem, lambda selection: selection[operator] == variant))
    if of_operator.change is not None:
        _agrees(of_operator.change, base, _cheapest(_only(problem, operator, pool)))
    if of_pool.change is None:
        assert of_pool.verdict in ("used", "no_profile")
    elif of_pool.used_per_s:
        moved = [
            cost
            for o in problem.operators
            if of_pool.used_per_s.get(o.name, 0.0) < problem.rate_per_s[o.name] * (1 - 1e-6)
            and (cost := _cheapest(_only(problem, o.name, pool))) is not None
        ]
        _agrees(of_pool.change, base, min(moved, default=None))
    else:
        _agrees(of_pool.change, base, _cheapest(problem, paid=pool))
    for answer in found.why_not:
        assert (answer.verdict == "no_plan") == (answer.conflict is not None)


@pytest.mark.slow
@settings(max_examples=examples(8, nightly=300))
@given(
    st.booleans().flatmap(lambda limited: problems(max_operators=3, strained=True, limited=limited)),
    st.sampled_from((None, None, 0.05, 0.5, 3.0)),
)
def test_conflicts_are_irreducible_and_relaxations_least(problem: Problem, budget: float | None) -> None:
    problem = replace(problem, slo=replace(problem.slo, budget_usd_per_h=budget))
    found = explain(problem).conflict
    assume(found is not None)
    assert found is not None
    event(" ".join(member.kind for member in found.members) or "structure")
    every = requirements(problem)
    rest = [requirement for requirement in every if requirement not in found.members]

    assert found.proven
    assert _cheapest(drop(problem, *rest)) is None
    for member in found.members:
        assert _cheapest(drop(problem, *rest, member)) is not None
    assert found.smallest
    for size in range(len(found.members)):
        for kept in itertools.combinations(every, size):
            assert _cheapest(drop(problem, *(r for r in every if r not in kept))) is not None
    _relaxations_are_least(problem, found)


def _relaxations_are_least(problem: Problem, found: Conflict) -> None:
    for item in found.relaxations:
        requirement = item.requirement
        event(f"{requirement.kind} helps: {item.helps}")
        if not item.helps:
            assert _cheapest(drop(problem, requirement)) is None
            continue
        if item.value is None:
            assert _cheapest(drop(problem, requirement)) is not None
            continue
        assert item.exact
        assert _cheapest(relaxed(problem, requirement, item.value)) is not None
        smaller = {
            RequirementKind.ACCURACY: item.value + MARGIN,
            RequirementKind.RATE: item.value * (1 + MARGIN),
            RequirementKind.COUNT: item.value - 1,
        }.get(requirement.kind, item.value * (1 - MARGIN))
        assert _cheapest(relaxed(problem, requirement, smaller)) is None


def _agrees(change: Counterfactual, base: float, expected: float | None) -> None:
    if expected is None:
        assert not change.holds, change
        assert change.reason
        return
    assert change.cost_usd_per_h == pytest.approx(expected, rel=1e-6, abs=1e-6), change
    assert change.delta_usd_per_h == pytest.approx(expected - base, abs=2e-6 * max(1.0, base))
    assert change.delta_between_usd_per_h == (change.delta_usd_per_h, change.delta_usd_per_h)


def _expected(problem: Problem, found: Explanation, change: Counterfactual) -> float | None:
    """The changed problem's optimum, the change read from its subject."""
    assert found.plan is not None
    if change.kind == "tier":
        return _cheapest(replace(problem, pools=tuple(p for p in problem.pools if p.tier != change.subject)))
    if change.kind == "pool":
        return _cheapest(replace(problem, pools=tuple(p for p in problem.pools if p.name != change.subject)))
    if change.kind == "variant":
        operator, _, variant = change.subject.partition("=")
        return _cheapest(problem, lambda selection: selection[operator] == variant)
    if change.kind == "accuracy":
        return _cheapest(replace(problem, slo=Slo((problem.slo.accuracy or 0.0) + float(change.subject))))
    if change.kind == "next_accuracy":
        return _cheapest(replace(problem, slo=Slo((found.plan.accuracy or 0.0) + 1e-3)))
    assert change.kind == "rate"
    return _cheapest(scaled(problem, 1.1))


def _relaxed(problem: Problem, requirement: Requirement, *, one_more: bool = False) -> Problem:
    """Taken away, or with one more unit, written out anew."""
    if requirement.kind is RequirementKind.ACCURACY:
        return replace(problem, slo=Slo())
    if requirement.kind is RequirementKind.RESIDENCY:
        return drop(problem, requirement)
    if requirement.kind is RequirementKind.BANDWIDTH:
        up, down = requirement.subjects
        links = (
            replace(link, bandwidth_bytes_per_s=1.1 * (link.bandwidth_bytes_per_s or 0.0) if one_more else None)
            if (link.upstream_tier, link.downstream_tier) == (up, down)
            else link
            for link in problem.links
        )
        return replace(problem, links=tuple(links))
    if requirement.kind is RequirementKind.UTILISATION:
        return replace(problem, utilisation=min(1.0, problem.utilisation + 0.05) if one_more else 1.0)
    (name,) = requirement.subjects
    if requirement.kind is RequirementKind.SHARING:
        changed = replace(problem.pool_by_name[name], sharing=Sharing.SHARED)
    elif requirement.kind is RequirementKind.MEMORY:
        given = problem.pool_by_name[name].memory_bytes or 0.0
        changed = replace(problem.pool_by_name[name], memory_bytes=1.1 * given if one_more else None)
    else:
        assert requirement.kind is RequirementKind.COUNT
        count = problem.pool_by_name[name].count
        changed = replace(problem.pool_by_name[name], count=count + 1 if one_more else 100)
    return replace(problem, pools=tuple(changed if pool.name == name else pool for pool in problem.pools))


def _only(problem: Problem, operator: str, pool: str) -> Problem:
    """The operator may run in this pool only."""
    operators = tuple(
        replace(
            o,
            variants=tuple(replace(v, service={p: t for p, t in v.service.items() if p == pool}) for v in o.variants),
        )
        if o.name == operator
        else o
        for o in problem.operators
    )
    return replace(problem, operators=operators)


def _cheapest(
    problem: Problem, allowed: Callable[[Selection], bool] = lambda selection: True, paid: str | None = None
) -> float | None:
    """The least cost within the budget over all selections; counts may be many."""
    target, budget = problem.slo.accuracy, problem.slo.budget_usd_per_h
    costs = [
        cost
        for selection in optimum.selections(problem)
        if allowed(selection)
        and (target is None or (optimum.accuracy(problem, selection) or -1.0) >= target - 1e-9)
        and (cost := optimum.cheapest_of_larger(problem, selection, paid)) is not None
    ]
    best = min(costs, default=None)
    return None if best is None or (budget is not None and best > budget * (1 + 1e-6)) else best
