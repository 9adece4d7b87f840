"""The deadline search beside enumeration on small problems whose p99 latency target binds."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from benchmarks.deadline.enumeration import Truth, cheapest_in_time
from benchmarks.deadline.problems import TINY, binding_problem
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.planning.project_plan import settle
from jellybean_solver import Problem, solve

SEEDS = range(540, 580)
SMOKE_SEEDS = range(600, 602)
SAME = 1e-6  # relative difference of costs that are the same


@dataclass(frozen=True)
class _Case:
    """One problem: the plan found (None without one), the enumerated optimum, and seconds of the search."""

    seed: int
    usd_per_h: float | None
    truth: Truth
    seconds: float

    @property
    def excess(self) -> float | None:
        """Relative excess of the plan found over the enumerated one; None if one of them is missing."""
        if self.usd_per_h is None or self.truth.usd_per_h is None:
            return None
        return self.usd_per_h / self.truth.usd_per_h - 1.0


@benchmark
def deadline_optimum(smoke: bool) -> Result:
    """Cost of plans that meet a binding p99 target, beside enumeration with the simulator as judge."""
    cases = [case for seed in (SMOKE_SEEDS if smoke else SEEDS) if (case := _case(seed)) is not None]
    missed = [case for case in cases if case.usd_per_h is None and case.truth.usd_per_h is not None]
    only = [case for case in cases if case.usd_per_h is not None and case.truth.usd_per_h is None]
    excesses = [case.excess for case in cases if case.excess is not None]
    rows = [
        ("problems with a plan", len(cases)),
        ("enumeration finds a plan in time", sum(case.truth.usd_per_h is not None for case in cases)),
        ("the search finds none of these", len(missed)),
        ("only the search finds a plan in time (operators split over pools)", len(only)),
        ("as cheap as enumerated", sum(abs(excess) <= SAME for excess in excesses)),
        ("cheaper (operators split over pools)", sum(excess < -SAME for excess in excesses)),
        ("dearer", sum(excess > SAME for excess in excesses)),
        ("largest excess %", f"{100 * max(excesses, default=0.0):.2f}"),
        ("median seconds, simulations included", f"{statistics.median(case.seconds for case in cases):.1f}"),
    ]
    return Result(
        title="Small problems whose p99 target binds: the search beside enumeration",
        topic=Topic.PLANNING,
        method="Random problems of 2 or 3 operators and 2 or 3 pools (benchmarks/middle/problems.py); the target is 35 "
        f"to 95 % of the cheapest plan's simulated p99. Seeds {SEEDS.start} to {SEEDS.stop - 1} were not used before.",
        reference="all plans with each operator in one pool, all groupings by worker and all numbers of workers, "
        "simulated from the cheapest up until one meets the target.",
        tables=(Table.of(("", "count"), rows),),
        notes=tuple(f"Missed: seed {case.seed} ({case.truth.usd_per_h:.4g} USD/h)." for case in missed),
    )


def _case(seed: int) -> _Case | None:
    """None if the problem of a seed has no plan, or its truth takes too long."""
    problem = binding_problem(seed, TINY)
    truth = None if problem is None else cheapest_in_time(problem)
    if problem is None or truth is None:
        return None
    started = time.perf_counter()
    usd_per_h = plan_cost(problem)
    return _Case(seed, usd_per_h, truth, time.perf_counter() - started)


def plan_cost(problem: Problem) -> float | None:
    """USD per hour of the plan that `jellybean plan` would choose; None without one."""
    settled = settle(problem, solve(problem, explained=False), 1e-3, None)
    plan = settled.solution.plan
    return None if plan is None or settled.reasons else plan.cost.total_usd_per_h
