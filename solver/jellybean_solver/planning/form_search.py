"""The best plan over all choices of forms, chosen together with variants and places.

It is the optimum of a union of problems, one for each choice. They are solved in the order of their lower bounds, each
below the best value so far, until no bound is below that value. What a workflow costs at least does not depend on the
forms of others, so the choices of all workflows come in this order without a list of their product.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.dispatch import default_gap
from jellybean_solver.mixture.ways import TooManyWaysError
from jellybean_solver.model.forms import Choice, choices, in_forms, kinds_text, number_of_choices, without_forms
from jellybean_solver.model.least_cost import least_usd_per_h_of_work
from jellybean_solver.model.multi_workflow import single_workflow
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock, Termination, termination_of
from jellybean_solver.planning.admission import by_priority
from jellybean_solver.planning.many_workflows import DECOMPOSED_GAP, has_many_workflows
from jellybean_solver.planning.solver import Solution
from jellybean_solver.small.tree_bounds import lagrangian, prices
from jellybean_solver.time_limit import work_limit

MOST_CHOICES = 512  # of one workflow: those of fewest forms. What the others cost at least is a bound of its own
MOST_SOLVED = 512  # choices of all workflows together
MOST_SOLVED_APART = 8  # where each is a search of many workflows one by one, which may take a minute
TIME_PARTS = 4  # each choice gets that part of the time left, or an equal one if fewer are left


SolveOne = Callable[[Problem, Clock, bool], Solution]  # a problem without forms, until when, and whether to say why not


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice of forms with a lower bound on the value of its plans; None for all those that are not listed."""

    bound: float
    choice: Choice | None


def best_of_forms(
    problem: Problem, *, gap: float | None, limit: Clock, explained: bool, solve_one: SolveOne
) -> Solution:
    """The best solution over all choices of forms; if there is no plan, the reasons are those of none of them.

    `gap`: at which the search ends; None: that of the kind of problem. The bound of an OutOfTimeError holds for all
    choices.
    """

    def of_level(level: Problem, explained: bool) -> Solution:
        if not level.has_forms:
            return solve_one(level, limit, explained)
        return _FormSearch(level, gap, limit, solve_one).run(explained=explained)

    return by_priority(problem, of_level, explained=explained)


class _FormSearch:
    """Best-first search over choices: the incumbent's cost is the budget of the next one."""

    def __init__(self, problem: Problem, gap: float | None, limit: Clock, solve_one: SolveOne) -> None:
        self.problem, self.limit, self.solve_one = problem, limit, solve_one
        self.best: Plan | None = None
        self.bound = math.inf  # least lower bound of the choices solved or pruned so far
        self.tried = 0
        self.late: SolverError | None = None  # it ended the search of one choice
        self.is_accuracy = problem.objective is Objective.MEAN_ACCURACY
        self.most = MOST_SOLVED
        if has_many_workflows(problem):
            self.most, gap = MOST_SOLVED_APART, DECOMPOSED_GAP if gap is None else gap
        self.gap = max(VALUE_TOLERANCE, default_gap(Network(problem)) if gap is None else gap)

    def run(self, *, explained: bool) -> Solution:
        """The best plan with the certificate of all choices, or why there is none."""
        self._walk()
        if self.best is not None:
            return self._answer(self.best)
        if isinstance(self.late, OutOfTimeError):  # its bound is that of one choice
            raise OutOfTimeError(str(self.late), self.bound if math.isfinite(self.bound) else 0.0)
        if self.late is not None:
            raise self.late
        whole = self.solve_one(without_forms(self.problem), self.limit, explained)
        why = whole.infeasibility
        if why is None:  # a plan without forms after all; it has a certificate of its own
            return whole
        ways = number_of_choices(self.problem) - 1
        note = f"that is without a {kinds_text(self.problem)}; with one, none of {ways:,} gives a plan either"
        why = replace(why, reasons=(*why.reasons, note), least_usd_per_h=self.bound)
        return replace(whole, infeasibility=why, selections_tried=self.tried + whole.selections_tried)

    def _walk(self) -> None:
        """Solve choices, lowest bound first, until none can be better, or time or the number of them ends it."""
        most = left = min(self.most, number_of_choices(self.problem))
        for candidate in candidates(self.problem):
            is_last = self._is_near(candidate.bound) or left == 0 or candidate.bound == math.inf
            if not is_last and left < most and self.limit.left() == 0.0:  # each takes time to set up, too
                self.late = OutOfTimeError("time ended before all choices of forms were solved; allow more time", 0.0)
                is_last = True
            if is_last:  # the bounds of those that follow are not lower
                self.bound = min(self.bound, candidate.bound)
                return
            left -= 1
            changed = None if candidate.choice is None else in_forms(self.problem, candidate.choice)
            if candidate.choice is None or changed is not None:
                solved = candidate.bound if changed is None else self._try(changed, candidate.bound, left)
                self.bound = min(self.bound, max(candidate.bound, solved))

    def _is_near(self, bound: float) -> bool:
        return self.best is not None and bound >= self.value - self.gap * abs(self.value)

    @property
    def value(self) -> float:
        """What is minimised: USD per hour with penalties and worths, or what the accuracy lacks of 100 %."""
        return math.inf if self.best is None else self._value(self.best.certificate.objective)

    def _value(self, objective: float) -> float:
        """The value of an objective; and the objective of a value."""
        return 100.0 - objective if self.is_accuracy else objective

    def _try(self, changed: Problem, least: float, left: int) -> float:
        """Solve a choice below the incumbent's cost; returns its lower bound. `left`: choices that follow."""
        slo, budget = self.problem.slo, self.problem.slo.budget_usd_per_h
        if self.best is not None and not self.is_accuracy:
            changed = replace(changed, slo=replace(slo, budget_usd_per_h=min(self.value, budget or math.inf)))
        try:
            found = self.solve_one(changed, self.limit.share(1.0 / min(left + 1, TIME_PARTS)), False)
        except (OutOfTimeError, TooManyWaysError) as error:
            self.late = error
            return error.bound if isinstance(error, OutOfTimeError) else least
        self.tried += found.selections_tried
        if found.plan is None:
            least = math.inf if found.infeasibility is None else found.infeasibility.least_usd_per_h
            return 0.0 if self.is_accuracy and least < math.inf else least
        if self.best is None or self._is_better(found.plan, self.best):
            self.best = replace(found.plan, slo=slo)
        return self._value(found.plan.certificate.bound)

    def _is_better(self, plan: Plan, best: Plan) -> bool:
        value, other = (self._value(one.certificate.objective) for one in (plan, best))
        if abs(value - other) <= VALUE_TOLERANCE * max(1.0, abs(other)):
            return self.is_accuracy and plan.cost.total_usd_per_h < best.cost.total_usd_per_h
        return value < other

    def _answer(self, plan: Plan) -> Solution:
        """The best plan, with the certificate of all choices."""
        before, bound = plan.certificate, min(self.value, self.bound)
        late = isinstance(self.late, OutOfTimeError) or before.termination == Termination.TIME_LIMIT
        ended = termination_of(self.value, bound, out_of_time=late)
        proof = before.bounded_by(replace(before, bound=self._value(bound), termination=ended))
        return Solution(replace(plan, certificate=proof), None, self.tried)


