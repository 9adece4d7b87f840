"""Plans found for a p99 that the cheapest plan breaks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.fleet import Size, fleet
from jellybean_solver import (
    DEFAULT_SETTINGS,
    Arrivals,
    Deadline,
    Link,
    Network,
    Plan,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Variant,
    link_uses,
    solve,
)
from jellybean_solver.deadline.link_headroom import HeadroomSearch
from jellybean_solver.deadline.restriction import Restriction
from jellybean_solver.fleet import dispatch as large
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.proposal import exact_milp
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.estimate import latency
from jellybean_solver.planning.solver import finish
from tests.plan_check import complaints
from tests.support.small_problems import operator, problem, variant


@pytest.mark.parametrize("is_large", (False, True))
def test_a_link_that_would_be_full_keeps_room_for_its_queue(monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    """The cheapest plan fills the link, on which messages then wait without end."""
    if is_large:
        monkeypatch.setattr(large, "MOST_PAIRS", 0)
    pools = [Pool("box", "edge", 100, 1.0), Pool("gpu", "cloud", 100, 0.1)]
    step = operator("a", ["camera"], variant("v", {"box": 0.1, "gpu": 0.1}))
    links = [Link("edge", "cloud", 0.0, bandwidth_bytes_per_s=5e6)]
    asked = replace(problem(step, pools=pools, rate_per_s=100.0, message_bytes=1e5), links=tuple(links))
    cheapest = solve(asked).plan
    assert cheapest is not None
    assert math.isinf(latency(cheapest).p99_s)
    found = solve(asked, p99_s=2.0).plan
    assert found is not None
    assert latency(found).meets(2.0)
    assert not complaints(asked, found)
    assert found.links == asked.links
    assert cheapest.cost.total_usd_per_h == pytest.approx(5 * 1.0 + 5 * 0.1)
    assert found.cost.total_usd_per_h <= 7 * 1.0 + 5 * 0.1 + 1e-6  # by headroom on workers alone it is dearer


@pytest.mark.parametrize("is_large", (False, True))
def test_where_headroom_is_no_help_faster_workers_are_found(monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    if is_large:
        monkeypatch.setattr(large, "MOST_PAIRS", 0)
    pools = [Pool("slow", "edge", 300, 0.1), Pool("fast", "edge", 30, 20.0)]
    step = operator("a", ["camera"], variant("v", {"slow": 1.0, "fast": 0.05}))
    asked = problem(step, pools=pools, rate_per_s=10.0)
    cheapest = solve(asked).plan
    assert cheapest is not None
    assert latency(cheapest).p99_s > 0.8
    found = solve(asked, p99_s=0.8).plan
    assert found is not None
    assert latency(found).meets(0.8)
    assert {worker.pool for worker in found.workers} == {"fast"}


@pytest.mark.parametrize("is_large", (False, True))
def test_pools_of_like_capacity_may_differ_in_time(monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    """Batches of four take as long per request as one by one on the dearer pool, and twice as long each."""
    if is_large:
        monkeypatch.setattr(large, "MOST_PAIRS", 0)
    pools = [Pool("batched", "edge", 100, 0.1), Pool("quick", "edge", 100, 0.2)]
    batched = {1: ServiceTime(0.5, 0.5), 4: ServiceTime(1.0, 1.0)}
    step = operator("a", ["camera"], Variant("v", {"batched": batched, "quick": {1: ServiceTime(0.25, 0.25)}}, {}))
    asked = problem(step, pools=pools, rate_per_s=2.0)
    found = solve(asked, p99_s=0.45)
    assert found.plan is not None
    assert {worker.pool for worker in found.plan.workers} == {"quick"}
    assert latency(found.plan).meets(0.45)


def test_two_operators_of_one_request_are_kept_apart_where_they_make_each_other_late() -> None:
    """Side by side on one box they take 0.4 s, on two 0.2 s; no load and no memory would part them."""
    steps = [operator(name, ["camera"], variant("v", {"box": 0.2}, {"c": 0.0})) for name in ("a", "b")]
    last = operator("c", ["a", "b"], variant("v", {"box": 0.0}))
    asked = problem(*steps, last, pools=[Pool("box", "edge", 3, 1.0)], rate_per_s=1e-4)
    cheapest = solve(asked).plan
    assert cheapest is not None and len(cheapest.workers) == 1
    found = solve(asked, p99_s=0.3).plan
    assert found is not None
    assert latency(found).meets(0.3)
    assert found.cost.total_usd_per_h == pytest.approx(2.0)
    assert not complaints(asked, found)


def test_a_way_that_memory_rules_out_is_not_all_that_is_tried() -> None:
    """Both models are quickest on the one fast box, which holds one of them; the programs know nothing of that."""
    loads_s = {"slow": 1.0, "fast": 0.01, "near": 0.1}
    model = variant("v", loads_s, {"b": 0.0}, dict.fromkeys(loads_s, 1.0))
    steps = [operator("a", ["camera"], model), operator("b", ["a"], model)]
    pools = [
        Pool("slow", "edge", 2, 0.1),
        Pool("fast", "edge", 1, 0.1, memory_bytes=1.0),
        Pool("near", "edge", 1, 5.0, memory_bytes=1.0),
    ]
    asked = problem(*steps, pools=pools, rate_per_s=1e-4)
    found = solve(asked, p99_s=0.5).plan
    assert found is not None
    assert latency(found).meets(0.5)
    assert {worker.pool for worker in found.workers} == {"fast", "near"}


@pytest.mark.slow
@pytest.mark.parametrize("sharing", Sharing)
def test_a_fleet_keeps_a_binding_p99_near_the_bound(sharing: Sharing) -> None:
    asked = fleet(3, Size(operators=8, variants=3, pools=60, workers=600, sharing=sharing, batches=(1, 2, 4)))
    gap = {Sharing.SHARED: 0.01, Sharing.EXCLUSIVE: 0.03}[sharing]
    cheapest = solve(asked, gap=gap, explained=False).plan
    assert cheapest is not None
    before = latency(cheapest)
    within_s = 0.95 * max(before.p99_s, before.unqueued_s)
    found = solve(asked, gap=gap, explained=False, p99_s=within_s).plan
    assert found is not None
    assert latency(found).meets(within_s)
    assert not complaints(asked, found)
    assert found.cost.total_usd_per_h >= cheapest.certificate.bound * (1 - 1e-9)
    assert found.certificate.bound <= found.cost.total_usd_per_h
    assert found.certificate.gap <= {Sharing.SHARED: 1.0, Sharing.EXCLUSIVE: 2.5}[sharing] * gap * (1 + 1e-6)


@pytest.mark.slow
def test_a_search_under_ever_shorter_sums_keeps_them_and_costs_more() -> None:
    """By the sum over its own routes, and with a bound that no plan found under a shorter sum falls below."""
    asked = fleet(5, Size(operators=6, variants=3, pools=40, workers=400))
    pace = Pace(math.inf, 50.0)
    free, _ = finish(Network(asked), FleetSearch(Network(asked), asked.accuracy_target, {}, SearchLimits(1e-3)).run())
    longest_s = pace.of_plan(asked, free)
    start = replace(pace, left_s=longest_s)
    search = FleetSearch(Network(asked), asked.accuracy_target, {}, SearchLimits(1e-3), pace=start)
    bounds = [free.certificate.bound]
    for share in (0.95, 0.85):
        outcome = search.under(share * longest_s, SearchLimits(1e-3)).run()
        plan, evaluation = finish(Network(asked), outcome)
        assert evaluation.complaints == ()
        assert pace.of_plan(asked, plan) <= share * longest_s * (1 + 1e-6)
        assert plan.cost.total_usd_per_h >= bounds[-1] * (1 - 1e-9)
        bounds.append(outcome.bound)
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(bounds))


def test_a_search_counts_the_time_that_requests_wait_for_others() -> None:
    times = {1: ServiceTime(0.1, 0.1), 4: ServiceTime(0.2, 0.2)}
    step = operator("a", ["camera"], Variant("v", {"box": times}, {}))
    asked = problem(step, pools=[Pool("box", "edge", 50, 1.0)], rate_per_s=10.0)
    soon = solve(asked, p99_s=0.6).plan
    assert soon is not None
    assert max(soon.operator_by_name["a"].batch.values()) == 4
    waiting = replace(asked, operators=(replace(step, batch_delay_s=0.3),))
    found = solve(waiting, p99_s=1.0).plan
    assert found is not None
    assert found.operator_by_name["a"].batch_delay_s == 0.3
    assert latency(found).meets(1.0)
    alone = solve(replace(asked, operators=(replace(step, batch_delay_s=0.7),)), p99_s=0.6).plan
    assert alone is not None
    assert alone.operator_by_name["a"].batch == {"box": 1}  # with larger batches requests would wait for others


@pytest.mark.slow
def test_sites_whose_uplinks_the_cheapest_plan_fills_keep_room_on_them() -> None:
    """Little room costs little, and is there from the start: the plan is as near the bound as without a p99."""
    size = Size(operators=9, variants=3, pools=30, workers=600, sites=30, batches=(1, 2))
    asked = fleet(2, size)
    cheapest = solve(asked, gap=0.01, explained=False).plan
    assert cheapest is not None
    assert max(use.use or 0.0 for use in link_uses(cheapest)) > 0.99
    assert math.isinf(latency(cheapest).p99_s)
    found = solve(asked, gap=0.01, explained=False, p99_s=5.0).plan
    assert found is not None
    assert latency(found).meets(5.0)
    assert found.certificate.gap <= 0.01
    assert found.certificate.bound <= cheapest.cost.total_usd_per_h * (1.0 + 1e-9)
    assert not complaints(asked, found)


def test_many_sizes_of_messages_rule_nothing_out() -> None:
    """Nine variants each, whose messages take 0.1 s and more to the cloud: what stays where it is takes none."""
    names = ("a", "b", "c", "d", "e", "f")
    sizes = [1e5 * 1.2**step for step in range(9)]
    steps = [
        operator(
            name,
            [before],
            *(variant(f"v{i}", {"box": 1e-3, "gpu": 1e-3}, {after: size}) for i, size in enumerate(sizes)),
        )
        for before, name, after in zip(("camera", *names), names, names[1:], strict=False)
    ]
    last = operator("f", ["e"], variant("v", {"box": 1e-3, "gpu": 1e-3}))
    links = (Link("edge", "cloud", 0.0, bandwidth_bytes_per_s=1e6),)
    pools = [Pool("box", "edge", 9, 1.0), Pool("gpu", "cloud", 9, 2.0)]
    network = Network(problem(*steps, last, pools=pools, links=links))
    milp = exact_milp(network, None, SearchLimits(0.0), deadline_s=0.45)
    assert milp is not None
    assert milp.program.solve().bound == pytest.approx(1.0)


def test_a_slow_stream_beside_a_fast_one_does_not_close_links() -> None:
    """Room on links is that of the fast one's bursts: the first search finds the plan."""
    asked = fleet(2, Size(operators=9, variants=3, pools=30, workers=600, sites=30, batches=(1, 2)))
    first = next(one for one in asked.operators if one.inputs[0].upstream == asked.sources[0].name)
    edge = replace(first.inputs[0], upstream="slow", downstream="lone")
    slow = replace(asked.sources[0], name="slow", rate_per_s=0.05)
    lone = replace(first, name="lone", inputs=(edge,))
    asked = replace(asked, sources=(*asked.sources, slow), operators=(*asked.operators, lone))
    deadline = Deadline(5.0)
    search = HeadroomSearch(asked, deadline, SearchLimits(0.01), lambda network, outcome: finish(network, outcome)[0])
    assert search.first < 0.1
    search.run()
    assert search.best is not None
    assert search.best.cost.total_usd_per_h * (1.0 - 0.01) <= search.bound * (1.0 + 1e-9)
    assert latency(search.best).meets(5.0) and not complaints(asked, search.best)


