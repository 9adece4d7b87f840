"""Re-planning: decides whether to keep a running plan, or which plan to replace it with.

Minimises cost per hour x horizon + cost of migration from the running plan, over all plans that meet the targets. The
running plan is replaced only if that saves enough, or if it no longer meets the targets. A soft mean accuracy adds its
penalty to the cost. Where the mean accuracy is maximised, the running plan is replaced if that removes enough of its
errors, or is as accurate and saves enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from jellybean_solver.deadline.search import Deadline
from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.migration.migration_cost import Migration, MigrationPrices
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.mixture.seats import TIE
from jellybean_solver.model.forms import as_planned, chosen_in, in_forms, number_of_choices
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.outcome import Clock
from jellybean_solver.planning.form_search import TIME_PARTS, candidates, most_solved
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.many_workflows import has_many_workflows, solve_many
from jellybean_solver.planning.mixed import is_by_ways, solve_mixed
from jellybean_solver.planning.solve import SolveOptions, solve, solve_within
from jellybean_solver.planning.solver import Solution, cheapest, finish, limited, nothing_found
from jellybean_solver.replanning.rescore import rescore
from jellybean_solver.replanning.settings import LEAST_SAVED_SHARE
from jellybean_solver.small.objectives import Fleet

SAVING_TOLERANCE = 1e-6  # relative; a saving below it is a rounding error
SEARCH_PART = 0.8  # of the time limit, for the search: the rest is for matching its plan's workers to the running ones


class Verdict(StrEnum):
    """What to do with the running plan. `NONE`: it misses the targets, and no plan was found that meets them."""

    KEEP = "keep"
    REPLACE = "replace"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ReplanSettings:
    """Weights of the decision.

    `least_saved_share`: least share of the running plan's cost that a change must save, or, where the mean accuracy is
    maximised, of its errors (what its accuracy lacks of 100 %) that a change must remove.
    """

    prices: MigrationPrices = field(default_factory=MigrationPrices)
    horizon_h: float = 24.0
    least_saved_share: float = LEAST_SAVED_SHARE


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Options of the search, as for `solve`. A time limit needs a clock, for example time.monotonic.

    `gap`: the relative gap at which it stops; None: that of the kind of problem (`DEFAULT_GAP` for one of one workflow
    whose plans do not mix variants).
    `missed`: a target that the running plan misses and this search does not model, in words. `instead` returns a plan
    found without regard to migration, or None, where time ends the search and the running plan misses a target.
    `deadline`: the p99 target of plans that mix variants or bear losses, whose search models it and minimises migration
    under it.
    """

    gap: float | None = None
    time_limit_s: float | None = None
    clock: Callable[[], float] | None = None
    assignment: AssignmentSettings = DEFAULT_ASSIGNMENT
    missed: str | None = None
    instead: Callable[[], Plan | None] = lambda: None
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True)
class Replanned:
    """The decision with its figures.

    `running`: the running plan rescored with the problem's present figures. `broken`: its violations and missed
    targets, as sentences. `best`: the cheapest plan to change to, with its `migration`; both None if there is none.
    `refused`: the target that a cheaper plan misses; the migration of `best` was then computed, not minimised.
    `bound_usd`: lower bound on cost over the horizon, migration included, of any change. `tried`: selections evaluated.
    `running_late_usd_per_h`, `best_late_usd_per_h`: what the p99 latencies of the two plans count above soft targets.
    `objective`: with MEAN_ACCURACY, `bound_usd` is 0 and `accuracy_bound` an upper bound on the accuracy of any plan.
    """

    verdict: Verdict
    settings: ReplanSettings
    running: Plan
    broken: tuple[str, ...]
    best: Plan | None
    migration: Migration | None
    refused: str | None
    bound_usd: float
    tried: int
    infeasibility: Infeasibility | None = None
    objective: Objective = Objective.COST
    accuracy_bound: float | None = None
    running_late_usd_per_h: float = 0.0
    best_late_usd_per_h: float = 0.0

    @property
    def maximises_accuracy(self) -> bool:
        """True if the best plan is the one of the highest mean accuracy, not the cheapest."""
        return self.objective is Objective.MEAN_ACCURACY

    def penalty_usd_per_h(self, plan: Plan) -> float:
        """What a plan counts for missing soft targets, beside its cost; 0 where the accuracy is maximised."""
        if self.maximises_accuracy:
            return 0.0
        late = self.running_late_usd_per_h if plan is self.running else self.best_late_usd_per_h
        return plan.accuracy_penalty_usd_per_h + late

    def _counted_usd(self, plan: Plan) -> float:
        counted = plan.cost.total_usd_per_h + self.penalty_usd_per_h(plan) + plan.forgone_usd_per_h
        return counted * self.settings.horizon_h

    @property
    def running_usd(self) -> float:
        """USD over the horizon if the running plan is kept, with penalties and what is left out."""
        return self._counted_usd(self.running)

    @property
    def best_usd(self) -> float | None:
        """As `running_usd` with the best other plan, migration included; None if there is no such plan."""
        if self.best is None or self.migration is None:
            return None
        return self._counted_usd(self.best) + self.migration.total_usd

    @property
    def saved_usd(self) -> float | None:
        """Saving of the best change over the horizon; None without one, negative if it costs more."""
        return None if self.best_usd is None else self.running_usd - self.best_usd

    @property
    def saved_share(self) -> float | None:
        """The saving as a share of the running plan's cost; 0 if that cost is 0, None without another plan."""
        if self.saved_usd is None:
            return None
        return self.saved_usd / self.running_usd if self.running_usd > 0 else 0.0

    @property
    def gained_points(self) -> float | None:
        """Percent points of mean accuracy that the best change gains, None without one; an unknown accuracy is 0."""
        return None if self.best is None else (self.best.mean_accuracy or 0.0) - (self.running.mean_accuracy or 0.0)

    @property
    def is_more_accurate(self) -> bool:
        """True if the best change gains accuracy, by more than the search trades for a lower cost (`TIE`)."""
        return (self.gained_points or 0.0) > TIE

    @property
    def removed_share(self) -> float | None:
        """The gain as a share of the running plan's errors; 0 if it has none, None without another plan."""
        errors = 100.0 - (self.running.mean_accuracy or 0.0)
        return None if self.gained_points is None else self.gained_points / errors if errors > 0 else 0.0

    @property
    def most_saved_usd(self) -> float:
        """Upper bound on the saving of any change."""
        return max(0.0, self.running_usd - self.bound_usd)


