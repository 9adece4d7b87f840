"""Plans a workflow whose operators may be cascades: the best without, and with each of them, under one proof.

A plan has at most one cascade. The lower bound is the smallest of all candidates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from jellybean.documents import Project, build_problem
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
PlanOne = Callable[[Project, bool, Progress], Planned]  # a project without alternatives, whether to compare, progress


def best_of_candidates(project: Project, plan_one: PlanOne, compare: bool, report: Progress) -> Planned:
    """The best of the plans without cascades, and with each; if there is none, the reasons are those without."""
    candidates, started = project.candidates, time.perf_counter()
    search = _Candidates(len(candidates), plan_one, report, compare)
    for number, one in enumerate(candidates):
        search.try_one(number, one)
    if search.plain is None or (search.best is None and search.late is not None):
        raise search.late or OutOfTimeError("no candidate was planned in time")
    solve_s = time.perf_counter() - started
    if search.best is None:
        note = f"that is without cascades; with one, none of {len(candidates) - 1} gives a plan either"
        return replace(search.plain, reasons=(*search.plain.reasons, note), solve_s=solve_s)
    return replace(search.answer(search.best), solve_s=solve_s)


class _Candidates:
    """The candidates so far: the best plan, and what bounds the others."""

    def __init__(self, count: int, plan_one: PlanOne, report: Progress, compare: bool) -> None:
        self._count, self._plan_one, self._report, self._compare = count, plan_one, report, compare
        self.best: Planned | None = None
        self.plain: Planned | None = None
        self.late: OutOfTimeError | None = None
        self._bounds: list[float] = []  # in the order of the objective: of the cost, or of the accuracy with its sign

    def try_one(self, number: int, one: Project) -> None:
        """Plan a candidate, unless its bound says that it is not better than the best so far."""
        cost = self.best.plan.cost.total_usd_per_h if self.best is not None and self.best.plan is not None else math.inf
        if one.workflow.objective is Objective.COST and math.isfinite(cost):
            least = least_usd_per_h(build_problem(one))
            if least >= cost * (1.0 - VALUE_TOLERANCE):
                self._bounds.append(least)
                return
        name = "no cascade" if one.cascade is None else f"{one.cascade.operator} {one.cascade.variant}"

        def progress(done: float, total: float, label: str) -> None:
            self._report(number + done / max(total, 1e-9), self._count, f"{name}: {label}")

        try:
            planned = self._plan_one(one, self._compare and number == 0, progress)
        except OutOfTimeError as error:
            self.late = error
            self._bounds.append(-math.inf)
            return
        self.plain = planned if number == 0 else self.plain
        self._bounds.append(_bound(planned))
        if planned.plan is not None and (self.best is None or _rank(planned) < _rank(self.best)):
            self.best = planned

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