def candidates(problem: Problem) -> Iterator[Candidate]:
    """The choices of forms of all workflows, lowest bound first."""
    by_workflow = [_of_workflow(_reached(single), most) for single, most in _single_workflows(problem)]
    # The mean accuracy has the same weight for each workflow; costs are added up.
    weight = 1.0 / len(by_workflow) if problem.objective is Objective.MEAN_ACCURACY else 1.0
    start = (0,) * len(by_workflow)
    waiting, known = [(weight * _sum(by_workflow, start), start)], {start}
    while waiting:
        bound, at = heapq.heappop(waiting)
        chosen = [listed[index].choice for listed, index in zip(by_workflow, at, strict=True)]
        known_ones = [one for one in chosen if one is not None]
        together = {name: form for one in known_ones for name, form in one.items()}
        yield Candidate(bound, together if len(known_ones) == len(chosen) else None)
        for number, listed in enumerate(by_workflow):
            following = (*at[:number], at[number] + 1, *at[number + 1 :])
            if following[number] < len(listed) and following not in known:
                known.add(following)
                heapq.heappush(waiting, (weight * _sum(by_workflow, following), following))


def _sum(by_workflow: Sequence[Sequence[Candidate]], at: Sequence[int]) -> float:
    return sum(listed[index].bound for listed, index in zip(by_workflow, at, strict=True))


def _single_workflows(problem: Problem) -> Iterator[tuple[Problem, float]]:
    """The problem of each workflow, and what it counts at most, as it may be left out: at its worth, or as 0 %."""
    if not problem.workflows:
        yield problem, math.inf
    for workflow in problem.workflows:
        worth = workflow.worth_usd_per_h
        if worth is not None and problem.objective is Objective.MEAN_ACCURACY:
            worth = 100.0
        yield single_workflow(problem, workflow), math.inf if worth is None else worth


def _reached(problem: Problem) -> Problem:
    """The problem with the pools that it can use: those of other sites that differ may be a thousand."""
    variants = (variant for operator in problem.operators for part in operator.parts for variant in part.variants)
    used = {pool for variant in variants for pool in variant.service}
    return replace(problem, pools=tuple(pool for pool in problem.pools if pool.name in used))


def _of_workflow(problem: Problem, most: float) -> Sequence[Candidate]:
    """The choices of one workflow with their bounds, lowest first, and one entry for those that are not listed.

    Listed are `MOST_CHOICES`, fewer if the time of the work ends. `most`: what it counts at most.
    """
    found: list[Candidate] = []
    listed = 0
    for choice in choices(problem, MOST_CHOICES):
        if listed and work_limit().left() == 0.0:
            break
        listed += 1
        if (changed := in_forms(problem, choice)) is not None:
            found.append(Candidate(min(most, least_value(changed)), choice))
    if number_of_choices(problem) > listed:
        found.append(Candidate(min(most, _least_of_any(problem)), None))
    return sorted(found, key=lambda one: one.bound)


def _least_of_any(problem: Problem) -> float:
    """Lower bound on the value of plans of any choice: each operator's work in the form in which it costs least."""
    if problem.objective is Objective.MEAN_ACCURACY:
        return 0.0
    base = least_usd_per_h_of_work(problem)
    saved = 0.0
    for operator in problem.operators:
        changed = (in_forms(problem, {operator.name: form}) for form in operator.forms)
        least = min((least_usd_per_h_of_work(one) for one in changed if one is not None), default=base)
        saved += max(0.0, base - least)
    return max(0.0, base - saved)


def least_value(problem: Problem) -> float:
    """Lower bound on the value of the plans of a problem of one workflow, without solving it; inf if it has none.

    The value is the cost in USD per hour, or what the accuracy lacks of 100 % where that is maximised.
    """
    network = Network(problem)
    cost = lagrangian(network, network.demand({}), prices(network))
    if problem.objective is not Objective.MEAN_ACCURACY or cost == math.inf:
        return cost
    most = problem.accuracy.upper_bound({})
    return 0.0 if most is None else max(0.0, 100.0 - most)