def _two_boxes_late() -> Problem:
    """Two boxes carry the load; each further one shortens the queues."""
    step = operator("see", ["camera"], variant("v", {"box": 0.1}))
    asked = problem(step, pools=[Pool("box", "edge", 10, 1.0)], rate_per_s=17.0)
    return replace(asked, sources=tuple(replace(source, arrivals=Arrivals.POISSON) for source in asked.sources))


def test_the_judge_decides_and_the_estimate_only_says_what_is_worth_judging() -> None:
    asked = _two_boxes_late()
    cheapest = solve(asked).plan
    assert cheapest is not None and len(cheapest.workers) == 2
    within_s = latency(cheapest).p99_s * 0.8
    judged: list[Plan] = []

    def judge(plan: Plan, enough: int) -> float:
        judged.append(plan)
        return 0.9 if len(plan.workers) >= enough else 1.2

    lenient = solve(asked, deadline=Deadline(within_s, partial(judge, enough=2))).plan
    strict = solve(asked, deadline=Deadline(within_s, partial(judge, enough=5))).plan
    assert lenient is not None and len(lenient.workers) == 2  # late by the estimate
    assert strict is not None and len(strict.workers) == 5  # in time by the estimate with fewer
    assert strict.certificate.bound <= lenient.cost.total_usd_per_h + 1e-9
    keys = [(tuple(w.name for w in plan.workers), len(plan.workers)) for plan in judged[1:]]
    assert len(keys) == len(set(keys))  # no plan is simulated twice
    far = latency(cheapest).p99_s / 10.0
    judged.clear()
    assert solve(asked, deadline=Deadline(far, partial(judge, enough=2))).plan is None
    assert len(judged) <= 1  # only the fastest, to say how near it comes


