"""Several workflows of which some survive losses, against one program over everything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Loss,
    LossKind,
    Plan,
    Problem,
    Slo,
    Terms,
    combine_workflows,
    evaluate,
    from_document,
    losses,
    plan_after,
    solve,
    to_document,
)
from jellybean_solver.model.left_out import served
from jellybean_solver.model.loss import REHEARSED, RoutesAfterLoss, survivors
from tests.brute_force import mixture_optimum
from tests.property.solver.test_mixed_together import measured
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import pairs

LITTLE = 1e-6
MIX_GAP = 2e-4  # relative: programs are solved to 1e-5, and the reference to its own tolerances

kinds = st.lists(st.sampled_from(LossKind), min_size=1, max_size=2, unique=True).map(tuple)
worths = st.sampled_from((None, None, None, 0.2, 1.0, 5.0))
targets = st.builds(
    Slo,
    accuracy=st.sampled_from((None, None, 45.0)),
    mean_accuracy=st.sampled_from((None, None, 55.0, 70.0, 88.0)),
    penalty_usd_per_h=st.sampled_from((None, None, 0.01)),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, dict[str, Problem]]:
    """Two workflows together, and one by one; the first survives losses, the second some, the same or none."""
    pair = draw(pairs(limited=draw(st.booleans())))
    if draw(st.booleans()):
        pair = measured(pair[0]), measured(pair[1])
    roomy = tuple(  # else few have such a plan
        replace(pool, count=2 * pool.count + 1, terms=Terms.SPOT if number % 2 else Terms.ON_DEMAND)
        for number, pool in enumerate(pair[0].pools)
    )
    slos = [replace(draw(targets), survives=own) for own in (draw(kinds), draw(st.just(()) | kinds))]
    slos = [slo if slo.mean_accuracy is not None else replace(slo, penalty_usd_per_h=None) for slo in slos]
    problems = {name: replace(one, slo=slo, pools=roomy) for name, one, slo in zip(("a", "b"), pair, slos, strict=True)}
    both = combine_workflows("both", problems, draw(st.sampled_from((None, None, None, 4.0))))
    workflows = tuple(replace(one, worth_usd_per_h=draw(worths)) for one in both.workflows)
    return replace(both, workflows=workflows), problems


def served_shares(problem: Problem, plan: Plan, loss: Loss) -> dict[str, float]:
    """Workflow -> the share of its requests that is answered after a loss, by the plan's routes that are left."""
    after = RoutesAfterLoss(problem, plan)
    weights = after.weights(loss)
    assert not any(weights[number] for number in after.closed(loss))
    return dict(after.shares(weights))


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(25, nightly=1000))
@given(cases())
def test_the_cheapest_plan_that_bears_losses_is_that_of_one_program_over_everything(
    case: tuple[Problem, dict[str, Problem]],
) -> None:
    both, problems = case
    expected = mixture_optimum.best_of_several(both, problems)
    solution = solve(both, explained=False)
    nothing = math.fsum(math.inf if one.worth_usd_per_h is None else one.worth_usd_per_h for one in both.workflows)
    if solution.plan is None:
        event("no plan")
        assert expected is None or nothing <= expected * (1 + LITTLE) + LITTLE  # to leave out everything is no plan
        return
    assert expected is not None
    plan = solution.plan
    assert evaluate(both, plan).complaints == ()
    assert from_document(to_document(plan)) == plan
    asked = served(both, plan)
    shares = [served_shares(asked, plan, loss) for loss in losses(plan, asked.survives)]
    part = [share for one in shares for share in one.values() if share < 1.0]
    event(f"{solution.status}, {'in part' if any(part) else 'in full' if not part else 'not at all'}")
    for loss, own in zip(losses(plan, asked.survives), shares, strict=True):
        is_spot = loss.kind is LossKind.WORKER and plan.worker_by_name[loss.of[0]].terms is Terms.SPOT
        for name, slo in asked.slo_by_workflow.items():
            if slo.survives_loss(loss.kind, is_spot=is_spot):
                assert own[name] == pytest.approx(1.0)
        if not any(slo.penalty_usd_per_h for slo in asked.slo_by_workflow.values()):
            most = mixture_optimum.most_served(asked, problems, plan, lost_in(asked, plan, loss))
            kept = survivors(asked, plan, loss)
            assert math.fsum(share for name, share in own.items() if name not in kept) == pytest.approx(most, abs=1e-4)
        left = plan_after(asked, plan, loss)
        if left is None:
            assert not any(own.values())
            continue
        assert {one.name for one in left.workflows} == {name for name, share in own.items() if share > 0}
        rates = {source.name: source.rate_per_s for source in asked.sources}
        for source in left.sources:
            share = own[asked.workflow_of(source.name)]
            assert source.rate_per_s == pytest.approx(share * rates[source.name])
        assert evaluate(at_rates_of(asked, left), replace(left, left_out=())).complaints == ()
    soft = [one.slo.penalty_usd_per_h or 0.0 for one in plan.workflows]
    cost = plan.cost.total_usd_per_h + plan.accuracy_penalty_usd_per_h + plan.forgone_usd_per_h
    has_fallbacks = any(one.weights for one in plan.fallbacks)
    rehearsed = 100.0 * REHEARSED * math.fsum(soft) if has_fallbacks else 0.0  # they may be more accurate
    assert plan.certificate.bound <= expected * (1 + LITTLE) + LITTLE
    assert cost >= expected * (1 - LITTLE) - LITTLE - rehearsed
    if plan.certificate.is_optimal:
        assert cost == pytest.approx(expected, rel=MIX_GAP, abs=1e-5 + rehearsed)
    assert cost <= expected * 1.01 + 1e-3  # a few requests rehearse the fallbacks, whose traffic may cost more


def lost_in(problem: Problem, plan: Plan, loss: Loss) -> mixture_optimum.Lost:
    """A loss as the reference knows it."""
    if loss.kind is LossKind.WORKER:
        worker = plan.worker_by_name[loss.of[0]]
        return "worker", (worker.pool, mixture_optimum.running_on(problem, plan, worker.name))
    return loss.kind.value, loss.of[0] if loss.kind is LossKind.SITE else loss.of


def at_rates_of(problem: Problem, left: Plan) -> Problem:
    """The problem of a plan after a loss: with the workflows, rates and targets of the plan."""
    asked = served(problem, left) if not problem.workflows else problem
    names = {one.name for one in left.workflows}
    targets = {one.name: replace(one.slo, survives=()) for one in left.workflows}
    workflows = tuple(replace(one, slo=targets[one.name]) for one in asked.workflows if one.name in names)
    model = asked.accuracy
    return replace(
        asked,
        slo=replace(asked.slo, budget_usd_per_h=None),
        sources=left.sources,
        operators=tuple(one for one in asked.operators if problem.workflow_of(one.name) in names),
        workflows=workflows,
        accuracy=replace(  # type: ignore[type-var]
            model, targets={w.name: w.slo.accuracy for w in workflows if w.slo.accuracy is not None}
        ),
    )
