"""Audits beside every other feature, against one program in which an audit is a workflow of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Audit,
    LossKind,
    Objective,
    Plan,
    Problem,
    Slo,
    combine_workflows,
    evaluate,
    from_document,
    losses,
    plan_after,
    solve,
    to_document,
    with_audit,
)
from jellybean_solver.model.left_out import served
from tests import plan_check
from tests.brute_force import audits as reference
from tests.brute_force import optimum
from tests.strategies import problems, with_sites
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import measured, pairs

LITTLE = 1e-6
MIX_GAP = 2e-4  # relative: programs are solved to 1e-5, and the reference to its own tolerances

shares = st.sampled_from((0.01, 0.1, 0.5, 1.0))
kinds = st.sampled_from(((), (), (), (LossKind.WORKER,), (LossKind.SITE,), (LossKind.LINK,)))
means = st.sampled_from((None, 55.0, 70.0, 80.0, 88.0))


@st.composite
def audits(draw: st.DrawFn, problem: Problem) -> Audit:
    """An audit by any selection, of any operator that answers."""
    chosen = draw(st.sampled_from(list(optimum.selections(problem))))
    fed = {edge.upstream for operator in problem.operators for edge in operator.inputs}
    answer = draw(st.sampled_from([operator.name for operator in problem.operators if operator.name not in fed]))
    agreements = {tuple(one.values()): 90.0 for one in optimum.selections(problem)}
    names = tuple(operator.name for operator in problem.operators)
    return Audit(draw(shares), chosen, "top1", answer, 99.0, names, agreements, 500)


@st.composite
def roomy(draw: st.DrawFn) -> Problem:
    """A small problem on a fleet with more workers, at times in several sites."""
    problem = draw(problems(max_operators=2, limited=True))
    problem = draw(with_sites(problem)) if draw(st.booleans()) else problem
    problem = measured(problem) if draw(st.booleans()) else problem
    return replace(problem, pools=tuple(replace(pool, count=2 * pool.count + 1) for pool in problem.pools))


def is_right(problem: Problem, plan: Plan | None, expected: float | None, value: float) -> None:
    """The plan has the cost of the reference, and contradicts neither the problem nor what workers can do."""
    if plan is None or expected is None:
        assert plan is None
        assert expected is None
        return
    assert evaluate(problem, plan).complaints == ()
    assert plan_check.complaints(served(problem, plan), plan) == []
    assert from_document(to_document(plan)) == plan
    assert plan.certificate.bound <= expected * (1 + LITTLE) + LITTLE
    assert value >= expected * (1 - LITTLE) - LITTLE
    if plan.certificate.is_optimal:
        assert value == pytest.approx(expected, rel=MIX_GAP, abs=1e-5)
    for workflow, audit in plan.audits.items():
        assert audit.share == problem.audits[workflow].share
        assert sum(one.share for one in audit.selections) == pytest.approx(1.0 if audit.selections else 0.0)


def value_of(plan: Plan) -> float:
    """USD per hour with penalties and what is left out."""
    return plan.cost.total_usd_per_h + plan.accuracy_penalty_usd_per_h + plan.forgone_usd_per_h


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(20, nightly=400))
@given(roomy(), st.data(), means, st.sampled_from((None, None, 0.1)), st.sampled_from((None, 2.0)))
def test_audits_of_one_workflow(
    problem: Problem, data: st.DataObject, mean: float | None, penalty: float | None, budget: float | None
) -> None:
    audit = data.draw(audits(problem))
    slo = replace(problem.slo, accuracy=problem.slo.accuracy, budget_usd_per_h=budget, mean_accuracy=mean)
    slo = replace(slo, penalty_usd_per_h=None if mean is None else penalty)
    plain = replace(problem, slo=slo)
    expected = reference.best({"w": plain}, {"w": audit}, budget)
    asked = with_audit(plain, audit)
    plan = solve(asked, explained=False).plan
    event(f"mean {mean is not None}, found {plan is not None}, mixes {plan is not None and plan.mixes}")
    is_right(asked, plan, expected, 0.0 if plan is None else value_of(plan))


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(15, nightly=400))
@given(roomy(), st.data(), means, st.sampled_from((LossKind.WORKER, LossKind.SITE, LossKind.LINK)))
def test_audits_are_shed_after_a_loss(
    problem: Problem, data: st.DataObject, mean: float | None, kind: LossKind
) -> None:
    audit = data.draw(audits(problem))
    plain = replace(problem, slo=replace(problem.slo, budget_usd_per_h=None, mean_accuracy=mean, survives=(kind,)))
    expected = reference.best({"w": plain}, {"w": audit})
    asked = with_audit(plain, audit)
    plan = solve(asked, explained=False).plan
    event(
        f"mean {mean is not None}, loss {kind.value}, found {plan is not None}, mixes {plan is not None and plan.mixes}"
    )
    is_right(asked, plan, expected, 0.0 if plan is None else value_of(plan))
    for loss in () if plan is None else losses(plan, (kind,)):
        left = plan_after(asked, plan, loss)
        assert left is not None
        assert left.audit is None
        assert not any(name.startswith("audit.") for worker in left.workers for name in worker.rates_per_s)


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(20, nightly=400))
@given(
    pairs(limited=True),
    st.data(),
    st.tuples(means, means),
    st.tuples(kinds, kinds),
    st.sampled_from((None, None, 3.0)),
    st.booleans(),
)
def test_audits_of_several_workflows(
    pair: tuple[Problem, Problem],
    data: st.DataObject,
    asked_means: tuple[float | None, float | None],
    asked_losses: tuple[tuple[LossKind, ...], ...],
    budget: float | None,
    has_worths: bool,
) -> None:
    fleet = tuple(replace(pool, count=2 * pool.count + 1) for pool in pair[0].pools)
    pair = (measured(pair[0]), measured(pair[1])) if data.draw(st.booleans()) else pair
    parts = {
        name: replace(one, pools=fleet, slo=Slo(accuracy=one.slo.accuracy, mean_accuracy=mean, survives=losses_borne))
        for name, one, mean, losses_borne in zip("ab", pair, asked_means, asked_losses, strict=True)
    }
    audited = {name: data.draw(audits(one)) for name, one in parts.items() if name == "a" or data.draw(st.booleans())}
    worths = {name: data.draw(st.sampled_from((0.2, 1.0, 5.0))) for name in "ab"} if has_worths else {}
    expected = reference.best(parts, audited, budget, worths)
    problem = combine_workflows(
        "both",
        {name: with_audit(one, audited[name]) if name in audited else one for name, one in parts.items()},
        budget,
    )
    workflows = tuple(replace(one, worth_usd_per_h=worths.get(one.name)) for one in problem.workflows)
    problem = replace(problem, workflows=workflows)
    plan = solve(problem, explained=False).plan
    event(
        f"found {plan is not None}, mixes {plan is not None and plan.mixes}, "
        f"left out {0 if plan is None else len(plan.left_out)}"
    )
    nothing = math.fsum(worths.values()) if has_worths else math.inf
    assume(plan is not None or expected is None or nothing > expected)
    is_right(problem, plan, expected, 0.0 if plan is None else value_of(plan))
    if plan is not None:
        assert set(plan.audits) == {name for name in audited if name in {one.name for one in plan.workflows}}


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(10, nightly=200))
@given(roomy(), st.data(), st.sampled_from((None, 0.5, 2.0)))
def test_the_highest_mean_accuracy_beside_an_audit(problem: Problem, data: st.DataObject, budget: float | None) -> None:
    """An audit only takes away from what the mean accuracy could be, and what is left is a plan of both."""
    plain = replace(problem, slo=Slo(budget_usd_per_h=budget), objective=Objective.MEAN_ACCURACY)
    asked = with_audit(plain, data.draw(audits(problem)))
    alone, both = solve(plain, explained=False).plan, solve(asked, explained=False).plan
    event(f"alone {alone is not None}, both {both is not None}")
    if both is None:
        return
    assert evaluate(asked, both).complaints == ()
    assert plan_check.complaints(asked, both) == []
    assert alone is not None
    assert both.accuracy is not None
    assert both.accuracy <= (alone.accuracy or 0.0) + 0.011
    dearest = replace(
        asked, slo=Slo(mean_accuracy=both.accuracy - 0.02, budget_usd_per_h=budget), objective=Objective.COST
    )
    assert solve(dearest, explained=False).plan is not None
