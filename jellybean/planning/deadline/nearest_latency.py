"""The least p99 target for which a plan is found, where none meets the given one.

Bisection over targets on a logarithmic scale. Each target is given to the search that the command `plan` makes for it,
so that what is named here is what that command finds: the same plan at the same cost. While the range narrows, a search
ends at its first plan in time, whose simulated p99 is the new upper end; only the last one minimises the cost. Plans
that are proposed again are not simulated again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from jellybean.display import formats
from jellybean.planning.deadline.predicted_latency import accepted_p99_s, latency_breach, simulated_figures
from jellybean.planning.deadline.simulation_judge import (
    FIRST_IN_TIME,
    Progress,
    SimulationJudge,
    solve_in_time,
    with_longest_target,
    with_targets_of,
)
from jellybean_solver import (
    DEFAULT_SETTINGS,
    Deadline,
    DeadlineSettings,
    Judge,
    Network,
    Objective,
    Plan,
    Problem,
    SolveOptions,
    SolverError,
    deadline_s,
    is_large,
    least_latency_s,
    limited,
    of_one_selection,
)

PRECISION = 0.05  # relative width at which the bisection ends: p99s of one plan with other seeds differ that much
FLEET_SEARCHES = 3  # targets tried for a fleet, whose searches take minutes; nobody asked for this answer


@dataclass(frozen=True, slots=True)
class Nearest:
    """The cheapest `plan` found for `targeted`, which is the problem with the least p99 targets that have a plan.

    `refused_s`: the highest target without a plan. `ended_by`: the limit that ended the search, in words; empty if it
    ended by itself.
    """

    plan: Plan
    targeted: Problem
    refused_s: float
    ended_by: str


class NearestLatency:
    """Searches the least p99 target that a plan meets. `judge` has simulated the `cheapest` plan, which is too slow.

    `low_s`, `high_s`: ends of the range of targets in seconds: no plan was found for one, a plan meets the other.
    """

    def __init__(
        self,
        problem: Problem,
        cheapest: Plan,
        judge: SimulationJudge,
        gap: float,
        time_limit_s: float | None,
        progress: Progress,
    ) -> None:
        self.problem, self.judge, self.gap, self.progress = problem, judge, gap, progress
        self.clock, self.target_s = limited(time_limit_s, time.monotonic), deadline_s(problem) or 0.0
        self.low_s = max(self.target_s, least_latency_s(problem))
        self.fastest, self.high_s = judge.fastest, judge.fastest_s
        self.cheapest, self.ended_by = cheapest, ""

    def run(self) -> Nearest | None:
        """Narrow the range, then minimise the cost at its upper end; None if no plan is known to have a finite p99.

        That is where time ended before a simulation, as the closed form has none for full links. Where plans may mix
        variants the range is that of plans of one selection, which take less time to search: the search of mixtures is
        given its upper end.
        """
        if math.isinf(self.high_s):
            return None
        if not self.problem.may_mix:
            self._narrow()
        elif self.problem.objective is Objective.COST:
            self._narrow_one_selection()
        if self.high_s <= self.target_s:
            plan = with_targets_of(self.problem, self.fastest)
            if latency_breach(plan) is None:
                return Nearest(plan, self.problem, self.low_s, self.ended_by)
        for seconds in self._candidates():
            targeted = with_longest_target(self.problem, seconds)
            named = self._search(targeted, DEFAULT_SETTINGS, self.judge)
            if named is not None:
                return Nearest(named, targeted, self.low_s, self.ended_by)
            if self.clock.left() == 0.0:
                self.ended_by = "the time limit"
                break
            self.low_s = max(self.low_s, seconds)
        plan = self.fastest if self.ended_by else self.cheapest
        accepted_s = self._accepted_s(plan)
        if math.isinf(accepted_s):
            return None
        targeted = with_longest_target(self.problem, accepted_s)
        return Nearest(with_targets_of(targeted, plan), targeted, self.low_s, self.ended_by)

    def _narrow(self) -> None:
        """Bisect until the range is narrow, or a limit ends it.

        The range is empty where no plan has the accuracy: then no latency is possible.
        """
        if self.low_s >= self.high_s:
            return
        steps = math.ceil(math.log2(max(2.0, math.log(self.high_s / self.low_s) / math.log1p(PRECISION))))
        most = FLEET_SEARCHES if is_large(Network(self.problem)) else math.inf
        number = 0
        while self.high_s > self.low_s * (1 + PRECISION):
            if self.clock.left() == 0.0:
                self.ended_by = "the time limit"
            elif number >= most:
                self.ended_by = f"its limit of {FLEET_SEARCHES} searches"
            if self.ended_by:
                return
            seconds = math.sqrt(self.low_s * self.high_s)
            self.progress(min(number, steps), steps + 1, f"{self.judge.summary}; trying {formats.duration(seconds)}")
            targeted = with_longest_target(self.problem, seconds)
            plan = self._search(targeted, FIRST_IN_TIME, partial(self.judge, most=1))
            number += 1
            if plan is None:
                self.low_s = seconds
            else:
                self.fastest, self.high_s = plan, min(seconds, self._first_p99_s(plan))
        self.progress(steps, steps + 1, f"{self.judge.summary}; cheapest plan for {formats.duration(self.high_s)}")

    def _narrow_one_selection(self) -> None:
        """Narrow the range of plans of one selection per workflow; its lower end is theirs alone."""
        single = of_one_selection(self.problem)
        narrower = NearestLatency(single, self.cheapest, self.judge, self.gap, self.clock.left(), self.progress)
        narrower._narrow()
        self.fastest, self.high_s, self.ended_by = narrower.fastest, narrower.high_s, narrower.ended_by

    def _candidates(self) -> Iterator[float]:
        """Targets to be named, in seconds: the p99 of the fastest plan, then longer ones, below that of the cheapest.

        The search may miss the fastest plan, which it found for another target. Steps grow from `PRECISION`.
        """
        least_s, step = self._accepted_s(self.fastest), 1.0 + PRECISION
        seconds = least_s
        while seconds < self._first_p99_s(self.cheapest):
            yield seconds
            seconds, step = step * least_s, step * step

    def _search(self, targeted: Problem, settings: DeadlineSettings, judge: Judge) -> Plan | None:
        """The search's plan for the targets; None if it finds none."""
        deadline = Deadline(deadline_s(targeted) or 0.0, settings=settings)
        options = SolveOptions(self.gap, self.clock.left(), time.monotonic, deadline=deadline)
        try:
            return solve_in_time(targeted, options, judge).plan
        except SolverError:
            return None

    def _first_p99_s(self, plan: Plan) -> float:
        return self.judge.p99_s({name: one.latency_p99_s for name, one in simulated_figures(plan, 0).items()})

    def _accepted_s(self, plan: Plan) -> float:
        return self.judge.p99_s(accepted_p99_s(plan))
