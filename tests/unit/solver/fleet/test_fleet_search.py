"""The search over fleets: whole workers chosen well, the same plan on every run, gaps that are true."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.fleet import Size, fleet
from jellybean_solver import Assignment, Clock, Network, Pool, Problem, Sharing
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.rounding.rounding_patterns import ways_near
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.outcome import Outcome
from jellybean_solver.planning.solver import finish
from tests.plan_check import complaints
from tests.support.small_problems import operator, problem, variant

MEDIUM = {sharing: Size(operators=10, variants=4, pools=60, workers=600, sharing=sharing) for sharing in Sharing}
SAME = """
from benchmarks.fleet import Size, fleet
from jellybean_solver import Sharing, solve
from jellybean_solver.model.plan_document import to_document
size = Size(operators=10, variants=4, pools=60, workers=600, sharing=Sharing.{})
print(to_document(solve(fleet(2, size), gap=0.03).plan)["hash"])
"""


def _searched(case: Problem, gap: float, clock: Clock | None = None) -> Outcome[Assignment]:
    return FleetSearch(Network(case), case.slo.accuracy, {}, SearchLimits(gap, clock or Clock())).run()


def test_pools_of_one_type_and_tier_are_one_kind() -> None:
    case = fleet(0, Size(workers=10_000))
    kinds = JointLp(Network(case), None, {}).kinds.kinds
    assert len(kinds) == 18
    assert sum(len(kind.pools) for kind in kinds) == 100
    for kind in kinds:
        prices = [pool.price_usd_per_h for pool in kind.pools]
        assert prices == sorted(prices)


def test_a_small_worker_does_what_a_fraction_of_a_large_one_would() -> None:
    pools = [
        Pool("large", "edge", 9, 1.0, Sharing.EXCLUSIVE),
        Pool("small", "edge", 9, 0.3, Sharing.EXCLUSIVE),
    ]
    step = operator("a", ["camera"], variant("v", {"large": 0.1, "small": 0.2}))
    outcome = _searched(problem(step, pools=pools, rate_per_s=34.0), 0.0)
    assert outcome.is_conclusive
    assert outcome.value == pytest.approx(2.1)  # 7 small ones
    pools[1] = Pool("small", "edge", 9, 0.55, Sharing.EXCLUSIVE)
    outcome = _searched(problem(step, pools=pools, rate_per_s=34.0), 0.0)
    assert outcome.value == pytest.approx(3.55)  # 3 large ones and a small one
    assert outcome.found is not None
    assert {group.pool: group.count for group in outcome.found.groups} == {"large": 3, "small": 1}


def test_ways_to_round_up_hold_the_best() -> None:
    needed, prices = np.array([33.4, 76.0, np.inf]), np.array([0.5, 0.25, 0.1])
    ways = ways_near(1.0, needed, prices, np.array([33.4, 0.0, 0.0]), np.array([9.0, 9.0, 9.0]), 10)
    assert ways[0].tolist() == [33.0, 1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", list(Sharing))
def test_the_same_plan_on_every_run(sharing: Sharing) -> None:
    def run(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SAME.format(sharing.name)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = run("1")
    assert len(first.strip()) > 10
    assert run("2") == first


@pytest.mark.slow
@pytest.mark.parametrize("sharing", list(Sharing))
def test_time_that_ends_leaves_the_best_plan_and_its_true_gap(sharing: Sharing) -> None:
    case = fleet(2, MEDIUM[sharing])
    close = _searched(case, 0.03)
    for ticks in (20, 60, 200):
        clock = itertools.count(0.0, 0.01)
        cut = _searched(case, 1e-4, Clock(clock.__next__, 0.01 * ticks))
        assert cut.bound <= close.value
        if cut.found is None:
            assert not cut.is_conclusive
            continue
        assert cut.value >= close.bound
        plan, _ = finish(Network(case), cut)
        assert complaints(case, plan) == []
        assert plan.certificate.bound == pytest.approx(cut.bound)
        assert plan.certificate.gap == pytest.approx((cut.value - cut.bound) / cut.value, abs=1e-9)
        assert plan.certificate.termination in ("time_limit", "gap", "optimal")
        assert (plan.certificate.termination == "optimal") == (plan.certificate.gap == 0.0)


@pytest.mark.parametrize("less", (1e-4, 1e-2))
def test_a_budget_just_below_the_optimum_is_proven_to_be_too_little(less: float) -> None:
    asked = fleet(3, Size(operators=3, variants=3, pools=6, workers=30))
    network = Network(asked)

    def within(budget: float) -> Outcome[Assignment]:
        return FleetSearch(
            network, asked.slo.accuracy, {}, SearchLimits(0.0, Clock(time.monotonic, time.monotonic() + 60), budget)
        ).run()

    best = within(math.inf)
    assert best.found is not None
    assert best.is_conclusive
    none = within(best.value * (1 - less))
    assert none.found is None
    assert none.is_conclusive
    assert none.bound == math.inf