def replan(
    problem: Problem, before: Plan, settings: ReplanSettings, search: SearchSettings = SearchSettings()
) -> Replanned:
    """Decide whether to keep the running plan `before` or to change to another plan.

    If time ends before another plan is found, a running plan that meets the targets is kept. One that does not is
    replaced by what `search.instead` finds, or OutOfTimeError is raised.
    """
    if settings.horizon_h <= 0:
        raise SolverError(f"the horizon must be longer than {settings.horizon_h:g} h")
    every = _over_forms if problem.has_forms else _replan_whole
    return every(problem, before, settings, search)


def _replan_whole(problem: Problem, before: Plan, settings: ReplanSettings, search: SearchSettings) -> Replanned:
    """As `replan`, of a problem without forms."""
    limit = limited(search.time_limit_s, search.clock)
    running, _, broken = rescore(problem, before)
    if not broken and search.missed is not None:
        broken = (search.missed,)
    network = Network(problem)
    start = RunningPlan(network, before, settings.prices, settings.horizon_h, limit)
    limit = limit.share(SEARCH_PART)
    kept = Replanned(Verdict.KEEP, settings, running, broken, None, None, None, 0.0, 0, objective=problem.objective)
    try:
        return _searched(problem, kept, start, search, limit)
    except OutOfTimeError as error:
        other = search.instead() if broken else None
        if broken and other is None:
            raise
        if other is None:
            return kept
        moved, bound_usd = start.migration(other), error.bound * settings.horizon_h
        return replace(kept, verdict=Verdict.REPLACE, best=other, migration=moved, bound_usd=bound_usd)


