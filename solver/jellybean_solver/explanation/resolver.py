"""Solves changed problems one by one, within a time limit, and checks the limits that the solver does not model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from jellybean_solver.baseline.quick_solution import quick_solution
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.explanation.counterfactuals import Resolved, is_better
from jellybean_solver.figures import distinct_durations
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.latency.estimate import p99_by_workflow
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import COST_TOLERANCE, Clock
from jellybean_solver.planning.solve import solve
from jellybean_solver.planning.solver import Solution, limited

RULE_S = 1.0  # for a plan by a simple rule, where the search found none in its time


@dataclass(frozen=True, slots=True)
class DeadlineResult:
    """A `solution` whose plan meets the p99 target; or None, and the plan that came nearest to it."""

    solution: Solution | None
    nearest: Plan | None = None


# Arguments: problem, its solution, whether that misses the p99 target, time limit in seconds (or None), thorough.
KeepDeadline = Callable[[Problem, Solution, bool, float | None, bool], DeadlineResult]


@dataclass(frozen=True)
class ResolveSettings:
    """Settings of the counterfactual solves.

    A time limit needs a clock. `advance(done, total, label)` reports progress, counted in questions. `p99_s(plan,
    seed)` simulates the p99 latency in seconds by workflow (a single workflow has the name ""); without it, latencies
    are estimated in closed form. For the explained plan the p99 is the median over `seeds`, or over as many as half of
    the time allows. `keep_deadline` finds another plan if the cheapest misses a p99 target; it is always called for the
    explained plan. `exclusive`: groups of exclusive pools, see `requirements`. `estimated_below`: an alternative is not
    simulated if its p99 latency in closed form is at most this share of the target.
    """

    time_limit_s: float | None = None
    clock: Callable[[], float] | None = None
    p99_s: Callable[[Plan, int], Mapping[str, float]] | None = None
    seeds: int = 5
    keep_deadline: KeepDeadline | None = None
    advance: Callable[[float, float, str], None] = lambda done, total, label: None
    exclusive: tuple[tuple[str, ...], ...] | None = None
    patience: float = 4.0  # time limit of a solve, in equal shares of the time left: most need much less than one
    conflict_solves: int = 60  # most solves in search of a smaller conflict
    estimated_below: float = 0.0


Resolve = Callable[[Problem, str], Resolved]  # (problem, label shown as progress) -> result


class Resolver:
    """Solves changed problems one by one; after the time limit every further result is unknown."""

    def __init__(self, settings: ResolveSettings) -> None:
        self.settings = settings
        self.done, self.expected, self.unanswered = 0, 1, 0
        self._limit = limited(settings.time_limit_s, settings.clock)
        self._p99_s: dict[object, Mapping[str, float]] = {}

    @property
    def solved(self) -> int:
        """Number of conclusive solves."""
        return self.done - self.unanswered

    @property
    def has_time(self) -> bool:
        """False once every further result is unknown."""
        return self._limit.left() != 0.0

    def expect(self, questions: int) -> None:
        """Announce further solves, among which the remaining time is divided."""
        self.expected += questions

    def expect_only(self, questions: int) -> None:
        """State the number of further solves, whatever was announced: some parts turn out to need more or fewer."""
        self.expected = self.done + questions

    def ask(
        self, problem: Problem, label: str, *, thorough: bool = False, explained: bool = True, valid: Plan | None = None
    ) -> Resolved:
        """Solve, and check limits that the solver does not model.

        `thorough`: for the explained plan, with more time; if the search finds none in it, one by a simple rule.
        `explained`: also find the reasons of infeasibility, which takes several solves. `valid`: a plan known to keep
        all limits of the problem; if none is cheaper, it is the answer, and nothing is simulated.
        """
        self.expected = max(self.expected, self.done + 1)
        self.settings.advance(self.done, self.expected, label)
        answer = self._answer(problem, thorough, explained, valid)
        self.done += 1
        self.unanswered += answer.status == "unknown"
        self.settings.advance(self.done, self.expected, label)
        return answer

    def p99_s(self, plan: Plan, workflow: str = "", *, thorough: bool = False) -> float | None:
        """A plan's simulated p99 latency in seconds; None without a simulator or time for it. Cached per plan.

        With `thorough` (the explained plan) at least one simulation runs, even if time is up.
        """
        if self.settings.p99_s is None:
            return None
        routes = tuple((route.weight, tuple(route.workers.items())) for route in plan.routes)
        rates = tuple(source.rate_per_s for source in plan.sources)
        models = tuple((one.name, one.variant, tuple(one.batch.items())) for one in plan.variants)
        runs = tuple(tuple(worker.variants.items()) for worker in plan.workers)
        key = (thorough, models, runs, routes, rates)
        if key not in self._p99_s:
            if not thorough and self._limit.left() == 0.0:
                return None
            found = [self.settings.p99_s(plan, 0)]
            while thorough and len(found) < self.settings.seeds and not self._half_spent():
                found.append(self.settings.p99_s(plan, len(found)))
            self._p99_s[key] = {name: median(one[name] for one in found) for name in found[0]}
        return self._p99_s[key][workflow]

    def _half_spent(self) -> bool:
        left_s, limit_s = self._limit.left(), self.settings.time_limit_s
        return left_s is not None and limit_s is not None and left_s <= limit_s / 2

    def _answer(self, problem: Problem, thorough: bool, explained: bool, valid: Plan | None) -> Resolved:
        limit_s, now = self._allowed_s(thorough), self.settings.clock
        gap = None if problem.is_for_ways else DEFAULT_GAP
        try:
            if limit_s == 0.0:
                raise OutOfTimeError("time ended before this was looked at")
            solution = solve(problem, gap=gap, time_limit_s=limit_s, clock=now, explained=explained)
        except SolverError as error:
            if limit_s is None or now is None:
                raise
            rule = quick_solution(problem, Clock(now, now() + RULE_S)) if thorough else None
            if rule is None or rule.plan is None:
                return Resolved("unknown", None, str(error))
            solution = rule
        if solution.plan is None:
            return _without_plan(problem, solution)
        if valid is not None and not is_better(solution.plan, valid) and any(problem.deadlines_s.values()):
            proof = valid.certificate.bounded_by(solution.plan.certificate)
            return Resolved(solution.status, replace(valid, certificate=proof))
        cheapest = self._within_deadline(problem, solution, solution.plan, thorough)
        return self._settled(problem, solution, cheapest, thorough)

    def _settled(self, problem: Problem, solution: Solution, cheapest: Resolved, thorough: bool) -> Resolved:
        late, bears = cheapest.status == "refused", bool(problem.survives) and cheapest.holds
        if self.settings.keep_deadline is None or not (thorough or late or bears):
            return cheapest
        allowed_s = self._allowed_s(thorough)
        if allowed_s == 0.0:
            return cheapest
        settled = self.settings.keep_deadline(problem, solution, late, allowed_s, thorough)
        found = settled.solution
        if found is not None and found.plan is not None:
            return Resolved(found.status, found.plan)
        return replace(cheapest, plan=settled.nearest or cheapest.plan)

    def _within_deadline(self, problem: Problem, solution: Solution, plan: Plan, thorough: bool) -> Resolved:
        for name, target_s in problem.deadlines_s.items():
            if target_s is None or self.settings.p99_s is None:
                continue
            if not thorough and p99_by_workflow(plan)[name] <= self.settings.estimated_below * target_s:
                continue
            p99_s = self.p99_s(plan, name, thorough=thorough)
            if p99_s is None:
                return Resolved("unknown", None, "time ended before its p99 latency was simulated")
            if p99_s > target_s:
                of = f" of {name}" if name else ""
                would = "would be {}, above {}".format(*distinct_durations(p99_s, target_s))
                return Resolved("refused", plan, f"the cheapest plan's p99 latency{of} {would}")
        return Resolved(solution.status, plan)

    def _allowed_s(self, thorough: bool) -> float | None:
        left_s = self._limit.left()
        if left_s is None:
            return None
        return left_s / 2 if thorough else min(left_s, self.settings.patience * left_s / (self.expected - self.done))


def _without_plan(problem: Problem, solution: Solution) -> Resolved:
    why = solution.infeasibility
    if why is None:
        return Resolved("infeasible", None, "no plan meets the targets")
    reason = why.reasons[0] if why.reasons else "no plan meets the targets"
    budget = problem.slo.budget_usd_per_h
    bound = solution.certificate.bound if solution.certificate is not None else -math.inf
    unaffordable = budget is not None and bound > budget * (1 + COST_TOLERANCE)  # proven: no plan keeps the budget
    if not why.breaches or unaffordable:
        return Resolved("infeasible", None, reason, why)
    return Resolved("refused", why.refused, "; ".join(why.breaches), why)
