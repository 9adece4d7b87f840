"""Models cut in two against enumeration: the cheapest plan over all cuts, or all models whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean.planning import breach_after_loss, plans_after_losses
from jellybean_solver import (
    Cut,
    Cuts,
    EndToEnd,
    LossKind,
    ModelRef,
    Objective,
    Problem,
    ReplanSettings,
    SearchSettings,
    ServiceTime,
    Sharing,
    Slo,
    SolverError,
    Stage,
    Variant,
    combine_workflows,
    evaluate,
    from_document,
    head_name,
    problem_as_planned,
    qualified_cuts,
    replan_cut,
    solve,
    solve_cut,
    to_document,
)
from jellybean_solver.latency.estimate import latency
from jellybean_solver.planning.cut_problem import choices, cut_problem
from tests.brute_force import optimum
from tests.plan_check import complaints
from tests.strategies import LOADS_S, MESSAGE_BYTES, problems
from tests.support.examples import examples


@st.composite
def cut_problems(draw: st.DrawFn) -> tuple[Problem, Cuts]:
    """A random problem of slow models, and one or two cuts of a variant of some of its operators."""
    problem = _slower(draw(problems(max_operators=3, limited=draw(st.booleans()))), draw(st.sampled_from((1.0, 6.0))))
    found: dict[str, tuple[Cut, ...]] = {}
    for operator in problem.operators:
        if draw(st.booleans()):
            whole = draw(st.sampled_from(operator.variants))
            number = draw(st.integers(1, 2))
            found[operator.name] = tuple(draw(_cut(problem, operator.name, whole, at)) for at in range(1, number + 1))
    return problem, found


def _slower(problem: Problem, factor: float) -> Problem:
    def slower(variant: Variant) -> Variant:
        service = {
            pool: {size: ServiceTime(factor * time.load_s, factor * time.mean_s) for size, time in times.items()}
            for pool, times in variant.service.items()
        }
        return replace(variant, service=service)

    operators = (replace(one, variants=tuple(slower(v) for v in one.variants)) for one in problem.operators)
    return replace(problem, operators=tuple(operators))


@st.composite
def _cut(draw: st.DrawFn, problem: Problem, operator: str, whole: Variant, at: int) -> Cut:
    pools = [pool.name for pool in problem.pools]
    upstreams = [edge.upstream for edge in problem.operator_by_name[operator].inputs]
    early = draw(st.lists(st.sampled_from(upstreams), min_size=1, unique=True))

    def service() -> dict[str, dict[int, ServiceTime]]:
        loads = {pool: draw(st.sampled_from(LOADS_S)) for pool in pools}
        return {pool: {1: ServiceTime(load, load)} for pool, load in loads.items()}

    stage = Stage(operator, whole.name, 1, at, 5)
    sent = {operator: draw(st.sampled_from(MESSAGE_BYTES))}
    model = ModelRef(f"{at}.onnx", str(at) * 64)
    head = Variant(f"{whole.name}.1-{at}", service(), sent, model=model, stage=stage)
    tail = replace(whole, service=service(), memory_bytes={}, stage=replace(stage, first=at + 1, last=5))
    return Cut(head, tail, tuple(early))


@settings(max_examples=examples(18, nightly=150))
@given(cut_problems())
def test_cheapest_of_all_cuts_equals_brute_force(drawn: tuple[Problem, Cuts]) -> None:
    problem, cuts = drawn
    every = [cut_problem(problem, choice) for choice in choices(cuts)]
    costs = [cost for one in every if (cost := optimum.cheapest(one).cost) is not None]
    solution = solve_cut(problem, cuts)

    if not costs:
        assert solution.status == "infeasible"
        assert solution.infeasibility is not None
        assert solution.infeasibility.reasons
        event("infeasible")
        return
    plan = solution.plan
    assert plan is not None
    assert solution.status == "optimal"
    assert plan.cost.total_usd_per_h == pytest.approx(min(costs), rel=1e-6, abs=1e-6)
    assert plan.certificate.gap == 0
    assert plan.slo == problem.slo
    own = problem_as_planned(problem, cuts, plan)
    assert evaluate(own, plan).complaints == ()
    assert complaints(own, plan) == []
    assert from_document(to_document(plan)) == plan
    event(f"cut: {len(own.operators) - len(problem.operators)}")


@settings(max_examples=examples(4, nightly=100))
@given(cut_problems())
def test_a_budget_below_all_cuts_is_refused(drawn: tuple[Problem, Cuts]) -> None:
    problem, cuts = drawn
    plan = solve_cut(problem, cuts).plan
    assume(plan is not None and plan.cost.total_usd_per_h >= 0.01)
    assert plan is not None
    slo = replace(problem.slo, budget_usd_per_h=0.9 * plan.cost.total_usd_per_h)
    refused = solve_cut(replace(problem, slo=slo), cuts)
    assert refused.plan is None
    assert refused.infeasibility is not None
    assert solve_cut(replace(problem, slo=replace(slo, budget_usd_per_h=1.01 * plan.cost.total_usd_per_h)), cuts).plan


@settings(max_examples=examples(4, nightly=20))
@given(cut_problems())
def test_without_cuts_it_is_the_solver(drawn: tuple[Problem, Cuts]) -> None:
    problem, _ = drawn
    assert solve_cut(replace(problem, slo=Slo()), {}) == solve(replace(problem, slo=Slo()))


@settings(max_examples=examples(5, nightly=50))
@given(cut_problems())
def test_one_of_several_workflows_is_cut_as_alone(drawn: tuple[Problem, Cuts]) -> None:
    problem, cuts = drawn
    other = replace(problem, operators=problem.operators[:1], accuracy=EndToEnd((), {}), slo=Slo())
    other = replace(
        other, sources=tuple(s for s in problem.sources if s.name == problem.operators[0].inputs[0].upstream)
    )
    other = replace(other, operators=(replace(problem.operators[0], inputs=problem.operators[0].inputs[:1]),))
    both = combine_workflows("both", {"one": problem, "two": other})
    for choice in choices(cuts):
        known = qualified_cuts("one", {name: (cut,) for name, cut in choice.items()})
        found = cut_problem(both, {name: cut for name, (cut,) in known.items()})
        assert found == combine_workflows("both", {"one": cut_problem(problem, choice), "two": other})


@pytest.mark.slow
@settings(max_examples=examples(8, nightly=50), deadline=None)
@given(cut_problems())
def test_plans_of_cut_models_are_judged_after_each_loss(drawn: tuple[Problem, Cuts]) -> None:
    problem, cuts = drawn
    pools = tuple(replace(pool, count=4, sharing=Sharing.SHARED, memory_bytes=None) for pool in problem.pools)
    sources = tuple(replace(source, rate_per_s=0.1) for source in problem.sources)
    problem = replace(problem, pools=pools, sources=sources, slo=Slo(survives=(LossKind.WORKER,)))
    *_, every = choices(cuts)
    plan = solve(cut_problem(problem, every)).plan
    assume(plan is not None and every)
    assert plan is not None
    assert breach_after_loss(problem, cuts, plan) is None, "it has no p99 target"
    for _, left in plans_after_losses(problem, cuts, plan):
        assert left is not None and head_name(next(iter(every))) in left.operator_by_name
    tight = replace(plan, slo=replace(plan.slo, latency_p99_s=1e-6))
    if latency(plan).unqueued_s > 1e-3:
        assert "without " in (breach_after_loss(problem, cuts, tight) or "")
    check = SearchSettings(check=lambda one: breach_after_loss(problem, cuts, one))
    assert replan_cut(problem, cuts, plan, ReplanSettings(), check).broken == ()


@settings(max_examples=examples(5), deadline=None)
@given(cut_problems(), st.sampled_from((Slo(mean_accuracy=90.0), Slo(mean_accuracy=90.0, penalty_usd_per_h=0.1), None)))
def test_mean_accuracies_are_refused(drawn: tuple[Problem, Cuts], slo: Slo | None) -> None:
    """Choices of cuts are compared by their cost, which is not what such plans are the best in."""
    problem, cuts = drawn
    assume(cuts)
    plan = solve(replace(problem, slo=Slo())).plan
    asked = replace(problem, objective=Objective.MEAN_ACCURACY) if slo is None else replace(problem, slo=slo)
    with pytest.raises(SolverError, match="plan without cuts of o"):
        solve_cut(asked, cuts)
    if plan is not None:
        with pytest.raises(SolverError, match="plan without cuts of o"):
            replan_cut(asked, cuts, plan, ReplanSettings())


def test_a_head_has_a_name_of_its_own() -> None:
    assert head_name("answer") == "answer.head"
