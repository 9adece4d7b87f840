"""Lower bounds that cut off worker counts whose only plan is late, against all worker counts gone through."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from jellybean_solver import Arrivals, Deadline, Network, Plan, Pool, Problem, Sharing, solve
from jellybean_solver.deadline.late_counts import LateCounts
from jellybean_solver.fleet.proposal import exact_milp
from jellybean_solver.fleet.settings import SearchLimits
from tests.support.small_problems import operator, problem, variant

Chosen = tuple[tuple[str, str], ...]  # by operator: the variant, and the only pool with a worker for it


def _random_problem(rng: random.Random) -> Problem:
    """Two operators with two variants each, on three to five exclusive workers of pools of their own."""
    names = [f"p{number}" for number in range(rng.randint(3, 5))]
    pools = [Pool(name, "edge", 1, rng.choice((1.0, 2.0, 3.0, 5.0)), Sharing.EXCLUSIVE) for name in names]

    def times() -> Mapping[str, float]:
        return {name: rng.uniform(0.01, 0.02) for name in names if rng.random() < 0.8} or {names[0]: 0.01}

    a = operator("a", ["camera"], variant("v0", times(), {"b": 1.0}), variant("v1", times(), {"b": 1.0}))
    return problem(a, operator("b", ["a"], variant("v0", times()), variant("v1", times())), pools=pools)


def _least_cost(made: Problem, late: set[Chosen]) -> float:
    """USD per hour of the cheapest workers that have a plan which is not in `late`, by enumeration."""
    return min((cost for cost, chosen in _workers(made) if chosen not in late), default=math.inf)


def _workers(made: Problem) -> Iterator[tuple[float, Chosen | None]]:
    """Cost, and what is chosen if that leaves one worker for each operator; None if it leaves more."""
    a, b = made.operators
    price = {pool.name: pool.price_usd_per_h for pool in made.pools}
    for first, second in itertools.product(a.variants, b.variants):
        for pools, others in itertools.product(_subsets(list(first.service)), _subsets(list(second.service))):
            if not set(pools) & set(others):
                cost = sum(price[name] for name in (*pools, *others))
                one_each = len(pools) == len(others) == 1
                yield cost, ((first.name, pools[0]), (second.name, others[0])) if one_each else None


def _subsets(names: list[str]) -> list[tuple[str, ...]]:
    return [some for size in range(1, len(names) + 1) for some in itertools.combinations(names, size)]


@pytest.mark.parametrize("seed", range(25))
def test_the_bound_is_the_cost_of_the_cheapest_workers_that_no_judgement_excludes(seed: int) -> None:
    rng = random.Random(seed)
    made = _random_problem(rng)
    single = [chosen for _, chosen in _workers(made) if chosen is not None]
    late = {chosen for chosen in single if rng.random() < 0.7}

    def meets(plan: Plan) -> bool:
        return tuple((o.variant, next(iter(o.service))) for o in plan.operators) not in late

    milp = exact_milp(Network(made), None, SearchLimits(0.0), deadline_s=1.0)
    assert milp is not None
    bound, least = LateCounts(meets, 1_000).least_cost(milp, SearchLimits(0.0)), _least_cost(made, late)
    if math.isfinite(least):
        assert bound == pytest.approx(least)
    milp = exact_milp(Network(made), None, SearchLimits(0.0), deadline_s=1.0)
    assert milp is not None
    assert LateCounts(meets, 2).least_cost(milp, SearchLimits(0.0)) <= least + 1e-9  # with fewer judgements


def _one_box_late(sharing: Sharing = Sharing.SHARED) -> Problem:
    step = operator("see", ["camera"], variant("v", {"box": 0.1}))
    made = problem(step, pools=[Pool("box", "edge", 10, 1.0, sharing)], rate_per_s=7.0)
    return replace(made, sources=tuple(replace(source, arrivals=Arrivals.POISSON) for source in made.sources))


def test_a_second_worker_that_the_queue_of_the_first_needs_is_proven() -> None:
    """One box is busy for 70 % of the time; without queues the bound would be its price."""
    plan = solve(_one_box_late(), deadline=Deadline(0.4, judge=lambda plan: 2.0 / len(plan.workers))).plan
    assert plan is not None
    assert len(plan.workers) == 2
    assert plan.certificate.bound == pytest.approx(2.0)
    assert plan.certificate.gap == 0.0


@pytest.mark.parametrize(("sharing", "bound"), ((Sharing.EXCLUSIVE, 5.0), (Sharing.SHARED, 2.0)))
def test_several_workers_that_share_an_operator_evenly_are_proven(sharing: Sharing, bound: float) -> None:
    """Shared workers may divide an operator unevenly, and one of them have less to do."""
    plan = solve(_one_box_late(sharing), deadline=Deadline(0.4, judge=lambda plan: 4.5 / len(plan.workers))).plan
    assert plan is not None
    assert len(plan.workers) == 5
    assert plan.certificate.bound == pytest.approx(bound)


def test_each_number_of_workers_is_judged_by_a_plan_that_has_it() -> None:
    """One worker could carry the load: the others are there for the queue."""
    made, judged = _one_box_late(Sharing.EXCLUSIVE), list[int]()

    def meets(plan: Plan) -> bool:
        judged.append(len(plan.workers))
        return len(plan.workers) >= 3

    milp = exact_milp(Network(made), None, SearchLimits(0.0), deadline_s=1.0)
    assert milp is not None
    assert LateCounts(meets, 1_000).least_cost(milp, SearchLimits(0.0)) == pytest.approx(3.0)
    assert judged == [1, 2, 3]


def test_what_the_search_has_judged_is_not_judged_again() -> None:
    asked: list[int] = []

    def judge(plan: Plan) -> float:
        asked.append(len(plan.workers))
        return 2.0 / len(plan.workers)

    assert solve(_one_box_late(), deadline=Deadline(0.4, judge=judge)).plan is not None
    assert asked.count(1) == 1
