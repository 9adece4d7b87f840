"""The best cuts of models, chosen together with variants and places.

They are the optimum of a union of problems (`cut_problem`): one for each choice of cuts, and one without. The answer
is the cheapest plan of all problems; its lower bound is the smallest of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import VALUE_TOLERANCE, Termination, termination_of
from jellybean_solver.planning.cut_problem import Cuts, choices, cut_problem
from jellybean_solver.planning.solve import SolveOptions, solve_with
from jellybean_solver.planning.solver import Solution, limited
from jellybean_solver.small.objectives import Fleet


def solve_cut(problem: Problem, cuts: Cuts, options: SolveOptions = SolveOptions()) -> Solution:
    """As `solve`, over all choices of cuts; if there is no plan, the reasons are those of the problem without cuts.

    The bound of an OutOfTimeError holds for all choices of cuts.
    """
    if not any(cuts.values()):
        return solve_with(problem, options)
    refuse_mean_accuracy(problem, cuts)
    limit = limited(options.time_limit_s, options.clock)

    def solved(candidate: Problem, *, explained: bool = False) -> Solution:
        return solve_with(candidate, replace(options, time_limit_s=limit.left(), explained=explained))

    union = _Union(problem, solved)
    candidates = [cut_problem(problem, choice) for choice in choices(cuts)]
    union.walk(candidates)
    if union.best is not None:
        return union.answer(union.best)
    if union.late is not None:
        bound = union.bound if math.isfinite(union.bound) else 0.0
        raise OutOfTimeError(str(union.late), bound) from union.late
    whole = solved(problem, explained=options.explained)
    why = whole.infeasibility
    if why is None:  # a plan of whole models after all; it has a certificate of its own
        return whole
    note = f"that is with all models whole; with one cut in two, none of {len(candidates) - 1} ways gives a plan either"
    why = replace(why, reasons=(*why.reasons, note), least_usd_per_h=union.bound)
    return replace(whole, infeasibility=why, selections_tried=union.tried + whole.selections_tried)


def refuse_mean_accuracy(problem: Problem, cuts: Cuts) -> None:
    """SolverError if plans may mix variants: choices of cuts are compared by cost, without accuracies and penalties."""
    if problem.may_mix and any(cuts.values()):
        names = ", ".join(name for name, found in cuts.items() if found)
        raise SolverError(
            f"plans for a mean accuracy do not cut models: plan without cuts of {names}, or with an accuracy of every "
            "request"
        )


class _Union:
    """Best-first search over problems: the incumbent's cost is the budget of the next one; ends at the lower bound."""

    def __init__(self, problem: Problem, solved: Callable[[Problem], Solution]) -> None:
        self.problem, self.solved = problem, solved
        self.best: Plan | None = None
        self.bound = math.inf  # least lower bound of the candidates solved or pruned so far
        self.tried = 0
        self.late: OutOfTimeError | None = None  # its bound is that of one candidate

    def walk(self, candidates: Sequence[Problem]) -> None:
        """Solve the candidates, lowest bound first; those whose bound is not below the incumbent are pruned."""
        bounded = sorted((least_usd_per_h(one), number) for number, one in enumerate(candidates))
        for least, number in bounded:
            if least == math.inf or (self.best is not None and least >= self.value * (1 - VALUE_TOLERANCE)):
                self.bound = min(self.bound, least)
                continue
            self.bound = min(self.bound, max(least, self._try(candidates[number])))

    @property
    def value(self) -> float:
        return math.inf if self.best is None else self.best.cost.total_usd_per_h

    def _try(self, candidate: Problem) -> float:
        """Solve a candidate below the incumbent's cost; returns its lower bound."""
        slo, budget = self.problem.slo, self.problem.slo.budget_usd_per_h
        if self.best is not None:
            candidate = replace(candidate, slo=replace(slo, budget_usd_per_h=min(self.value, budget or math.inf)))
        try:
            found = self.solved(candidate)
        except OutOfTimeError as error:
            self.late = error
            return error.bound
        self.tried += found.selections_tried
        if found.plan is None:
            return _least_of_refused(candidate, found)
        if found.plan.cost.total_usd_per_h < self.value * (1 - VALUE_TOLERANCE):
            self.best = replace(found.plan, slo=slo)
        return found.plan.certificate.bound

    def answer(self, plan: Plan) -> Solution:
        """The best plan, with the certificate of the union."""
        value, bound = self.value, min(self.value, self.bound)
        late = self.late is not None or plan.certificate.termination == Termination.TIME_LIMIT
        certificate = Certificate.of(value, bound, termination_of(value, bound, out_of_time=late))
        best = replace(plan, certificate=certificate)
        return Solution(certificate.termination, best, None, self.tried, certificate)


def _least_of_refused(candidate: Problem, found: Solution) -> float:
    """Lower bound in USD per hour of a candidate without a plan; inf if no plan of it can be feasible."""
    refused, budget = found.infeasibility, candidate.slo.budget_usd_per_h
    if refused is None or not refused.breaches or found.certificate is None:
        return refused.least_usd_per_h if refused is not None else math.inf
    bound = found.certificate.bound
    return bound if budget is None or bound <= budget else math.inf


def least_usd_per_h(problem: Problem) -> float:
    """Lower bound in USD per hour on the cost of every plan of a problem, without solving it."""
    return Fleet(Network(problem)).cost_bound({})
