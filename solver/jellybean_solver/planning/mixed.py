"""The best plan by the program of ways (mixture/), of workflows that may mix variants, bear losses or be left out.

It is the cheapest one, or the one of the highest mean accuracy. From a running plan on, the cost includes that of
migration, spread over the horizon.
"""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.deadline.lower_bound import LATENCY_TOLERANCE, least_latency_s
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import SolverError
from jellybean_solver.latency.estimate import p99_by_workflow
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.mixture.modes import NO_LIMITS
from jellybean_solver.model.margin import stressed
from jellybean_solver.model.multi_workflow import restricted, with_slos
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Pool, Problem, Sharing
from jellybean_solver.model.targets import LossKind, Slo
from jellybean_solver.outcome import Clock
from jellybean_solver.planning.admission import by_priority, with_left_out
from jellybean_solver.planning.many_workflows import MOST_TOGETHER
from jellybean_solver.planning.mix_in_time import SolveOne, deadline_of, solve_in_time
from jellybean_solver.planning.mix_search import MixSearch
from jellybean_solver.planning.solver import Solution
from jellybean_solver.simulation.group_simulation import GroupSimulation


def solve_mixed(
    problem: Problem,
    deadline: Deadline | None,
    *,
    gap: float | None,
    limit: Clock,
    explained: bool,
    solve_one: SolveOne,
    running: RunningPlan | None = None,
    assignment: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> Solution:
    """The best plan of a problem, or why there is none. SolverError if time ends before any.

    `solve_one`: solves a problem under the same `deadline` and `limit`. With a `running` plan its cost includes
    migration, as do the certificate's figures; `assignment` limits the matching of workers.
    """
    if len(problem.workflows) > MOST_TOGETHER and not problem.survives:
        raise SolverError(_too_many(problem))

    def solve(level: Problem, explained: bool) -> Solution:
        if deadline is not None and (served := _may_be_in_time(level, problem, deadline)):
            return with_left_out(level, solve(restricted(level, served), explained))
        search = MixSearch(level, gap, limit, running, assignment)
        first = search.propose(NO_LIMITS)
        if first is None:
            return search.refused(explained=explained)
        within = None if deadline is None else deadline_of(level, problem, deadline)
        if within is None:
            return search.solution(first, late=limit.left() == 0.0)
        found = solve_in_time(search, first, within, solve_one)
        if found.plan is None and (latest := _latest_optional(level, first)) is not None:
            others = restricted(level, [one.name for one in level.workflows if one.name != latest])
            fewer = with_left_out(level, solve(others, explained))
            return fewer if fewer.plan is None else search.solution(fewer.plan, late=limit.left() == 0.0)
        return found

    return by_priority(problem, solve, explained=explained)


def _too_many(problem: Problem) -> str:
    """That the program of ways is for fewer workflows, and what to do."""
    asked, instead = "a mean accuracy", "give each the least accuracy of any request"
    if limited := " and ".join(problem.most):
        asked, instead = f"a limit of the {limited} that the cheapest plan exceeds", "raise it"
    elif not problem.is_for_ways:
        asked, instead = "a p99 target of workflows with a worth, which may be left out,", "state one of both"
    return (
        f"{asked} is for up to {MOST_TOGETHER} workflows or sites on one fleet, and here are "
        f"{len(problem.workflows)}: {instead}, or plan fewer together"
    )


def is_by_ways(problem: Problem) -> bool:
    """True if the program of ways weighs plans of the problem against a running one."""
    return problem.is_for_ways or (problem.may_leave_out and len(problem.workflows) <= MOST_TOGETHER)


def _may_be_in_time(level: Problem, problem: Problem, deadline: Deadline) -> list[str]:
    """The workflows to serve if others may be left out and are late even with zero queueing delay; empty if none is."""

    def is_late(name: str) -> bool:
        alone = restricted(level, [name])
        within = deadline_of(alone, problem, deadline)
        return within is not None and least_latency_s(alone) > within.p99_s * (1.0 + LATENCY_TOLERANCE)

    late = {one.name for one in level.workflows if one.worth_usd_per_h is not None and is_late(one.name)}
    return [one.name for one in level.workflows if one.name not in late] if late else []


def _latest_optional(problem: Problem, plan: Plan) -> str | None:
    """The workflow that is latest in a plan of those that may be left out; None if there is none, or no other one."""
    targets = {one.name: one.slo.latency_p99_s for one in plan.workflows if one.worth_usd_per_h is not None}
    if len(problem.workflows) < 2 or not any(targets.values()):
        return None
    # The coarse simulation is of one site per tier.
    plan = stressed(plan)
    p99_s = p99_by_workflow(plan) if plan.sites else GroupSimulation(plan).p99_by_workflow()
    late = {name: p99_s.get(name, 0.0) / target for name, target in targets.items() if target is not None}
    return max(late, key=late.__getitem__, default=None)


def plan_with_spare_workers(problem: Problem, *, gap: float, limit: Clock) -> Plan | None:
    """A plan that survives the loss of a worker as each group of workers has one to spare; None if none was found.

    It is found without flows after such losses, which makes its program small: that of a fleet with one worker less of
    each group, whose plan gets these workers.
    """
    spared = tuple(replace(pool, count=max(0, pool.count - _groups(problem, pool))) for pool in problem.pools)

    def kept(_: str, slo: Slo) -> Slo:
        spare = (LossKind.WORKER, LossKind.SPOT_WORKER)
        return replace(slo, survives=tuple(kind for kind in slo.survives if kind not in spare))

    fewer = with_slos(replace(problem, pools=spared), kept)
    small = MixSearch(fewer, gap, limit)
    found = small.best(small.goal).mixture
    if found is None:
        return None
    return MixSearch(problem, gap, limit).scored_plan(found.with_spare_workers())


def _groups(problem: Problem, pool: Pool) -> int:
    """How many groups of workers a pool may have: one, or one for each operator where a worker serves only one."""
    return 1 if pool.sharing is Sharing.SHARED else len(problem.operators)
