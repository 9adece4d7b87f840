"""Plans of operators with a state that mix variants or bear losses, against a program over each worker by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import (
    Edge,
    EdgeKind,
    Independent,
    Link,
    LossKind,
    Plan,
    Problem,
    Sharing,
    Slo,
    Source,
    StreamAssignment,
    Variant,
    evaluate,
    from_document,
    solve,
    to_document,
    whole_streams,
)
from jellybean_solver.model.loss import RoutesAfterLoss, losses
from jellybean_solver.model.route_drawing import own_routes
from tests import plan_check
from tests.brute_force import streams_optimum
from tests.strategies import problems
from tests.support.examples import NIGHTLY, examples
from tests.support.small_problems import box, gpu, operator, problem, variant

LITTLE = 1e-6
RATE_PER_S = 10.0


@st.composite
def hearing(draw: st.DrawFn, *, most_workers: int = 3) -> Problem:
    """One or two operators, with variants of which a worker takes few streams, on boxes and a dearer pool above."""
    streams = draw(st.integers(2, 5))
    parts = st.sampled_from((0.15, 0.2, 0.3, 0.35, 0.5, 0.6, 1.0))  # of a box, for one stream
    fans_out = draw(st.booleans())

    def variants(name: str, reader: str) -> list[Variant]:
        found = []
        for number in range(draw(st.sampled_from((1, 2, 3, 3)))):
            on_box = draw(parts) * streams / RATE_PER_S
            loads = {"box": on_box, "gpu": on_box * draw(st.sampled_from((0.3, 0.5, 1.0)))}
            ratio = {reader: draw(st.sampled_from((1.0, 0.5, 2.0)))} if reader and fans_out else {}
            memory = dict.fromkeys(loads, draw(st.sampled_from((0.0, 1.0))))
            found.append(replace(variant(f"{name}{number}", loads, {reader: 1e5}, memory), ratios=ratio))
        return found

    operators = [operator("hear", ["camera"], *variants("h", "say"))]
    if draw(st.booleans()):
        kind = EdgeKind.FAN_OUT if fans_out else EdgeKind.EACH
        operators.append(operator("say", [Edge("hear", "say", kind)], *variants("s", "")))
    percent = st.sampled_from((60.0, 70.0, 80.0, 90.0, 95.0, 100.0))
    accuracy = Independent({one.name: {own.name: draw(percent) for own in one.variants} for one in operators})
    sharing, memory = st.sampled_from(Sharing), draw(st.sampled_from((None, 1.0)))
    counts = st.integers(1, most_workers)
    pools = [box(draw(counts), 1.0, draw(sharing), memory), gpu(draw(counts), 1.7, draw(sharing))]
    link = Link("edge", "cloud", 0.2, draw(st.sampled_from((None, 6e5))))
    found = problem(*operators, pools=pools, rate_per_s=RATE_PER_S, links=[link], accuracy=accuracy)
    return with_streams(replace(found, sources=(replace(found.sources[0], message_bytes=1e5),)), streams)


def with_streams(problem: Problem, streams: int) -> Problem:
    """The problem whose first operator keeps a state by stream."""
    first, *others = problem.operators
    return replace(
        problem,
        sources=tuple(replace(source, streams=streams) for source in problem.sources),
        operators=(replace(first, state=(("before", "after"),)), *others),
    )


def wholly_assigned(plan: Plan, weights: list[float], streams: int) -> None:
    """Each route has a whole number of streams, which the gateway's assignment gives it."""
    routes = [replace(route, weight=weight) for route, weight in zip(plan.routes, weights, strict=True)]
    weights = list(own_routes(routes, whole_streams(plan)[0].operators).values())
    counts = [weight * streams for weight in weights]
    assert counts == pytest.approx([round(count) for count in counts], abs=1e-6)
    assignment = StreamAssignment(weights)
    for number in range(streams):
        assignment.route_of(str(number))
    assert assignment.counts == [round(count) for count in counts]


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(15, nightly=1000))
@given(
    problems(max_operators=3, limited=True),
    st.integers(1, 5),
    st.sampled_from((55.0, 70.0, 80.0, 88.0)),
    st.sampled_from((None, 60.0)),
    st.sampled_from((None, None, 0.01, 0.3)),
)
def test_the_cheapest_mixture_of_streams_is_that_of_a_program_over_each_worker(
    problem: Problem, streams: int, mean: float, least: float | None, penalty: float | None
) -> None:
    slo = Slo(accuracy=least, mean_accuracy=mean, penalty_usd_per_h=penalty)
    _is_the_optimum(with_streams(replace(problem, slo=slo), streams))


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(25, nightly=1000))
@given(hearing(), st.sampled_from((45.0, 60.0, 70.0, 80.0)), st.sampled_from((None, None, 0.02, 0.1)))
def test_streams_on_few_workers_are_mixed_at_the_least_cost(
    problem: Problem, mean: float, penalty: float | None
) -> None:
    _is_the_optimum(replace(problem, slo=Slo(mean_accuracy=mean, penalty_usd_per_h=penalty)))


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(20, nightly=1000))
@given(
    hearing(most_workers=3),
    st.sampled_from((None, 45.0, 60.0, 80.0)),
    st.booleans(),
    st.lists(st.sampled_from(LossKind), min_size=1, max_size=2, unique=True),
)
def test_the_cheapest_plan_of_streams_that_bears_losses_is_that_of_a_program_over_each_worker(
    problem: Problem, target: float | None, mixed: bool, kinds: list[LossKind]
) -> None:
    slo = Slo(accuracy=target, survives=tuple(kinds))
    if mixed and target is not None:
        slo = Slo(mean_accuracy=target, survives=tuple(kinds))
    _is_the_optimum(replace(problem, slo=slo))


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@settings(max_examples=examples(20, nightly=1000))
@given(
    hearing(most_workers=2),
    st.sampled_from((0.05, 0.1, 0.2)),
    st.sampled_from((30.0, 50.0, 60.0, 70.0)),
    st.booleans(),
)
def test_streams_beside_requests_of_another_rate(problem: Problem, busy: float, target: float, survives: bool) -> None:
    """A source of another rate, which nothing joins, is answered request by request: its shares are not whole."""
    look = operator("look", ["door"], *(variant(f"l{n}", {"box": busy * n, "gpu": busy * n / 2}) for n in (1, 2)))
    table = {**problem.accuracy.table, "look": {"l1": 80.0, "l2": 95.0}}  # type: ignore[attr-defined]
    asked = replace(
        problem,
        sources=(*problem.sources, Source("door", "edge", 4.0, 1e4)),
        operators=(*problem.operators, look),
        accuracy=Independent(table),
        slo=Slo(accuracy=target, survives=(LossKind.WORKER,)) if survives else Slo(mean_accuracy=target),
    )
    _is_the_optimum(asked, frozenset({"look"}))


