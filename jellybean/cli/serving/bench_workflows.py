"""Command bench for a plan of several workflows: all at the same time, or one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

from jellybean.bench import bench as bench_module
from jellybean.bench.load_settings import DURATION_S
from jellybean.bench.result import BenchResult
from jellybean.bench.together import bench_together
from jellybean.cli.console import progress, warn
from jellybean.cli.projects import options_of_plan, recorded_if_possible
from jellybean.cli.serving.gateway_options import unknown_workflow
from jellybean.cli.times import command_limit
from jellybean.documents import MultiWorkflowProject, Project, load_any_project
from jellybean.report.records import record_measurement
from jellybean.serving.client import served_document
from jellybean.serving.endpoint import Endpoint, owner_endpoint
from jellybean.serving.errors import ServingError
from jellybean_solver import from_document

_SCALES = (0.001, 1000.0)


def parse_rate_scales(texts: Sequence[str]) -> dict[str, float]:
    """Workflow -> factor of `NAME=10` or `10`, which is that of all others, under the empty name."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not _SCALES[0] <= factor <= _SCALES[1]:
            raise typer.BadParameter(
                f"--rate-scale {text}: write a factor of {_SCALES[0]:g} to {_SCALES[1]:g}, as 2, or for one of several "
                "workflows as NAME=2"
            )
        found[name] = factor
    return found


def measure_workflows(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    workflow: str = "",
    seed: int = 0,
    duration_s: float | None = None,
    rate_scales: Mapping[str, float] = {},
    saturate: bool = False,
    endpoint: Endpoint | None = None,
    documents: Path | None = None,
    time_limit_s: float | None = None,
) -> tuple[BenchResult, ...]:
    """Measure the workflows that are served while all have their load, or `workflow` alone; record it in the store.

    `rate_scales`: as of `parse_rate_scales`. `saturate`: the highest sustained rate of `workflow`. Other arguments as
    of `measure`.
    """
    document = served_document(endpoint or owner_endpoint(directory))
    options = overrides or from_document(document).overrides
    with options_of_plan(() if overrides else options, "the plan that is served was made with this option"):
        project = load_any_project(documents or directory, options, files=documents is None)
    projects = _chosen(project, workflow)
    for name in rate_scales:
        if name and name not in projects:
            raise unknown_workflow(f"--rate-scale {name}=...", name, projects)
    if saturate and len(projects) > 1:
        raise typer.BadParameter(f"--saturate is of one workflow: say which with --workflow ({', '.join(projects)})")
    with progress("saturate" if saturate else "bench") as advance, command_limit(time_limit_s):
        if saturate:
            ((name, own),) = projects.items()
            found: tuple[BenchResult, ...] = (
                bench_module.saturate(
                    own, seed=seed, window_s=duration_s, progress=advance, endpoint=endpoint, served_in=directory,
                    workflow=name,
                ),
            )  # fmt: skip
        else:
            found = bench_together(
                directory,
                projects,
                duration_s=duration_s or DURATION_S,
                rate_scales={name: rate_scales.get(name, rate_scales.get("", 1.0)) for name in projects},
                seed=seed,
                progress=advance,
                endpoint=endpoint,
            )
    if any(result.plan != document["hash"] for result in found):
        raise ServingError("another plan took over before the measurement began; nothing was stored: measure again")
    for result in found:
        if not result.ended_by_time_limit:
            with recorded_if_possible("this measurement"):
                record_measurement(directory, document, result.to_dict())
        for caveat in (*result.caveats, *cut_short_notes(result, duration_s, saturate=saturate)):
            warn(f"{result.workflow}: {caveat}")
    return found


def _chosen(project: Project | MultiWorkflowProject, workflow: str) -> Mapping[str, Project]:
    """The workflows to measure, by name."""
    known = project.workflows if isinstance(project, MultiWorkflowProject) else {project.workflow.name: project}
    if not workflow:
        return known
    if workflow not in known:
        raise unknown_workflow(f"--workflow {workflow}", workflow, known)
    return {workflow: known[workflow]}


def cut_short_notes(result: BenchResult, duration_s: float | None, *, saturate: bool) -> Iterator[str]:
    """What the time limit left out of a measurement, in words. `duration_s`: asked for; None by default."""
    if result.ended_by_time_limit:
        yield f"{result.ended_by_time_limit}; the result is not recorded"
    wanted_s = duration_s or DURATION_S
    if not saturate and result.duration_s < wanted_s:
        yield f"the time limit left a window of {result.duration_s:.3g} s, in place of {wanted_s:g} s"
