"""The lower bound on every plan's p99 latency against simulated plans in which nothing queues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jellybean.planning.simulation import simulate_plan
from jellybean_solver import Clock, EdgeKind, Operator, Problem, ServiceTime, Slo, Variant, least_latency_s, solve
from jellybean_solver.deadline.lower_bound import least_cost_in_time
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.estimate import latency
from jellybean_solver.planning.requirements import scaled
from tests.strategies import joins_agree, problems
from tests.support.examples import examples

IDLE = 1e-3  # of the rates
RATIOS = (0.004, 0.01, 0.02, 0.05, 0.25, 0.6, 1.05, 1.5, 2.0, 2.5, 6.0)
TAILS = (None, ((0.5, 1.0), (0.9, 1.2), (0.99, 2.0)), ((0.985, 1.0), (0.99, 50.0)))  # times at levels, of the first one


@st.composite
def fanned_problems(draw: st.DrawFn) -> Problem:
    """Problems with rare and with many children, spread evenly or concentrated, and with times that vary."""
    drawn = scaled(draw(problems(limited=True, fanned=True)), IDLE)
    fanning = {edge.upstream for edge in drawn.edges if edge.kind is EdgeKind.FAN_OUT}
    assume(joins_agree(drawn, fanning))
    drawn_for = {ratio: draw(st.sampled_from(RATIOS)) for ratio in (0.25, 2.0, 4.0)}
    ratios = {(EdgeKind.FAN_OUT, ratio): own for ratio, own in drawn_for.items()}
    ratios |= {(EdgeKind.GATHER, 1.0 / ratio): 1.0 / own for ratio, own in drawn_for.items()}

    def time(service: ServiceTime) -> ServiceTime:
        return replace(service, quantiles=tuple((level, part * service.mean_s) for level, part in tail or ()))

    def variant(name: str, one: Variant) -> Variant:
        sent = [edge.ratio for edge in edges if edge.upstream == name and edge.kind is EdgeKind.FAN_OUT]
        most = draw(st.sampled_from((0, 3, 9)))
        children = (1.0 - sent[0] / most, *[0.0] * (most - 1), sent[0] / most) if sent and sent[0] < most else ()
        service = {pool: {size: time(own) for size, own in times.items()} for pool, times in one.service.items()}
        return replace(one, children=children, service=service)

    tail = draw(st.sampled_from(TAILS))
    inputs = {
        one.name: tuple(replace(edge, ratio=ratios.get((edge.kind, edge.ratio), 1.0)) for edge in one.inputs)
        for one in drawn.operators
    }
    edges = [edge for own in inputs.values() for edge in own]
    operators = [
        Operator(one.name, inputs[one.name], tuple(variant(one.name, v) for v in one.variants), one.tiers)
        for one in drawn.operators
    ]
    return replace(drawn, operators=tuple(operators), slo=Slo())


@pytest.mark.slow
@settings(max_examples=examples(15, nightly=150), deadline=None)
@given(fanned_problems())
def test_no_simulated_p99_is_below_the_bound(problem: Problem) -> None:
    cheapest = solve(problem).plan
    assume(cheapest is not None)
    assert cheapest is not None
    fast = solve(problem, p99_s=0.5 * latency(cheapest).slowest_s).plan
    least_s = least_latency_s(problem)
    for plan in (cheapest, fast):
        if plan is None:
            continue
        p99_s = simulate_plan(plan).latency_p99_s
        assert least_s <= p99_s * (1 + 1e-9)
        assert least_s <= latency(plan).unqueued_s * (1 + 1e-9)
        event(f"bound is {'' if least_s >= 0.9 * p99_s else 'far '}below")
        if len(plan.routes) == 1 and p99_s > 1e-3:  # then the bound on costs holds for it
            limits = SearchLimits(0.0, Clock(), float("inf"))
            bound = least_cost_in_time(problem, p99_s * (1 + 1e-9), cheapest, limits)
            assert bound <= plan.cost.total_usd_per_h * (1 + 1e-6) + 1e-6
