"""Forms of operators, cut models and cascades, against enumeration over all choices of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean.planning.predicted_latency import breach_after_loss, plans_after_losses
from jellybean_solver import (
    EndToEnd,
    LossKind,
    Objective,
    Problem,
    ReplanSettings,
    ServiceTime,
    Sharing,
    Slo,
    Variant,
    Verdict,
    add_workflows,
    as_planned,
    combine_workflows,
    evaluate,
    from_document,
    head_name,
    replan,
    solve,
    to_document,
)
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.forms import choices as solver_choices
from jellybean_solver.model.forms import chosen_in, in_forms
from jellybean_solver.model.left_out import served
from tests.brute_force import migration_optimum, mixture_optimum, optimum
from tests.brute_force.migration_optimum import Prices
from tests.plan_check import complaints
from tests.property.solver.test_replan import changed, replan_settings
from tests.strategies import problems, with_sites
from tests.support.examples import NIGHTLY, examples
from tests.support.pairs import pairs
from tests.support.written_forms import Options, choices, options, with_options, written

LITTLE = 1e-6
MIX_GAP = 2e-4  # as in test_mixtures.py
REHEARSAL = 1.01  # a few requests rehearse fallbacks, whose traffic the programs leave out


@st.composite
def cases(draw: st.DrawFn, *, max_operators: int = 3) -> tuple[Problem, Options]:
    """A random problem of slow models, in alike sites or not, with or without a budget, and forms of its operators."""
    problem = draw(problems(max_operators=max_operators, limited=draw(st.booleans())))
    problem = _slower(problem, draw(st.sampled_from((1.0, 6.0))))
    if draw(st.integers(0, 2)) == 0:
        problem = draw(with_sites(problem))
    return problem, draw(options(problem))


def _slower(problem: Problem, factor: float) -> Problem:
    def slower(variant: Variant) -> Variant:
        service = {
            pool: {size: ServiceTime(factor * time.load_s, factor * time.mean_s) for size, time in times.items()}
            for pool, times in variant.service.items()
        }
        return replace(variant, service=service)

    operators = (replace(one, variants=tuple(slower(v) for v in one.variants)) for one in problem.operators)
    return replace(problem, operators=tuple(operators))


def every(problem: Problem, forms: Options) -> list[Problem]:
    """The problems of all choices."""
    return [one for choice in choices(forms) if (one := written(problem, choice)) is not None]


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@settings(max_examples=examples(25, nightly=600))
@given(cases(), st.sampled_from((None, None, 0.5, 2.0)))
def test_the_cheapest_of_all_forms(case: tuple[Problem, Options], budget: float | None) -> None:
    problem, drawn = case
    problem = replace(problem, slo=replace(problem.slo, budget_usd_per_h=budget))
    formed = with_options(problem, drawn)
    costs = [cost for one in every(problem, drawn) if (cost := optimum.cheapest(one).cost) is not None]
    least = min(costs, default=math.inf)
    solution = solve(formed)
    if least > (math.inf if budget is None else budget * (1 + 1e-9)) or not costs:
        assert solution.status == "infeasible"
        assert solution.infeasibility is not None and solution.infeasibility.reasons
        event("infeasible")
        return
    plan = solution.plan
    assert plan is not None
    assert solution.status == "optimal"
    assert plan.cost.total_usd_per_h == pytest.approx(least, rel=1e-6, abs=1e-6)
    assert plan.slo == problem.slo
    own = as_planned(formed, plan)
    assert evaluate(own, plan).complaints == ()
    assert complaints(own, plan) == []
    assert from_document(to_document(plan)) == plan
    event(f"operators more: {len(own.operators) - len(problem.operators)}")


@settings(max_examples=examples(20, nightly=300))
@given(cases())
def test_a_problem_in_forms_is_the_one_written_by_hand(case: tuple[Problem, Options]) -> None:
    problem, drawn = case
    formed = with_options(problem, drawn)
    made = {(one.name, id(form)): number for one in formed.operators for number, form in enumerate(one.forms)}
    found = {
        frozenset((name, made[name, id(form)]) for name, form in choice.items()): in_forms(formed, choice)
        for choice in solver_choices(formed)
    }
    expected = [(choice, written(problem, choice)) for choice in choices(drawn)]
    assert len(found) == len(expected)
    for choice, wanted in expected:
        key = frozenset((name, drawn[name].index(one)) for name, one in choice.items())
        assert found[key] == wanted


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@settings(max_examples=examples(6, nightly=200))
@given(cases(max_operators=2), st.sampled_from((55.0, 75.0, 88.0, None)), st.sampled_from((None, 0.02, 0.3)))
def test_the_best_mean_accuracy_of_all_forms(
    case: tuple[Problem, Options], mean: float | None, penalty: float | None
) -> None:
    """Plans that mix variants, with the mean as a target, soft or hard, or as the objective."""
    problem, drawn = case
    if mean is None:
        budget = 1.5
        problem = replace(problem, objective=Objective.MEAN_ACCURACY, slo=Slo(budget_usd_per_h=budget))
    else:
        problem = replace(problem, slo=Slo(mean_accuracy=mean, penalty_usd_per_h=penalty))
    is_accuracy = mean is None
    values = [mixture_optimum.best(one, most_accurate=is_accuracy) for one in every(problem, drawn)]
    known = [value for value in values if value is not None]
    plan = solve(with_options(problem, drawn)).plan
    event(f"objective {problem.objective}, plan {plan is not None}")
    if plan is None:
        assert not known
        return
    best = max(known) if is_accuracy else min(known)
    assert plan.certificate.objective == pytest.approx(best, rel=MIX_GAP, abs=1e-4)
    bound = plan.certificate.bound
    assert bound >= best - 1e-4 if is_accuracy else bound <= best * (1 + LITTLE) + LITTLE
    assert complaints(as_planned(with_options(problem, drawn), plan), plan) == []


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@settings(max_examples=examples(6, nightly=200))
@given(cases(max_operators=2), st.sampled_from((LossKind.WORKER, LossKind.LINK)))
def test_the_cheapest_that_bears_losses_of_all_forms(case: tuple[Problem, Options], kind: LossKind) -> None:
    problem, drawn = case
    problem = replace(problem, slo=replace(problem.slo, survives=(kind,)), sites={})
    values = [mixture_optimum.best(one, most_accurate=False) for one in every(problem, drawn)]
    known = [value for value in values if value is not None]
    plan = solve(with_options(problem, drawn)).plan
    event(f"plan {plan is not None}")
    if plan is None:
        assert not known
        return
    cost = plan.cost.total_usd_per_h
    assert min(known) * (1 - LITTLE) - LITTLE <= cost <= min(known) * REHEARSAL + 1e-3
    assert plan.certificate.bound <= min(known) * (1 + LITTLE) + LITTLE


@st.composite
def several(draw: st.DrawFn) -> tuple[Problem, dict[str, Problem], dict[str, Options]]:
    """Two workflows on one fleet, some of which mix variants or may be left out, and forms of both."""
    pair = draw(pairs(limited=draw(st.booleans())))
    roomy = tuple(replace(pool, count=2 * pool.count) for pool in pair[0].pools)
    means = draw(st.sampled_from(((None, None), (None, None), (60.0, None))))
    parts = {
        name: replace(one, pools=roomy, slo=Slo(one.slo.accuracy, mean_accuracy=mean))
        for name, one, mean in zip("ab", pair, means, strict=True)
    }
    both = combine_workflows("both", parts, draw(st.sampled_from((None, None, 3.0))))
    worths = st.sampled_from((None, None, 0.3, 2.0))
    workflows = tuple(replace(one, worth_usd_per_h=draw(worths)) for one in both.workflows)
    return replace(both, workflows=workflows), parts, {n: draw(options(one, most=1)) for n, one in parts.items()}


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@settings(max_examples=examples(12, nightly=400))
@given(several())
def test_several_workflows_choose_forms_together(
    case: tuple[Problem, dict[str, Problem], dict[str, Options]],
) -> None:
    both, parts, drawn = case
    values: list[float] = []
    for first in every(parts["a"], drawn["a"]):
        for second in every(parts["b"], drawn["b"]):
            chosen = {"a": first, "b": second}
            together = combine_workflows("both", chosen, both.slo.budget_usd_per_h)
            value = mixture_optimum.best_of_several(replace(together, workflows=both.workflows), chosen)
            values += [] if value is None else [value]
    formed = combine_workflows(
        "both", {name: with_options(one, drawn[name]) for name, one in parts.items()}, both.slo.budget_usd_per_h
    )
    formed = replace(formed, workflows=both.workflows)
    plan = solve(formed).plan
    nothing = sum(math.inf if one.worth_usd_per_h is None else one.worth_usd_per_h for one in both.workflows)
    event(f"plan {plan is not None}, may leave out {both.may_leave_out}, mixes {both.may_mix}")
    if plan is None:
        assert not values or nothing <= min(values) * (1 + LITTLE) + LITTLE
        return
    cost = plan.cost.total_usd_per_h + math.fsum(one.worth_usd_per_h for one in plan.left_out)
    assert cost == pytest.approx(min(values), rel=MIX_GAP, abs=1e-5)
    assert plan.certificate.bound <= min(values) * (1 + LITTLE) + LITTLE
    own = as_planned(formed, plan)
    assert evaluate(own, plan).complaints == ()
    assert complaints(served(own, plan), plan) == []


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@settings(max_examples=examples(10, nightly=300))
@given(st.data())
def test_from_a_running_plan_forms_are_adopted_and_dropped(data: st.DataObject) -> None:
    problem, drawn = data.draw(cases(max_operators=2))
    problem, settings_ = replace(problem, sites={}), data.draw(replan_settings())
    formed = with_options(problem, drawn)
    before = solve(data.draw(changed(formed))).plan
    assume(before is not None)
    assert before is not None
    prices = Prices(settings_.prices.start_usd, settings_.prices.download_usd_per_gib, settings_.horizon_h)
    values = [migration_optimum.cheapest_move_of_larger(one, before, prices) for one in every(problem, drawn)]
    known = [value for value in values if value is not None]
    decision = replan(formed, before, settings_)
    event(f"{decision.verdict}, from a form {bool(chosen_in(before, formed))}")
    if not known:
        assert decision.best is None
        return
    assert decision.best_usd == pytest.approx(min(known), rel=1e-6, abs=1e-6)
    assert decision.bound_usd <= min(known) * (1 + LITTLE) + LITTLE
    if decision.broken:
        assert decision.verdict is Verdict.REPLACE


@settings(max_examples=examples(5, nightly=50))
@given(cases())
def test_one_of_several_workflows_has_the_forms_that_it_has_alone(case: tuple[Problem, Options]) -> None:
    problem, drawn = case
    first = replace(problem.operators[0], inputs=problem.operators[0].inputs[:1])
    sources = tuple(source for source in problem.sources if source.name == first.inputs[0].upstream)
    other = replace(problem, sources=sources, operators=(first,), accuracy=EndToEnd((), {}), slo=Slo())
    both = combine_workflows("both", {"one": with_options(problem, drawn), "two": other})
    for choice in solver_choices(both):
        names = {name.removeprefix("one/"): form.variant for name, form in choice.items()}
        found = in_forms(both, choice)
        alone = [
            one
            for chosen in solver_choices(with_options(problem, drawn))
            if {name: form.variant for name, form in chosen.items()} == names
            and (one := in_forms(with_options(problem, drawn), chosen)) is not None
        ]
        assert found is None or found in [combine_workflows("both", {"one": one, "two": other}) for one in alone]


@pytest.mark.slow
@settings(max_examples=examples(4, nightly=20), deadline=None)
@given(cases())
def test_plans_with_forms_are_judged_after_each_loss(case: tuple[Problem, Options]) -> None:
    problem, drawn = case
    pools = tuple(replace(pool, count=4, sharing=Sharing.SHARED, memory_bytes=None) for pool in problem.pools)
    sources = tuple(replace(source, rate_per_s=0.1) for source in problem.sources)
    problem = replace(problem, pools=pools, sources=sources, slo=Slo(survives=(LossKind.WORKER,)))
    formed = with_options(problem, drawn)
    *_, choice = solver_choices(formed)
    chosen = in_forms(formed, choice)
    assume(choice and chosen is not None)
    assert chosen is not None
    plan = solve(chosen).plan
    assume(plan is not None)
    assert plan is not None
    assert breach_after_loss(formed, plan) is None, "it has no p99 target"
    for _, left in plans_after_losses(formed, plan):
        assert left is not None and choice[next(iter(choice))].operators[0].name in left.operator_by_name
    tight = replace(plan, slo=replace(plan.slo, latency_p99_s=1e-6))
    if latency(plan).unqueued_s > 1e-3:
        assert "without " in (breach_after_loss(formed, tight) or "")
    assert replan(formed, plan, ReplanSettings()).broken == ()


def test_a_head_has_a_name_of_its_own() -> None:
    assert head_name("answer") == "answer.head"


@pytest.mark.timeout(1800 if NIGHTLY else 120)
@settings(max_examples=examples(6, nightly=200), deadline=None)
@given(several())
def test_a_workflow_is_added_in_its_best_form_beside_one_in_its_own(
    case: tuple[Problem, dict[str, Problem], dict[str, Options]],
) -> None:
    _, parts, drawn = case
    parts = {name: replace(one, slo=Slo(one.slo.accuracy)) for name, one in parts.items()}
    formed = {name: with_options(one, drawn[name]) for name, one in parts.items()}
    alone = combine_workflows("both", {"a": formed["a"]})
    before = solve(alone).plan
    assume(before is not None)
    assert before is not None
    used = {name.removeprefix("a/"): form for name, form in chosen_in(before, alone).items()}
    stays = in_forms(formed["a"], used)
    assert stays is not None
    costs = [
        plan.cost.total_usd_per_h
        for one in every(parts["b"], drawn["b"])
        if (plan := add_workflows(combine_workflows("both", {"a": stays, "b": one}), before).solution.plan) is not None
    ]
    both = combine_workflows("both", formed)
    plan = add_workflows(both, before).solution.plan
    event(f"plan {plan is not None}, from a form {bool(used)}")
    if plan is None:
        assert not costs
        return
    assert plan.cost.total_usd_per_h == pytest.approx(min(costs), rel=1e-6, abs=1e-6)
    assert evaluate(both, plan).complaints == ()
