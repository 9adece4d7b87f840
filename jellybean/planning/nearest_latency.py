"""The least p99 latency that any plan is found to reach, where no plan meets the target.

The search for a plan in time prunes by its target, so the best plan that it saw may be far from the best there is. This
one minimises the simulated p99: it starts from the plans that are fastest without queues (`fast_plans`), and then asks
the deadline search again and again for a p99 below the least one, until it finds none, or has tried `MOST_TRIED`
restrictions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jellybean.display import formats
from jellybean.planning.predicted_latency import Judged, quick_judgement
from jellybean.planning.simulation import SEEDS
from jellybean_solver import (
    DEFAULT_SETTINGS,
    Cuts,
    Deadline,
    Network,
    Plan,
    Problem,
    SolveOptions,
    SolverError,
    fast_plans,
    is_large,
    limited,
    solve_cut,
)

SAME = 1e-6  # relative difference below which two costs or latencies count as equal

# Shares of the least p99 known that are asked for in turn, the next one whenever no plan is found. On digits and vqa
# with a target of 40 ms more or other steps find nothing faster, and cost a second each.
STEPS = (0.6, 0.8, 0.93)
EFFORT = replace(DEFAULT_SETTINGS, proposals=12, improvements=0, judged_above=3.2)

# Restrictions tried, each of which is a solve, and a simulation if it gives a plan that may be faster. Nobody asked for
# the least p99, so its search takes at most as many as the one for a plan in time. A search of a fleet counts as the
# plans that it may propose.
MOST_TRIED = DEFAULT_SETTINGS.proposals

Progress = Callable[[float, float, str], None]  # progress callback with the arguments done, total, label


@dataclass(frozen=True, slots=True)
class Nearest:
    """`plan`: the plan of least p99 among all that were simulated, `simulated` in number.

    `ended_by`: the limit that ended the search for it, in words; empty if it ended by itself.
    """

    plan: Plan
    simulated: int
    ended_by: str


class SimulationJudge:
    """Simulates the plans that the solver's search proposes.

    `fastest`: the plan with the smallest `slowness` (p99 latency as a multiple of the target); `simulated`: how many.
    """

    def __init__(self, cheapest: Plan, judged: Judged, most: int = SEEDS) -> None:
        """`cheapest`: the plan that misses its p99 target; `judged`: its latencies; `most`: simulations of a plan."""
        self.most = most
        self.cheapest = self.fastest = cheapest
        self.slowness = self.first_slowness = judged.share
        self.simulated = 1

    def __call__(self, plan: Plan) -> float:
        if _same(plan, self.cheapest):
            return self.first_slowness
        judged = quick_judgement(plan, most=self.most)
        if judged is None:
            return 0.0
        self.simulated += 1
        if judged.share < self.slowness:
            self.fastest, self.slowness = plan, judged.share
        return min(1.0, judged.share) if judged.kept else max(1.0 + SAME, judged.share)

    def nearest(self, target_s: float) -> str:
        """What is known so far, as a sentence."""
        cost = formats.usd(self.fastest.cost.total_usd_per_h)
        p99 = formats.duration(self.slowness * target_s)
        return f"least p99 so far {p99} for {cost} USD/h ({plans(self.simulated)} simulated)"


def nearest_latency(
    problem: Problem,
    cuts: Cuts,
    judge: SimulationJudge,
    target_s: float,
    gap: float,
    time_limit_s: float | None,
    progress: Progress,
) -> Nearest:
    """Search the plan of least p99 latency; `judge` knows the plans that were simulated before, and simulates."""
    clock = limited(time_limit_s, time.monotonic)
    counted = _Counted(MOST_TRIED)
    each = EFFORT.fleet_proposals if is_large(Network(problem)) else 1
    progress(0, len(STEPS) + 1, judge.nearest(target_s))
    for plan in fast_plans(problem, clock):
        judge(plan)
    for number, share in enumerate(STEPS, 1):
        progress(number, len(STEPS) + 1, judge.nearest(target_s))
        while judge.slowness > 1.0 and clock.left() != 0.0 and counted.left > 0:
            aim = max(1.0, share * judge.slowness)
            effort = replace(EFFORT, proposals=min(EFFORT.proposals, counted.left))
            deadline = Deadline(aim * target_s, lambda plan, aim=aim: judge(plan) / aim, effort, counted)  # type: ignore[misc]
            before = counted.left
            try:
                solve_cut(problem, cuts, SolveOptions(gap, clock.left(), time.monotonic, False, deadline))
            except SolverError:
                break
            counted.left = min(counted.left, before - each)
            if judge.slowness > aim:
                break
    ended_by = "the time limit" if clock.left() == 0.0 else ""
    if counted.left <= 0 and judge.slowness > 1.0:
        ended_by = ended_by or f"its limit of {MOST_TRIED} tries"
    return Nearest(judge.fastest, judge.simulated, ended_by)


class _Counted:
    """Counts the restrictions that deadline searches try, as their `advance`. `left`: may still be tried."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, done: float, most: float) -> None:
        self.left -= 1


def plans(count: int) -> str:
    """`1 plan`, `9 plans`."""
    return f"{count} plan{'s' * (count != 1)}"


def _same(one: Plan, other: Plan) -> bool:
    """True if two plans are equal except for their optimality certificates and targets."""
    return replace(one, certificate=other.certificate, slo=other.slo) == other