def _searched(problem: Problem, kept: Replanned, start: RunningPlan, search: SearchSettings, limit: Clock) -> Replanned:
    """The running plan beside the best one that a search finds until the limit."""
    if is_by_ways(problem):
        return _beside_mixture(problem, kept, start, search, limit)
    if problem.may_leave_out or has_many_workflows(problem):  # migration is computed, not minimised
        return _beside(solve_many(problem, search.gap, limit, explained=True), kept, start)
    budget, gap = problem.slo.budget_usd_per_h, DEFAULT_GAP if search.gap is None else search.gap
    outcome = cheapest(
        Fleet(start.network, search.assignment),
        problem.accuracy_target,
        gap=gap,
        clock=limit,
        running=start,
        budget=float("inf") if budget is None else budget,
    )
    kept = replace(kept, bound_usd=outcome.bound * kept.settings.horizon_h, tried=outcome.tried)
    if outcome.found is None:
        if not kept.broken:
            return kept
        if not outcome.is_conclusive:
            raise nothing_found(outcome)
        why = solve(problem, gap=gap, time_limit_s=limit.left(), clock=search.clock).infeasibility
        return replace(kept, verdict=Verdict.NONE, infeasibility=why)
    best, score = finish(start.network, outcome, start)
    best = score.checked(best)
    bound_usd = best.certificate.bound * kept.settings.horizon_h
    return with_change(kept, best, start.migration(best), bound_usd)


def _beside_mixture(
    problem: Problem, kept: Replanned, start: RunningPlan, search: SearchSettings, limit: Clock
) -> Replanned:
    """The running plan beside the best one by the program of ways, with migration minimised beside its cost."""
    options = SolveOptions(search.gap, None, search.clock, deadline=search.deadline)
    solution = solve_mixed(
        problem,
        search.deadline,
        gap=search.gap,
        limit=limit,
        explained=True,
        solve_one=partial(solve_within, options, limit),
        running=start,
        assignment=search.assignment,
    )
    return _beside(solution, kept, start)


def _beside(solution: Solution, kept: Replanned, start: RunningPlan) -> Replanned:
    """The decision between the running plan and that of a solution."""
    bound = 0.0 if solution.certificate is None else solution.certificate.bound
    kept = replace(kept, tried=solution.selections_tried)
    if kept.maximises_accuracy:
        kept = replace(kept, accuracy_bound=bound if solution.certificate is not None else None)
    else:
        kept = replace(kept, bound_usd=bound * kept.settings.horizon_h)
    if solution.plan is None:
        verdict = Verdict.NONE if kept.broken else Verdict.KEEP
        return replace(kept, verdict=verdict, infeasibility=solution.infeasibility if kept.broken else None)
    return with_change(kept, solution.plan, start.migration(solution.plan), kept.bound_usd)


def with_change(
    decision: Replanned,
    plan: Plan,
    moved: Migration,
    bound_usd: float,
    late_usd_per_h: tuple[float, float] = (0.0, 0.0),
    refused: str | None = None,
) -> Replanned:
    """The decision between the running plan and another one that keeps all hard targets.

    `late_usd_per_h`: what the p99 latencies of the two count above soft targets.
    """
    running_late, best_late = late_usd_per_h
    found = replace(
        decision,
        best=plan,
        migration=moved,
        refused=refused,
        bound_usd=bound_usd,
        running_late_usd_per_h=running_late,
        best_late_usd_per_h=best_late,
    )
    return replace(found, verdict=Verdict.REPLACE if found.broken or is_worthwhile(found) else Verdict.KEEP)


def is_worthwhile(found: Replanned) -> bool:
    """True if the best change saves enough, or, where the mean accuracy is maximised, removes enough of the errors.

    There a change that saves enough must be as accurate but for `TIE`, which the search trades for a lower cost.
    """
    if not found.maximises_accuracy:
        return saves_enough(found)
    gained = found.gained_points or 0.0
    return removes_enough(found) or (gained >= -TIE and saves_enough(found))


