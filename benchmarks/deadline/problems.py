"""Random problems whose p99 latency target binds.

Seeds 540 to 579 were never used while building; the ablation used 600 to 629, and 500 to 539 were looked at.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

from benchmarks.middle.problems import SMALL, Size, middle_problem
from jellybean.planning.predicted_latency import simulated_p99_s
from jellybean_solver import Plan, Problem, SolverError, solve

TINY = Size(operators=(2, 3), variants=(1, 3), pools=(2, 3), most_workers=4, measured_operators=3)
SHARES = (0.35, 0.95)  # of the cheapest plan's p99: the target


def binding_problem(seed: int, size: Size = SMALL, *, time_limit_s: float = 20.0) -> Problem | None:
    """The problem of a seed with a p99 target that its cheapest plan misses in simulation; None if it has no such plan.

    The target is a share of the cheapest plan's simulated p99 latency.
    """
    problem = middle_problem(seed, size)
    problem = replace(problem, slo=replace(problem.slo, latency_p99_s=None))
    try:
        cheapest = solve(problem, explained=False, time_limit_s=time_limit_s, clock=time.monotonic).plan
    except SolverError:
        return None
    if cheapest is None or problem.workflows:
        return None
    rng = random.Random(f"deadline/{seed}")
    p99_s = slowest_p99_s(cheapest)
    if not math.isfinite(p99_s) or p99_s <= 0:
        return None
    return replace(problem, slo=replace(problem.slo, latency_p99_s=rng.uniform(*SHARES) * p99_s))


def slowest_p99_s(plan: Plan) -> float:
    """Simulated p99 latency in seconds with the first seed."""
    return max(simulated_p99_s(plan)[0].values())