def _is_the_optimum(asked: Problem, others: frozenset[str] = frozenset()) -> None:
    streams = asked.sources[0].streams
    expected = streams_optimum.best(asked, streams, others)
    solution = solve(asked, explained=False)
    plan = solution.plan
    event(f"{solution.status}, mixes {plan is not None and plan.mixes}, expected {expected is not None}")
    assert (plan is None) == (expected is None)
    if plan is None or expected is None:
        return
    assert not evaluate(asked, plan).complaints
    assert not plan_check.complaints(asked, plan)
    assert from_document(to_document(plan)) == plan
    wholly_assigned(plan, [route.weight for route in plan.routes], streams)
    after = RoutesAfterLoss(asked, plan)
    for loss in losses(plan, asked.slo.survives):
        weights = after.weights(loss)
        wholly_assigned(plan, list(weights), streams)
    cost = plan.cost.total_usd_per_h + asked.slo.penalty(plan.accuracy)
    assert plan.certificate.bound <= expected * (1 + LITTLE) + LITTLE
    assert cost >= expected * (1 - LITTLE) - LITTLE
    if plan.certificate.is_optimal:
        assert cost == pytest.approx(expected, rel=2e-4, abs=1e-5)
    event(f"dearer {cost > expected * 1.0002 + 1e-5}")
