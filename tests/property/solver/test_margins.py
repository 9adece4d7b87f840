"""Plans with a margin are the cheapest ones that do for longer times and higher rates, by enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_solver import Margin, Plan, Problem, ServiceTime, evaluate, solve, stressed
from tests.brute_force import optimum
from tests.strategies import problems
from tests.support.examples import examples

SHARES = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def within(problem: Problem, margin: Margin) -> Problem:
    """The problem as its documents give it to the solver."""
    slo = replace(problem.slo, margin=margin)
    return replace(problem, slo=slo, utilisation=problem.utilisation / margin.work)


def worse(problem: Problem, margin: Margin) -> Problem:
    """The problem in which times and rates are what the margin says, and a byte costs as much less."""
    longer, more = 1.0 + margin.times, 1.0 + margin.rates

    def later(time: ServiceTime) -> ServiceTime:
        return replace(time, load_s=longer * time.load_s, mean_s=longer * time.mean_s)

    operators = tuple(
        replace(
            operator,
            variants=tuple(
                replace(
                    variant,
                    service={
                        pool: {size: later(time) for size, time in times.items()}
                        for pool, times in variant.service.items()
                    },
                )
                for variant in operator.variants
            ),
        )
        for operator in problem.operators
    )
    return replace(
        problem,
        operators=operators,
        sources=tuple(replace(source, rate_per_s=more * source.rate_per_s) for source in problem.sources),
        links=tuple(replace(link, price_usd_per_gib=link.price_usd_per_gib / more) for link in problem.links),
    )


@settings(max_examples=examples(25, nightly=1000))
@given(problem=problems(max_operators=2, limited=True), times=SHARES, rates=SHARES)
def test_a_margin_costs_what_the_worse_figures_need(problem: Problem, times: float, rates: float) -> None:
    margin = Margin(times, rates)
    best = optimum.cheapest(worse(problem, margin))
    plan = solve(within(problem, margin)).plan
    assert (plan is None) == (best.cost is None)
    if plan is None or best.cost is None:
        return
    assert plan.cost.total_usd_per_h == pytest.approx(best.cost, rel=1e-6, abs=1e-9)
    assert plan.margin == margin
    assert not evaluate(worse(problem, margin), _restated(problem, margin, plan)).complaints


def _restated(problem: Problem, margin: Margin, plan: Plan) -> Plan:
    """The plan as one of the problem with worse figures."""
    harder = worse(problem, margin)
    return replace(stressed(plan), links=harder.links, utilisation=problem.utilisation)


def test_a_stressed_plan_states_no_margin_and_is_stressed_once() -> None:
    assert Margin(0.2, 0.5).work == pytest.approx(1.8)
    assert Margin(0.2, 0.5).text == "times +20 % and rates +50 %"
    assert Margin().text == ""