def test_the_progress_of_a_search_never_falls() -> None:
    asked = _two_boxes_late()
    cheapest = solve(asked).plan
    assert cheapest is not None
    said: list[tuple[float, float]] = []
    deadline = Deadline(0.9 * latency(cheapest).p99_s, advance=lambda done, most: said.append((done, most)))
    found = solve(asked, gap=0.0, deadline=deadline).plan
    assert found is not None
    assert len({most for _, most in said}) > 1  # the first plan in time changed how many are made at most
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert all(done < most for done, most in said)


@pytest.mark.slow
def test_a_refused_answer_of_a_fleet_is_planned_again_for_less_and_proves_nothing_more() -> None:
    asked = fleet(3, Size(operators=8, variants=3, pools=60, workers=600, batches=(1, 2, 4)))
    cheapest = solve(asked, gap=0.01, explained=False).plan
    assert cheapest is not None
    within_s = 1.2 * latency(cheapest).slowest_s
    asked_of: list[float] = []

    def judge(plan: Plan) -> float:
        asked_of.append(latency(plan).slowest_s)
        return 1.1 if len(asked_of) == 1 else 0.95

    found = solve(asked, gap=0.01, explained=False, deadline=Deadline(within_s, judge)).plan
    assert found is not None
    assert len(asked_of) == 2 and asked_of[1] <= 0.8 * within_s * (1 + 1e-9)
    assert found.certificate.bound <= cheapest.cost.total_usd_per_h * (1 + 1e-9)
    assert solve(asked, gap=0.01, explained=False, deadline=Deadline(within_s, lambda plan: 2.0)).plan is None


def test_half_a_margin_lies_between_a_restriction_and_its_looser_one() -> None:
    looser = Restriction(pools=frozenset({("a", 0.8)}))
    tighter = replace(looser, pools=frozenset({("a", 0.4), ("b", 0.5)}), links=0.8)
    between = tighter.halfway(looser, DEFAULT_SETTINGS)
    assert between is not None
    assert dict(between.pools) == {"a": pytest.approx(0.6), "b": pytest.approx(0.75)}
    assert between.links == pytest.approx(0.9)
    assert tighter.halfway(looser, replace(DEFAULT_SETTINGS, finest_step=2.0)) is None  # too fine a step
    assert looser.halfway(looser, DEFAULT_SETTINGS) is None
    place = Restriction(places=frozenset({("a", "v", "box")}))
    assert place.halfway(Restriction(), DEFAULT_SETTINGS) is None  # no margin to halve
