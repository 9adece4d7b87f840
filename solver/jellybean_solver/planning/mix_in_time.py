"""The best mixture under a p99 target: by descent (mode_search.py), without slow variants, or of one selection."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from jellybean_solver.deadline.lower_bound import LATENCY_TOLERANCE, least_latency_by_variant
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.mixture.modes import NO_LIMITS
from jellybean_solver.model.loss import Loss, judged_losses, losses, plan_after, survivors, with_less_left
from jellybean_solver.model.multi_workflow import of_one_selection, of_promised
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.targets import LossKind
from jellybean_solver.planning.infeasibility import LATE, too_slow
from jellybean_solver.planning.mix_search import MixSearch
from jellybean_solver.planning.mode_search import ModeSearch, estimated_slowness
from jellybean_solver.planning.one_selection import best_of_one_selection
from jellybean_solver.planning.solver import Solution

PARTS_LEFT = (1.0, 0.75, 0.5, 0.25, 0.0)  # of what does not survive; each is a simulation of every loss at most
SolveOne = Callable[[Problem], Solution]  # the cheapest plan in time of a problem that does not mix variants


def deadline_of(level: Problem, problem: Problem, deadline: Deadline) -> Deadline | None:
    """The deadline of a part of a problem's workflows; None if none of them has one."""
    longest_s, own_s = problem.deadline_s, level.deadline_s
    if longest_s is not None and own_s is None:
        return None
    if longest_s is not None and own_s is not None:
        deadline = replace(deadline, p99_s=deadline.p99_s * own_s / longest_s)
    return deadline


class _JudgeOfLosses:
    """Judges plans that must be in time after each loss, too: the slowest of these cases counts.

    What does not survive a loss gets as much of what is left as leaves the others in time: a plan is not late for it.
    A soft target promises nothing about the hours after a loss: its penalty is a price of the usual ones.
    """

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        self.problem, self.judge = problem, deadline.judge or self._estimate
        self._deadline = deadline

    def _estimate(self, plan: Plan) -> float:
        return estimated_slowness(self.problem, plan, self._deadline)

    def __call__(self, plan: Plan) -> float:
        """The slowness of a plan, with everything there and after each loss."""
        slowest = self.judge(plan)
        for loss in judged_losses(plan):
            if slowest > 1.0:
                break
            after = self._after(plan, loss, 1.0)
            is_partial = len(survivors(self.problem, plan, loss)) < len(self.problem.slo_by_workflow)
            if after > 1.0 and is_partial:
                after = self._after(plan, loss, 0.0)
            slowest = max(slowest, after)
        return slowest

    def _after(self, plan: Plan, loss: Loss, part: float) -> float:
        """The slowness after a loss, if what does not survive it gets a part of what the plan leaves to it."""
        less = plan if part == 1.0 else with_less_left(self.problem, plan, {loss: part})
        left = plan_after(self.problem, less, loss)
        if left is None:
            return math.inf
        promised = of_promised(left)
        return 0.0 if promised.deadline_s is None else self.judge(promised)

    def with_what_is_left(self, plan: Plan) -> Plan:
        """A plan in time with the largest parts for what does not survive; of worker's losses the least of them."""
        parts: dict[Loss, float] = {}
        for loss in judged_losses(plan):
            tried = (part for part in PARTS_LEFT if part == PARTS_LEFT[-1] or self._after(plan, loss, part) <= 1.0)
            parts[loss] = next(tried)
        if all(part == 1.0 for part in parts.values()):
            return plan
        least = min((part for loss, part in parts.items() if loss.kind is LossKind.WORKER), default=1.0)
        every = losses(plan, self.problem.survives)
        workers = {loss: least for loss in every if loss.kind is LossKind.WORKER}
        return with_less_left(self.problem, plan, {**parts, **workers})


def solve_in_time(search: MixSearch, first: Plan, deadline: Deadline, solve_one: SolveOne) -> Solution:
    """The best plan found that meets a p99 target; `first` is the best one without it."""
    losing = _JudgeOfLosses(search.problem, deadline) if search.problem.survives else None
    deadline = deadline if losing is None else replace(deadline, judge=losing)
    plan: Plan | None = None
    for own, start in _starts(search, first, deadline.p99_s):
        found = ModeSearch(own.problem, own.propose, own.value, deadline, own.limit).run(start)
        search.tried, plan = own.tried, found.in_time
        if plan is not None:
            break
    if plan is None and search.problem.may_mix:
        plan = _of_one_selection(search, deadline, solve_one)
    late = search.limit.left() == 0.0
    if plan is not None:
        return search.solution(plan if losing is None else search.scored(losing.with_what_is_left(plan)), late=late)
    if late:
        raise OutOfTimeError(LATE)
    refused = too_slow(search.problem, deadline.p99_s, search.solution(first).plan, search.bound, proven=False)
    return Solution(None, refused, search.tried)


def _starts(search: MixSearch, first: Plan, p99_s: float) -> Iterator[tuple[MixSearch, Plan]]:
    """The search with its best plan at any p99; then one without the variants that are late with zero queueing delay.

    If no mixture is left without these, some of them are allowed, the fastest first: then the judge sees how fast plans
    can be. There is no second search if all variants are allowed, as it would be the same.
    """
    yield search, first
    used, least_s = {instance for instance, _ in search.table.busy}, least_latency_by_variant(search.problem)
    longer = {seconds for instance, seconds in least_s.items() if instance in used and seconds > p99_s}
    for allowed_s in (p99_s, *sorted(longer)):
        kept = {instance for instance in used if least_s[instance] <= allowed_s * (1.0 + LATENCY_TOLERANCE)}
        if kept == used or search.limit.left() == 0.0:
            return
        fewer = copy.copy(search)
        fewer.table = search.table.using(kept)
        plan = fewer.propose(NO_LIMITS)
        if plan is not None:
            yield fewer, plan
            return


def _of_one_selection(search: MixSearch, deadline: Deadline, solve_one: SolveOne) -> Plan | None:
    """The best plan found in time that gives all requests the same selection; None if there is none."""

    def plan_one(asked: Problem) -> Plan | None:
        try:
            solution = solve_one(asked)
        except OutOfTimeError:
            return None
        search.tried += solution.selections_tried
        if solution.plan is None:
            return None
        plan = search.scored(replace(solution.plan, slo=search.problem.slo))
        judge = deadline.judge or (lambda one: estimated_slowness(search.problem, one, deadline))
        return None if plan.spread and judge(plan) > 1.0 else plan  # spread children queue elsewhere

    if search.problem.workflows:  # the most accurate plan would be asked of this search again
        return plan_one(replace(of_one_selection(search.problem), objective=Objective.COST))
    return best_of_one_selection(search.problem, search.accuracies, plan_one, search.value)
