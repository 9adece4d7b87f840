"""The plan of a project, if it can be served."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.cli.console import warn
from jellybean.cli.current_plan import load_current_plan, operators_without_model
from jellybean.cli.projects import require_servable
from jellybean.documents import AnyProject, written_projects
from jellybean.errors import JellyBeanError
from jellybean.report.plans.proof import unproven
from jellybean_solver import Plan

MAX_WORKERS = 100  # worker processes on one machine


def servable(project: AnyProject, *, max_workers: int | None = MAX_WORKERS, anew: bool = False) -> tuple[Plan, int]:
    """Load the plan; returns it and its number of workers. JellyBeanError if it cannot be served.

    `max_workers`: most processes on this machine; None if the workers are on other ones. `anew`: plan in any case.
    """
    for name, part in written_projects(project).items():
        operators = part.workflow.operators
        lacking = [o for o, spec in operators.items() if not any(v.is_served for v in spec.variants.values())]
        _require_models(name, lacking)
    require_servable(project)
    plan = load_current_plan(project, anew=anew)
    _require_models(plan.name, operators_without_model(plan))
    workers = sum(plan.sites.get(worker.tier, 1) for worker in plan.workers)
    if max_workers is not None and workers > max_workers:
        fewer = "".join(f"; to serve two sites: --set sites.{tier}=2" for tier in list(plan.sites)[:1])
        raise JellyBeanError(
            f"{plan.name} has {workers:,} workers, each of which would be a process; "
            f"at most {max_workers} can be served on one machine{fewer}"
        )
    if (warning := unproven(plan)) is not None:
        warn(warning)
    return plan, workers


def worker_count(workers: int) -> str:
    """The number of workers as text."""
    return f"{workers:,} worker{'' if workers == 1 else 's'}"


def _require_models(name: str, missing: Sequence[str]) -> None:
    if missing:
        raise JellyBeanError(
            f"{name} can be planned and simulated, but not served: no model file for {', '.join(missing)}; "
            "add `model:` and `sha256:`, or `python:`, to the variants in workflow.yaml"
        )
