"""Add workflows or sites to a plan of others, which keep their workers and routes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jellybean.display import formats
from jellybean.documents import AnyProject, build_problem
from jellybean.planning.deadline.predicted_latency import judged_latency, latency_breach
from jellybean.planning.deadline.soft_plan import Trial, best_with_penalties
from jellybean.planning.deadline.soft_targets import soft_targets
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import SEARCH_PART, SEARCH_PART_BESIDE_SOFT, Progress, search_or_rule
from jellybean.planning.replan import named_plan
from jellybean_solver import (
    Added,
    Deadline,
    Plan,
    Solution,
    SolveOptions,
    add_workflows,
    deadline_s,
    in_true_prices,
    limited,
    startable,
    unstartable,
)


@dataclass(frozen=True)
class AddedPlan:
    """`planned`: the plan of all workflows, or why there is none. `before`: the plan of those that were served.

    `unstartable`: pools of which a change cannot start all workers, as sentences.
    """

    before: Plan
    added: Added
    planned: Planned
    unstartable: tuple[str, ...] = ()


def add_to_plan(
    project: AnyProject,
    named: str,
    *,
    gap: float | None = None,
    time_limit_s: float | None = None,
    progress: Progress = lambda done, total, label: None,
) -> AddedPlan:
    """Plan the workflows that a plan (see `named_plan` for `named`) lacks, beside those that it has. Writes no files.

    If workflows have p99 targets, the whole plan is simulated. Where that of what is cheapest misses one, the new
    workflows are planned once more within their targets. Of soft targets those of the new workflows are weighed.
    """
    progress(0, 3, "running plan")
    _, before = named_plan(project.directory, named)
    stated = build_problem(project)
    problem = startable(stated, before)
    clock, is_soft = limited(time_limit_s, time.monotonic), bool(soft_targets(problem))
    part = SEARCH_PART_BESIDE_SOFT if is_soft else SEARCH_PART
    options = SolveOptions(gap, clock.share(part).left(), time.monotonic)
    progress(1, 3, "new workflows")
    started = time.perf_counter()
    added = add_workflows(problem, before, options, partial(search_or_rule, limit=clock))
    solve_s = time.perf_counter() - started
    progress(2, 3, "p99 latency")
    plan, target_s = added.solution.plan, deadline_s(problem)
    if plan is not None and target_s is not None and latency_breach(plan) is not None:
        started = time.perf_counter()
        added = add_workflows(problem, before, replace(options, deadline=Deadline(target_s)))
        solve_s += time.perf_counter() - started
        plan = added.solution.plan
    limits = tuple(unstartable(stated, before))
    reasons, compared = tuple(_reasons(added, plan, limits)), ""
    if plan is not None and not reasons and is_soft:

        def solve(trial: Trial) -> Solution:
            deadline = Deadline(deadline_s(trial.problem) or 0.0, advance=trial.advance)
            own = replace(options, time_limit_s=trial.limit_s, deadline=deadline)
            return add_workflows(trial.problem, before, own).solution

        found = best_with_penalties(
            problem, added.solution, solve, gap=gap, clock=clock, progress=progress, names=added.kept.planned
        )
        if found is not None:
            plan, compared = found.plan, found.text
            solution = replace(added.solution, plan=plan)
            added = replace(added, solution=solution)
    if plan is not None:
        plan = None if reasons else replace(in_true_prices(problem, plan), overrides=project.overrides)
    judged = None if plan is None else judged_latency(plan)
    progress(3, 3, "done")
    planned = Planned(problem, added.solution, plan, reasons, (), solve_s, judged=judged, best=compared)
    return AddedPlan(before, added, planned, limits)


def _reasons(added: Added, plan: Plan | None, limits: Sequence[str]) -> Iterator[str]:
    """Why there is no plan: the new workflows do not fit, or a p99 latency is too long; nothing if there is one."""
    refused = added.solution.infeasibility
    breach = None if plan is None else latency_breach(plan)
    if plan is None and refused is not None:
        yield from refused.reasons
    elif breach is not None:
        yield breach.text
    else:
        return
    yield from limits
    if kept := len(added.kept.workflows):
        stays = "stays as it is" if kept == 1 else "stay as they are"
        yield f"the {formats.count(kept, 'workflow')} of the plan {stays}; without --add all are planned anew"
