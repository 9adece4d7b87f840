"""Add workflows or sites to a plan of others, which keep their workers and routes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from jellybean.display import formats
from jellybean.documents import AnyProject, build_problem
from jellybean.planning.plan_file import WrittenPlan
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import SEARCH_PART, SEARCH_PART_BESIDE_SOFT, search_or_rule, settle
from jellybean.planning.simulated_deadline import no_progress
from jellybean.planning.soft_targets import soft_targets
from jellybean_solver import (
    Added,
    Deadline,
    Plan,
    Problem,
    Progress,
    Solution,
    SolveOptions,
    add_workflows,
    startable,
    unstartable,
    work_limit,
)


@dataclass(frozen=True, kw_only=True)
class AddedPlan(Planned):
    """The plan of all workflows, or why there is none. `before`: the plan of those that were served."""

    before: Plan
    added: Added


def add_to_plan(
    project: AnyProject,
    running: WrittenPlan,
    *,
    gap: float | None = None,
    progress: Progress = no_progress,
) -> AddedPlan:
    """Plan the workflows that a plan lacks, beside those that it has. Writes no files.

    If workflows have p99 targets, the whole plan is simulated. Where that of what is cheapest misses one, the new
    workflows are planned once more within their targets, by the closed form, as no judge sees the whole plan. Of soft
    targets those of the new workflows are weighed.
    """
    before, whole = running.plan, build_problem(project)
    problem = startable(whole, before)
    options = SolveOptions(gap, None, time.monotonic)

    def beside(changed: Problem, deadline: Deadline | None, limit_s: float | None) -> Solution:
        own = None if deadline is None else Deadline(deadline.p99_s, advance=deadline.advance)
        return add_workflows(changed, before, replace(options, time_limit_s=limit_s, deadline=own)).solution

    started = time.perf_counter()
    clock = work_limit()
    progress(1, 3, "new workflows")
    part = SEARCH_PART_BESIDE_SOFT if soft_targets(problem) else SEARCH_PART
    search = replace(options, time_limit_s=clock.share(part).left())
    added = add_workflows(problem, before, search, partial(search_or_rule, limit=clock))
    progress(2, 3, "p99 latency")
    settled = settle(
        problem,
        added.solution,
        gap,
        solve=beside,
        nearest=False,
        names=added.kept.planned,
        progress=lambda done, total, label: progress(2 + done / total, 3, label),
    )
    limits, kept = tuple(unstartable(whole, before)), len(added.kept.workflows)
    if settled.reasons:
        stays = f"{formats.count(kept, 'workflow')} of the plan {'stays as it is' if kept == 1 else 'stay as they are'}"
        last = (f"the {stays}; without --add all are planned anew",) if kept else ()
        settled = replace(settled, reasons=(*settled.reasons, *limits, *last))
    progress(3, 3, "done")
    planned = replace(settled.of(project), solve_s=time.perf_counter() - started, notes=limits)
    return AddedPlan(**vars(planned), before=before, added=replace(added, solution=planned.solution))
