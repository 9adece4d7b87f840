"""Add workflows or sites to a plan of others, which keep their workers and routes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jellybean.documents import AnyProject, build_forms, build_problem
from jellybean.planning.deadline.predicted_latency import judged_latency, latency_breach
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import Progress
from jellybean.planning.replan import named_plan, startable
from jellybean_solver import Added, Deadline, Plan, SolveOptions, add_workflows, deadline_s


@dataclass(frozen=True)
class AddedPlan:
    """`planned`: the plan of all workflows, or why there is none. `before`: the plan of those that were served."""

    before: Plan
    added: Added
    planned: Planned


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
    workflows are planned once more within their targets.
    """
    progress(0, 3, "running plan")
    _, before = named_plan(project.directory, named)
    own = startable(project, before)
    problem, forms = build_problem(own), build_forms(own)
    options = SolveOptions(gap, time_limit_s, time.monotonic)
    progress(1, 3, "new workflows")
    started = time.perf_counter()
    added = add_workflows(problem, before, options, forms)
    solve_s = time.perf_counter() - started
    progress(2, 3, "p99 latency")
    plan, target_s = added.solution.plan, deadline_s(problem)
    if plan is not None and target_s is not None and latency_breach(plan) is not None:
        started = time.perf_counter()
        added = add_workflows(problem, before, replace(options, deadline=Deadline(target_s)), forms)
        solve_s += time.perf_counter() - started
        plan = added.solution.plan
    reasons = tuple(_reasons(added, plan))
    if plan is not None:
        plan = None if reasons else replace(plan, overrides=project.overrides)
    judged = None if plan is None else judged_latency(plan)
    progress(3, 3, "done")
    return AddedPlan(before, added, Planned(problem, added.solution, plan, reasons, (), solve_s, judged=judged))


def _reasons(added: Added, plan: Plan | None) -> Iterator[str]:
    """Why there is no plan: the new workflows do not fit, or a p99 latency is too long; nothing if there is one."""
    found = added.solution.infeasibility
    breach = None if plan is None else latency_breach(plan)
    if plan is None and found is not None:
        yield from found.reasons
    elif breach is not None:
        yield breach.text
    else:
        return
    kept = len(added.kept.workflows)
    if kept:
        yield f"the {kept:,} workflows of the plan stay as they are; without --add all are planned anew"