def removes_enough(found: Replanned) -> bool:
    """True if the best change removes the share of the running plan's errors that the settings require."""
    least = found.settings.least_saved_share * (1 - SAVING_TOLERANCE)
    return found.maximises_accuracy and found.is_more_accurate and (found.removed_share or 0.0) >= least


def saves_enough(found: Replanned) -> bool:
    """True if the best change saves the share required by the settings."""
    least_usd = max(found.settings.least_saved_share, SAVING_TOLERANCE) * found.running_usd
    saved_usd = found.saved_usd or 0.0
    return saved_usd > 0 and saved_usd >= least_usd * (1 - SAVING_TOLERANCE)


def _over_forms(problem: Problem, before: Plan, settings: ReplanSettings, search: SearchSettings) -> Replanned:
    """As `replan`, over all choices of forms."""
    limit, running = limited(search.time_limit_s, search.clock), chosen_in(before, problem)
    left = min(most_solved(problem), number_of_choices(problem))

    def decided(changed: Problem, **options: Any) -> Replanned:
        left_s = limit.share(1.0 / min(left, TIME_PARTS)).left()
        return _replan_whole(changed, before, settings, replace(search, time_limit_s=left_s, **options))

    decision = decided(as_planned(problem, before))
    for candidate in candidates(problem):
        least_usd = 0.0 if decision.maximises_accuracy else candidate.bound * settings.horizon_h
        if left == 0 or (decision.best_usd is not None and least_usd >= decision.best_usd):
            break  # its lower bound is not below the incumbent, nor are those that follow
        if candidate.bound == math.inf:
            continue
        most = 100.0 - candidate.bound if decision.maximises_accuracy else None
        if candidate.choice == running:
            decision = replace(decision, accuracy_bound=_first_known(decision.accuracy_bound, most))
            continue
        left -= 1
        changed = None if candidate.choice is None else in_forms(problem, candidate.choice)
        found: Replanned | None = None
        if changed is not None and left and limit.left() != 0.0:
            with suppress(OutOfTimeError):
                found = decided(changed, instead=lambda: None)
        if found is None:
            found = replace(decision, best=None, bound_usd=least_usd, accuracy_bound=most, tried=0)
        found = replace(found, accuracy_bound=_first_known(found.accuracy_bound, most))
        decision = _better(decision, found, problem)
    return decision


def _first_known(*bounds: float | None) -> float | None:
    return next((one for one in bounds if one is not None), None)


def _better(decision: Replanned, found: Replanned, problem: Problem) -> Replanned:
    """The decision, replaced by `found` (for another choice of forms) if the change found there is better."""
    bounds = [one.accuracy_bound for one in (decision, found) if one.accuracy_bound is not None]
    known = replace(
        decision,
        tried=decision.tried + found.tried,
        bound_usd=min(decision.bound_usd, found.bound_usd),
        accuracy_bound=max(bounds, default=None),
    )
    if found.best_usd is None or (decision.best_usd is not None and _rank(found, problem) >= _rank(decision, problem)):
        return known
    if found.best is None or found.migration is None:
        return known
    return with_change(replace(known, infeasibility=None), found.best, found.migration, known.bound_usd)


def _rank(decision: Replanned, problem: Problem) -> tuple[float, ...]:
    """Lower is better: what the change leaves out, by priority, the accuracy if that is maximised, and the cost."""
    if decision.best is None or decision.best_usd is None:
        return (math.inf,)
    priorities = {one.name: one.priority for one in problem.workflows}
    out = dict.fromkeys(sorted(set(priorities.values()), reverse=True)[:-1], 0.0)
    for one in decision.best.left_out:
        if priorities[one.name] in out:
            out[priorities[one.name]] += one.worth_usd_per_h
    lacks = -(decision.best.mean_accuracy or 0.0) if decision.maximises_accuracy else 0.0
    return (*out.values(), lacks, decision.best_usd)
