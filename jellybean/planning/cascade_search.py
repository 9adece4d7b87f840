"""Plans a workflow whose operators may be cascades: the best without, and with each of them, under one proof.

A plan has at most one cascade. The lower bound is the smallest of all candidates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from jellybean.documents import Project, build_cuts, build_problem
from jellybean.planning.planned import Planned
from jellybean_solver import (
    VALUE_TOLERANCE,
    Baseline,
    Certificate,
    Objective,
    OutOfTimeError,
    Termination,
    least_usd_per_h,
    termination_of,
)

Progress = Callable[[float, float, str], None]
# Plans a project without alternatives: whether to compare, fraction of the time left that it may take, progress.
PlanOne = Callable[[Project, bool, float, Progress], Planned]


def best_of_candidates(project: Project, plan_one: PlanOne, compare: bool, report: Progress) -> Planned:
    """The best of the plans without cascades, and with each; if there is none, the reasons of the one nearest to it.

    Each candidate has an equal part of the time. OutOfTimeError if it ends before any plan is found.
    """
    candidates, started = project.candidates, time.perf_counter()
    search = _Candidates(len(candidates), plan_one, report, compare)
    for number, one in enumerate(candidates):
        search.try_one(number, one)
    solve_s = time.perf_counter() - started
    if search.best is not None:
        return replace(search.answer(search.best), solve_s=solve_s)
    if search.late is not None or search.plain is None:
        raise search.late or OutOfTimeError("no candidate was planned in time")
    return replace(search.refusal(search.plain), solve_s=solve_s)


class _Candidates:
    """The candidates so far: the best plan, and what bounds the others."""

    def __init__(self, count: int, plan_one: PlanOne, report: Progress, compare: bool) -> None:
        self._count, self._plan_one, self._report, self._compare = count, plan_one, report, compare
        self.best: Planned | None = None
        self.plain: Planned | None = None
        self.late: OutOfTimeError | None = None
        self._bounds: list[float] = []  # in the order of the objective: of the cost, or of the accuracy with its sign
        self._nearest: tuple[float, str, Planned] | None = None  # least p99 latency that a candidate was found for

    def try_one(self, number: int, one: Project) -> None:
        """Plan a candidate, unless its bound says that it is worse than the best so far."""
        least = _least_usd_per_h(one)
        plan = self.best.plan if self.best is not None else None
        if plan is not None and least is not None and least > plan.cost.total_usd_per_h * (1.0 + VALUE_TOLERANCE):
            self._bounds.append(least)
            return
        name = "no cascade" if one.cascade is None else f"{one.cascade.operator} {one.cascade.variant}"

        def progress(done: float, total: float, label: str) -> None:
            self._report(number + done / max(total, 1e-9), self._count, f"{name}: {label}")

        try:
            planned = self._plan_one(one, self._compare and number == 0, 1.0 / (self._count - number), progress)
        except OutOfTimeError as error:
            self.late = error
            self._bounds.append(-math.inf if least is None else least)
            return
        self.plain = planned if number == 0 else self.plain
        self._bounds.append(_bound(planned))
        if planned.plan is not None and (self.best is None or _rank(planned) < _rank(self.best)):
            self.best = planned
        p99_s = planned.nearest_p99_s
        if planned.plan is None and p99_s is not None and (self._nearest is None or p99_s < self._nearest[0]):
            self._nearest = p99_s, name, planned

    def refusal(self, plain: Planned) -> Planned:
        """Why there is no plan: of the candidate with the least p99 latency if that is what is missed, else of none."""
        others = self._count - 1
        if self._nearest is None or self._nearest[2] is plain:
            note = f"that is without cascades; with one, none of {others} gives a plan either"
            return replace(plain, reasons=(*plain.reasons, note))
        _, name, planned = self._nearest
        note = f"that is with the cascade {name}, the nearest of {others} and of the workflow without"
        return replace(planned, reasons=(*planned.reasons, note))

    def answer(self, best: Planned) -> Planned:
        """The best plan, with the certificate of all candidates."""
        plan = best.plan
        if plan is None:
            return best
        own, bound = plan.certificate, min(self._bounds)
        late = self.late is not None or own.termination == Termination.TIME_LIMIT
        if own.objective_of is Objective.MEAN_ACCURACY:
            ending = Termination.TIME_LIMIT if late else Termination.GAP
            certificate = Certificate.of_accuracy(own.objective, min(100.0, -bound), ending)
        else:
            bound = max(0.0, min(own.objective, bound))
            certificate = Certificate.of(own.objective, bound, termination_of(own.objective, bound, out_of_time=late))
        plan = replace(plan, certificate=certificate)
        solution = replace(best.solution, status=certificate.termination, plan=plan, certificate=certificate)
        return replace(best, plan=plan, solution=solution, baselines=self._baselines(best))

    def _baselines(self, best: Planned) -> tuple[Baseline, ...]:
        """What the plan is compared with: the best one without cascades, and the rules that this was compared with."""
        plain = self.plain
        if plain is None or best is plain or not self._compare:
            return best.baselines
        kept, name = plain.plan, "no cascade"
        if kept is None:
            return (Baseline(name, "infeasible", None, None, None, (*plain.reasons, "infeasible")[0]),)
        return (Baseline(name, plain.status, kept.cost, kept.accuracy, kept.selection, ""), *plain.baselines)


def _least_usd_per_h(project: Project) -> float | None:
    """A bound on the cost of a candidate's plans; None if there is none without a search (an accuracy, or cut models).

    A plan that cuts another operator's model may cost less than all plans of whole models.
    """
    if project.workflow.objective is not Objective.COST or build_cuts(project):
        return None
    return least_usd_per_h(build_problem(project))


def _rank(planned: Planned) -> tuple[float, float]:
    """Lower is better: the cost, then the accuracy; or the accuracy that is maximised, then the cost."""
    plan = planned.plan
    if plan is None:
        return math.inf, 0.0
    cost, accuracy = plan.cost.total_usd_per_h, plan.accuracy or 0.0
    if plan.certificate.objective_of is Objective.MEAN_ACCURACY:
        return -accuracy, cost
    return float(f"{cost:.9g}"), -accuracy


def _bound(planned: Planned) -> float:
    """A bound on a candidate's objective (negative if it is maximised); inf if it is proven to have no plan."""
    plan = planned.plan or planned.solution.plan
    if plan is None:
        return math.inf
    own = plan.certificate
    return -own.bound if own.objective_of is Objective.MEAN_ACCURACY else own.bound
