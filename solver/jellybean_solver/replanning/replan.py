"""Re-planning: decides whether to keep a running plan, or which plan to replace it with.

Minimises cost per hour x horizon + cost of migration from the running plan, over all plans that meet the targets. The
running plan is replaced only if that saves enough, or if it no longer meets the targets. A soft mean accuracy adds its
penalty to the cost. Where the mean accuracy is maximised, the running plan is replaced if that removes enough of its
errors, or is as accurate and saves enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from jellybean_solver.deadline.search import Deadline
from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.dispatch import DEFAULT_GAP
from jellybean_solver.migration.migration_cost import Migration, MigrationPrices, cheapest_migration
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.mixture.seats import TIE
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.outcome import Clock
from jellybean_solver.planning.form_search import best_of_forms
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.many_workflows import has_many_workflows, solve_many
from jellybean_solver.planning.mixed import is_by_ways, solve_mixed
from jellybean_solver.planning.solve import SolveOptions, solve, solve_within
from jellybean_solver.planning.solver import Solution, cheapest, finish, limited, nothing_found
from jellybean_solver.replanning.rescore import rescore
from jellybean_solver.replanning.settings import LEAST_SAVED_SHARE

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
    limit = limited(search.time_limit_s, search.clock)
    running, _, broken = rescore(problem, before)
    if not broken and search.missed is not None:
        broken = (search.missed,)
    kept = Replanned(Verdict.KEEP, settings, running, broken, None, None, None, 0.0, 0, objective=problem.objective)

    def solve_one(changed: Problem, within: Clock, explained: bool) -> Solution:
        start = RunningPlan(Network(changed), before, settings.prices, settings.horizon_h, limit)
        return _solved_beside(changed, start, search, within, explained)

    within = limit.share(SEARCH_PART)
    try:
        solution = best_of_forms(problem, gap=search.gap, limit=within, explained=bool(broken), solve_one=solve_one)
    except OutOfTimeError as error:
        kept = replace(kept, bound_usd=error.bound * settings.horizon_h)
        plan = search.instead() if broken else None
        if broken and plan is None:
            raise
    else:
        kept, plan = _with_bounds(kept, solution), solution.plan
        if plan is None and broken:
            return replace(kept, verdict=Verdict.NONE, infeasibility=solution.infeasibility)
    if plan is None:
        return kept
    return with_change(kept, plan, cheapest_migration(before, plan, settings.prices, limit), kept.bound_usd)


def _solved_beside(
    problem: Problem, start: RunningPlan, search: SearchSettings, limit: Clock, explained: bool
) -> Solution:
    """The best plan of a problem without forms, by what it counts with the migration from the running plan."""
    if is_by_ways(problem):
        options = SolveOptions(search.gap, None, search.clock, deadline=search.deadline)
        return solve_mixed(
            problem,
            search.deadline,
            gap=search.gap,
            limit=limit,
            explained=explained,
            solve_one=partial(solve_within, options, limit),
            running=start,
            assignment=search.assignment,
        )
    if problem.may_leave_out or has_many_workflows(problem):
        return solve_many(problem, search.gap, limit, explained=explained)  # migration is added afterwards
    budget, gap = problem.slo.budget_usd_per_h, DEFAULT_GAP if search.gap is None else search.gap
    outcome = cheapest(
        start.network,
        problem.accuracy_target,
        gap=gap,
        clock=limit,
        running=start,
        budget=math.inf if budget is None else budget,
        assignment=search.assignment,
    )
    if outcome.found is not None:
        plan, score = finish(start.network, outcome, start)
        return Solution(score.checked(plan), None, outcome.tried)
    if not outcome.is_conclusive:
        raise OutOfTimeError(str(nothing_found(outcome)), max(0.0, outcome.bound))
    why = solve(problem, gap=gap, time_limit_s=limit.left(), clock=search.clock).infeasibility if explained else None
    return Solution(None, why, outcome.tried)


def _with_bounds(kept: Replanned, solution: Solution) -> Replanned:
    """The decision to keep the running plan, with what a search has proven of all others."""
    proof, why = solution.certificate, solution.infeasibility
    bound = math.inf if why is None else why.least_usd_per_h
    bound = bound if proof is None else proof.bound
    kept = replace(kept, tried=solution.selections_tried)
    if kept.maximises_accuracy:
        return replace(kept, accuracy_bound=None if proof is None else bound)
    return replace(kept, bound_usd=bound * kept.settings.horizon_h)


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
