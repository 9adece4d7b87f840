"""`solve`: the cheapest plan that meets all targets, with a certificate, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from jellybean_solver.deadline.fleet_proposals import FleetProposals
from jellybean_solver.deadline.late_counts import NO_COUNTS, LateCounts
from jellybean_solver.deadline.link_headroom import HeadroomSearch
from jellybean_solver.deadline.lower_bound import LATENCY_TOLERANCE, least_cost_in_time, least_latency_s
from jellybean_solver.deadline.restriction import Restriction
from jellybean_solver.deadline.search import Deadline, DeadlineSearch
from jellybean_solver.deadline.slowest_path import SlowestPath
from jellybean_solver.decomposition.work import Tell
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.dispatch import DEFAULT_GAP, default_gap, has_many_places, is_large
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock, Outcome, termination_of
from jellybean_solver.planning.form_search import best_of_forms
from jellybean_solver.planning.infeasibility import LATE, too_slow
from jellybean_solver.planning.many_in_time import in_time
from jellybean_solver.planning.many_workflows import has_many_workflows, solve_many
from jellybean_solver.planning.mixed import solve_mixed
from jellybean_solver.planning.solver import Solution, certified, cheapest, cheapest_solution, finish, limited
from jellybean_solver.small.assignment import Assignment

FREE_SHARE = 0.4  # of the time, for a plan without the limits of resources, which may be within them


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """The keyword arguments of `solve` as one value. `explained`: give the reasons if there is no plan.

    `tell`: hears how far the search of many workflows is: the share that is done, and what is known. `start`: under a
    deadline, the solution without regard to it, if it is known; for problems whose plans are not found by ways.
    """

    gap: float | None = None
    time_limit_s: float | None = None
    clock: Callable[[], float] | None = None
    explained: bool = True
    deadline: Deadline | None = None
    tell: Tell = lambda share, known: None
    start: Solution | None = None


def solve(
    problem: Problem,
    *,
    gap: float | None = None,
    time_limit_s: float | None = None,
    clock: Callable[[], float] | None = None,
    explained: bool = True,
    p99_s: float | None = None,
    deadline: Deadline | None = None,
) -> Solution:
    """The cheapest plan that meets the accuracy target at the problem's rates, or the reasons why there is none.

    `explained=False` leaves the reasons out, which is faster. With `p99_s`, or a `deadline` whose judge decides, the
    plan also meets that p99 latency; with several workflows each one its share of it (deadline_shares.py).

    `gap`: the relative gap at which the search on a large problem stops, by default `DEFAULT_GAP` for large fleets and
    under a deadline, `DECOMPOSED_GAP` for many workflows without a deadline, else 0.
    Small problems are always solved to the end.
    `clock` gives seconds from any origin (such as time.monotonic) and is needed with a time limit. SolverError if
    time ends before any plan was found.
    """
    if deadline is None and p99_s is not None:
        deadline = Deadline(p99_s)
    return solve_with(problem, SolveOptions(gap, time_limit_s, clock, explained, deadline))


def solve_with(problem: Problem, options: SolveOptions, limit: Clock | None = None) -> Solution:
    """As `solve`, with its keyword arguments in `options`. `limit`: in place of their time limit."""
    limit = limit or limited(options.time_limit_s, options.clock)
    if not problem.has_forms:
        return _solve_whole(problem, options, limit)

    def of_choice(changed: Problem, within: Clock, explained: bool) -> Solution:
        return _solve_whole(changed, replace(options, explained=explained, start=None), within)

    return best_of_forms(problem, gap=options.gap, limit=limit, explained=options.explained, solve_one=of_choice)


def _solve_whole(problem: Problem, options: SolveOptions, limit: Clock) -> Solution:
    """The solution of a problem without forms until the `limit`.

    If the cheapest plan without limits of resources is within them, it is that one.
    """
    without = replace(problem, most={})
    if problem.most and not without.is_for_ways:
        with suppress(OutOfTimeError):
            free = _solve_one_kind(without, options, limit.share(FREE_SHARE))
            if free.plan is None or not evaluate(problem, free.plan).breaches:
                return free
    return _solve_one_kind(problem, options, limit)


def _solve_one_kind(problem: Problem, options: SolveOptions, limit: Clock) -> Solution:
    """The same by the search for the kind of problem."""
    gap, deadline, explained = options.gap, options.deadline, options.explained
    if problem.is_for_ways or (problem.may_leave_out and deadline is not None):
        solve_one = partial(solve_within, options, limit)
        return solve_mixed(problem, deadline, gap=gap, limit=limit, explained=explained, solve_one=solve_one)
    if problem.may_leave_out or has_many_workflows(problem):
        known = options.start
        solution = known or solve_many(problem, gap, limit, explained=explained, tell=options.tell)
        if deadline is None:
            return solution

        def solve_few(few: Problem, share: float) -> Solution:
            longest_s = few.deadline_s
            within = None if longest_s is None else Deadline(share * longest_s, settings=deadline.settings)
            return solve_with(few, replace(options, deadline=within, start=None), limit)

        return in_time(problem, solution, deadline, limit, solve_few)
    if gap is None:
        gap = default_gap(Network(problem)) if deadline is None else DEFAULT_GAP
    if deadline is None:
        return cheapest_solution(problem, gap, limit, explained=explained)
    return _DeadlineSolver(problem, deadline, gap, limit).run(options.start, explained=explained)


def solve_within(options: SolveOptions, limit: Clock, problem: Problem) -> Solution:
    """As `solve_with`, in the time that is left, and without reasons if there is no plan."""
    return solve_with(problem, replace(options, explained=False), limit)


class _DeadlineSolver:
    """Solves a problem with a p99 target, and proposes plans (`Proposals`) for small problems."""

    def __init__(self, problem: Problem, deadline: Deadline, gap: float, limit: Clock) -> None:
        self.problem, self.deadline, self.gap, self.limit = problem, deadline, gap, limit
        budget = problem.slo.budget_usd_per_h
        self.budget = math.inf if budget is None else budget
        self.limits = SearchLimits(gap, limit, self.budget)
        self.bound = 0.0

    def run(self, start: Solution | None, *, explained: bool) -> Solution:
        """The cheapest plan in time; `start`: the solution without the target, if it is known."""
        if least_latency_s(self.problem) > self.deadline.p99_s * (1 + LATENCY_TOLERANCE):
            solution = cheapest_solution(self.problem, self.gap, self.limit, explained=explained)
            return solution if solution.plan is None else self._too_slow(solution, proven=True)
        if has_many_places(Network(self.problem)) and not self.problem.varying:
            return self.solve_fleet(explained=explained)
        return self.solve(start, explained=explained)

    def solve(self, start: Solution | None, *, explained: bool) -> Solution:
        """Solve a small problem; the search starts from the cheapest plan without the target, if known `start`."""
        limit = self.limit.share(self.deadline.settings.first_share)
        solution = start or cheapest_solution(self.problem, self.gap, limit, explained=explained)
        if solution.plan is None:
            return solution
        search = DeadlineSearch(self.problem, self.deadline, solution.plan, self.limit, self._is_near)
        if search.incumbent is not None:
            return solution
        self._raise_bound(solution.plan)
        if math.isinf(self.bound):
            return self._too_slow(solution, proven=True)
        settings = self.deadline.settings
        found = search.run(self, most=settings.proposals, improvements=settings.improvements)
        if search.incumbent is not None and not self._is_near(search.cutoff()):
            self._raise_bound(solution.plan, LateCounts(search.meets, settings.counted, search.cutoff()))
        return self._solution(solution, search.incumbent, late=found.out_of_time)

    def solve_fleet(self, *, explained: bool) -> Solution:
        """Solve a large problem; the search starts from the cheapest plan with headroom on links.

        Simulating a fleet takes long, so the judge sees only final answers; the others are estimated.
        """
        judge, settings = self.deadline.judge, self.deadline.settings
        refused: Solution | None = None
        for share in settings.fleet_judgements:
            solution = self._solve_fleet(share * self.deadline.p99_s, explained=explained and refused is None)
            if solution.plan is None:
                return refused or solution
            if judge is None or judge(solution.plan) <= 1.0:
                return solution
            refused = self._too_slow(solution)
            if self.limit.left() == 0.0:
                break
        return refused or solution

    def _solve_fleet(self, p99_s: float, *, explained: bool) -> Solution:
        deadline = Deadline(p99_s, settings=self.deadline.settings)
        headroom = HeadroomSearch(self.problem, deadline, self.limits, _planned)
        first = headroom.run()
        if first is None:
            return cheapest_solution(self.problem, self.gap, self.limit, explained=explained)
        if p99_s == self.deadline.p99_s:
            self.bound = max(self.bound, headroom.bound)
        solution = Solution(first, None, headroom.tried)
        best, late = headroom.best, self.limit.left() == 0.0
        if best is not None and (late or self._is_near(best.cost.total_usd_per_h)):
            return self._solution(solution, best, late=late)
        search = DeadlineSearch(self.problem, deadline, first, self.limit, self._is_near)
        if headroom.best is not None:
            search.offer(headroom.best, 1.0)
        if search.incumbent is None:
            self._raise_bound(first)
            if math.isinf(self.bound):
                return self._too_slow(solution, proven=True)
        settings, proposals = deadline.settings, FleetProposals(self.problem, deadline, self.limits, _planned, self)
        found = search.run(proposals, most=settings.fleet_proposals, improvements=settings.fleet_improvements)
        if found.plan is not None and p99_s == self.deadline.p99_s:
            self.bound = max(self.bound, headroom.prove(found.plan.cost.total_usd_per_h * (1.0 - self.gap)))
        return self._solution(solution, found.plan, late=found.out_of_time)

    def propose(self, restriction: Restriction, budget: float) -> Plan | None:
        """As `Proposals` has it."""
        network, target = restriction.network(self.problem), self.problem.accuracy_target
        most = min(budget, self.budget)
        limit = self.limit.share(self.deadline.settings.proposal_share)
        outcome = cheapest(network, target, gap=self.gap, clock=limit, budget=most)
        return _planned(network, outcome) if outcome.found is not None else None

    def branch(self, plan: Plan, slowness: float, restriction: Restriction) -> Iterable[Restriction]:
        """As `Proposals` has it."""
        return SlowestPath(self.problem, plan).restrictions(restriction, slowness, self.deadline.settings)

    def _raise_bound(self, first: Plan, late: LateCounts = NO_COUNTS) -> None:
        least = least_cost_in_time(self.problem, self.deadline.p99_s, first, self.limits, late)
        self.bound = max(self.bound, first.certificate.bound, least)

    def _is_near(self, cost: float) -> bool:
        gap = self.gap if is_large(Network(self.problem)) else 0.0
        return cost * (1.0 - max(gap, VALUE_TOLERANCE)) <= self.bound

    def _solution(self, cheapest: Solution, plan: Plan | None, *, late: bool) -> Solution:
        """The solution of a search, or why it found none; `cheapest`: the solution without the latency target."""
        if plan is None:
            if late:
                raise OutOfTimeError(LATE)
            return self._too_slow(cheapest)
        plan = evaluate(self.problem, plan).checked(plan)
        value, bound = plan.cost.total_usd_per_h, self.bound
        proof = cheapest.certificate if self.deadline.judge is not None else None
        if proof is not None and latency(plan).unqueued_s > self.deadline.p99_s:
            bound = proof.bound  # this plan meets the target by the judge only; the deadline rows would exclude it
        ended = termination_of(value, bound, gap=self.gap, out_of_time=late)
        return Solution(certified(plan, bound, ended), None, cheapest.selections_tried)

    def _too_slow(self, cheapest: Solution, *, proven: bool = False) -> Solution:
        """The solution without a plan in time; `cheapest`: the one without the latency target."""
        bound = math.inf if proven else self.bound
        refused = too_slow(self.problem, self.deadline.p99_s, cheapest.plan, bound, proven=proven)
        return Solution(None, refused, cheapest.selections_tried)


def _planned(network: Network, outcome: Outcome[Assignment]) -> Plan | None:
    plan, evaluation = finish(network, outcome)
    return None if evaluation.complaints else plan
