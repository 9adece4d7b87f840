"""What an explanation of a plan that mixes variants or bears losses states, against one program over everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import Counterfactual, LossKind, Objective, Problem, Question, RequirementKind, Slo, explain
from jellybean_solver.planning.requirements import drop, requirements, scaled
from tests.brute_force import mixture_optimum, optimum
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples

MIX_GAP = 3e-4  # relative: programs and their reference are solved to 1e-4
REHEARSALS = 0.01  # relative, as in test_mixtures.py
POINTS = 0.03  # of accuracy, for the same reason, and what a tie may weigh

SURVIVING = st.builds(
    Slo,
    accuracy=st.sampled_from((None, 60.0, 80.0)),
    survives=st.lists(st.sampled_from(LossKind), min_size=1, max_size=2, unique=True).map(tuple),
)
MIXING = st.builds(
    Slo,
    accuracy=st.sampled_from((None, None, 60.0)),
    mean_accuracy=st.sampled_from((0.3, 0.6, 0.9, 1.1)),  # of the way from the least to the highest of a selection
    penalty_usd_per_h=st.sampled_from((None, None, 0.01, 0.3)),
)


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(10, nightly=300))
@given(problems(max_operators=2, strained=True, limited=True), st.one_of(MIXING, SURVIVING))
def test_every_difference_in_cost_is_that_of_the_optima(problem: Problem, slo: Slo) -> None:
    roomy = tuple(replace(pool, count=2 * pool.count) for pool in problem.pools)
    _explained_rightly(_targeted(replace(problem, pools=roomy), slo))


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(10, nightly=300))
@given(
    problems(max_operators=2, strained=True, limited=True),
    st.sampled_from((None, 0.5, 2.0, 6.0)),
    st.sampled_from((None, 60.0)),
)
def test_every_difference_in_accuracy_is_that_of_the_optima(
    problem: Problem, budget: float | None, least: float | None
) -> None:
    slo = Slo(accuracy=least, budget_usd_per_h=budget)
    _explained_rightly(replace(problem, slo=slo, objective=Objective.MEAN_ACCURACY))


def _explained_rightly(asked: Problem) -> None:
    operator = asked.operators[0]
    question = Question("why", operator.name, variant=operator.variants[-1].name)
    found = explain(asked, [question])
    assume(found.conflict is None)
    assert found.plan is not None
    base = _value(asked)
    assert base is not None
    event(f"mixes {found.plan.mixes}, survives {bool(asked.slo.survives)}")
    for change in (*found.choices, *found.values):
        _agrees(asked, change, base, _value(_changed(asked, change)))
    for limit in found.limits:
        if limit.without is not None:
            event(f"without {limit.requirement.kind}")
            _agrees(asked, limit.without, base, _value(drop(asked, limit.requirement)))
    (answer,) = found.why_not
    if answer.change is not None:
        event(f"why not: {answer.verdict}, in use {bool(answer.used_per_s)}")
        _agrees(asked, answer.change, base, _value(_forced(asked, operator.name, operator.variants[-1].name)))


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(10, nightly=300))
@given(
    problems(max_operators=2, strained=True, limited=True),
    st.one_of(MIXING, SURVIVING),
    st.sampled_from((None, 0.5, 3.0)),
)
def test_conflicts_are_irreducible(problem: Problem, slo: Slo, budget: float | None) -> None:
    asked = _targeted(problem, replace(slo, budget_usd_per_h=budget))
    found = explain(asked).conflict
    assume(found is not None)
    assert found is not None
    event(" ".join(member.kind for member in found.members) or "structure")
    every = requirements(asked)
    rest = [requirement for requirement in every if requirement not in found.members]
    assert found.proven
    assert _value(drop(asked, *rest)) is None
    for member in found.members:
        assert _value(drop(asked, *rest, member)) is not None
    for item in found.relaxations:
        if item.helps and item.requirement.kind is RequirementKind.MEAN_ACCURACY:
            assert item.value is not None
            assert _value(_with_mean(asked, item.value - 1e-3)) is not None
            assert _value(_with_mean(asked, item.value + 0.05)) is None
        elif not item.helps:
            assert _value(drop(asked, item.requirement)) is None


def _targeted(problem: Problem, slo: Slo) -> Problem:
    """The problem with targets, the mean accuracy within what its selections reach."""
    if slo.mean_accuracy is None:
        return replace(problem, slo=slo)
    known = [optimum.accuracy(problem, selection) for selection in optimum.selections(problem)]
    levels = [level for level in known if level is not None]
    assume(levels)
    mean = min(levels) + slo.mean_accuracy * (max(levels) - min(levels))
    return replace(problem, slo=replace(slo, mean_accuracy=min(mean, 100.0)))


def _value(problem: Problem) -> float | None:
    """The optimum: USD per hour with the penalty within the budget, or the accuracy."""
    most_accurate = problem.objective is Objective.MEAN_ACCURACY
    value, budget = mixture_optimum.best(problem, most_accurate=most_accurate), problem.slo.budget_usd_per_h
    if value is None or most_accurate or budget is None:
        return value
    return None if value > budget * (1 + 1e-6) and problem.slo.penalty_usd_per_h is None else value


def _changed(problem: Problem, change: Counterfactual) -> Problem:
    """The changed problem, read from the subject of the change."""
    kind, subject, slo = change.kind, change.subject, problem.slo
    if kind in ("tier", "pool"):
        return replace(problem, pools=tuple(p for p in problem.pools if subject not in (p.tier, p.name)))
    if kind == "variant":
        return _forced(problem, *subject.split("="))
    if kind == "rate":
        return scaled(problem, 1.1)
    if kind == "next_accuracy":
        return replace(problem, slo=replace(slo, accuracy=float(change.words.rpartition(" ")[2]) + 1e-3))
    assert kind == "accuracy"
    if change.words.startswith("mean"):
        return _with_mean(problem, (slo.mean_accuracy or 0.0) + float(subject))
    return replace(problem, slo=replace(slo, accuracy=(slo.accuracy or 0.0) + float(subject)))


def _with_mean(problem: Problem, mean: float) -> Problem:
    return replace(problem, slo=replace(problem.slo, mean_accuracy=mean))


def _forced(problem: Problem, name: str, variant: str) -> Problem:
    operators = tuple(
        replace(o, variants=tuple(v for v in o.variants if v.name == variant)) if o.name == name else o
        for o in problem.operators
    )
    return replace(problem, operators=operators)


def _agrees(problem: Problem, change: Counterfactual, base: float, expected: float | None) -> None:
    if expected is None:
        assert not change.holds, change
        assert change.reason
        return
    assert change.holds, change
    if problem.objective is Objective.MEAN_ACCURACY:
        assert change.delta_points == pytest.approx(expected - base, abs=POINTS), change
        return
    least = MIX_GAP * max(1.0, base, expected)
    if problem.slo.survives:  # the traffic of the few requests that rehearse fallbacks is in the plan only
        least += REHEARSALS * (base + expected) + 1e-3
    assert change.delta_usd_per_h == pytest.approx(expected - base, abs=least), change
    low, high = change.delta_between_usd_per_h
    assert low is not None
    assert high is not None
    assert low - least <= expected - base <= high + least
