"""Load tests of a project's running plan: its own rate on held-out inputs, or the highest rate that it sustains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.bench.heldout import held_out
from jellybean.bench.result import BenchResult
from jellybean.bench.sampling_range import as_emulated, highest_rate_range, sampling_ranges
from jellybean.bench.target import DURATION_S, LoadSettings, Target, no_progress
from jellybean.bench.window import Progress
from jellybean.planning.stale_accuracy import stale_accuracy_text

if TYPE_CHECKING:
    from jellybean.documents import Project
    from jellybean.serving.endpoint import Endpoint
    from jellybean_solver import Plan


def bench(
    project: Project,
    *,
    duration_s: float = DURATION_S,
    warmup_s: float | None = None,
    rate_scale: float = 1.0,
    seed: int = 0,
    progress: Progress = no_progress,
    endpoint: Endpoint | None = None,
    served_in: Path | None = None,
    workflow: str = "",
) -> BenchResult:
    """Measure the project's running plan under the rate that it was made for, times `rate_scale`.

    `warmup_s`: before what counts; by default as `Target.warm_up_s`. `endpoint`: a gateway elsewhere that serves it.
    `workflow`: which one of several the project is, and `served_in`: the folder of all of them.
    """
    target = Target.of(served_in or project.directory, held_out(project), endpoint, workflow)
    warmup_s = target.warm_up_s if warmup_s is None else warmup_s
    settings = LoadSettings(duration_s, warmup_s, seed, all_rows=rate_scale <= 1.0)
    rate_per_s = rate_scale * target.planned_per_s
    result = target.measure(rate_per_s, settings, progress)
    due_s = target.due_s(rate_per_s, settings)
    ranges = sampling_ranges(_simulated(target, result), due_s, warmup_s, duration_s, progress, workflow)
    result = replace(result, ranges=ranges)
    return _with_stale_accuracy(result, project, target)


def saturate(
    project: Project,
    *,
    start_rate_per_s: float | None = None,
    seed: int = 0,
    window_s: float | None = None,
    progress: Progress = no_progress,
    endpoint: Endpoint | None = None,
    served_in: Path | None = None,
    workflow: str = "",
) -> BenchResult:
    """Measure the highest sustained rate of the project's running plan, by bisection.

    `start_rate_per_s`: first guess, for example the simulator's; the planned rate by default. The other
    arguments are as of `bench`; other workflows have no load meanwhile.
    """
    target = Target.of(served_in or project.directory, held_out(project), endpoint, workflow)
    result = target.saturate(start_rate_per_s, seed=seed, window_s=window_s, progress=progress)
    if result.highest_rate_per_s is not None and not workflow:
        ranges = highest_rate_range(_simulated(target, result), result.duration_s, result.highest_rate_per_s)
        result = replace(result, ranges=ranges)
    return _with_stale_accuracy(result, project, target)


def _simulated(target: Target, result: BenchResult) -> Plan:
    """The whole plan as it was measured: boxes that joined emulate nothing."""
    return target.served if result.joined else as_emulated(target.served)


def _with_stale_accuracy(result: BenchResult, project: Project, target: Target) -> BenchResult:
    """The result with what has changed since the accuracy of its plan was measured, if it has an accuracy."""
    if result.accuracy is None:
        return result
    return replace(result, stale_accuracy=stale_accuracy_text(project, target.plan))
