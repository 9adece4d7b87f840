"""What `plan` is asked, as one value, and its answer: a plan anew, a change of a running plan, or an addition to it."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean.documents import AnyProject
from jellybean.planning.add import add_to_plan
from jellybean.planning.plan_file import WrittenPlan
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import plan_project
from jellybean.planning.replan import replan_project
from jellybean_solver import Progress


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A question about a project. `running`: the plan that is served; None: the project is planned anew.

    `horizon_h`: the hours within which a change of the running plan must pay; None: the plan stays, and what it lacks
    is added.
    """

    gap: float | None = None
    running: WrittenPlan | None = None
    horizon_h: float | None = None


def answered(project: AnyProject, question: PlanQuestion, progress: Progress) -> Planned:
    """The plan that answers a question, or why there is none. Writes no files."""
    gap, running = question.gap, question.running
    if running is None:
        return plan_project(project, gap=gap, progress=progress)
    if question.horizon_h is None:
        return add_to_plan(project, running, gap=gap, progress=progress)
    return replan_project(project, running, horizon_h=question.horizon_h, gap=gap, progress=progress)
