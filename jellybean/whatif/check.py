"""Replays a trace over the current plan and, when a target breaks, looks for rates to plan for instead."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jellybean.documents import AnyProject, build_problem, load_any_project
from jellybean.documents.rate_trace import RateTraceFile, read_rate_trace
from jellybean.errors import DocumentError, SolverError
from jellybean.planning.project_plan import current_plan, plan_project
from jellybean.planning.simulation import brains, slow_latency_s
from jellybean_solver import WORKFLOW_SEPARATOR, Plan, Replay, replay

HEADROOM = (1.0, 1.1, 1.25, 1.5)  # times the peak rates, tried in turn

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class Hint:
    """How to plan so that the trace holds, and check it: `command`, or `reasons` why none was found."""

    command: str | None
    cost_usd_per_h: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """The replay of a trace over a plan. `hint` is None when nothing breaks; `renewed`: why the plan was made anew."""

    project: AnyProject
    plan: Plan
    renewed: str
    file: RateTraceFile
    replay: Replay
    hint: Hint | None


def check_trace(
    directory: Path,
    path: Path,
    overrides: Sequence[str] = (),
    *,
    seed: int = 0,
    progress: Progress = lambda done, total, label: None,
) -> Check:
    """Replay the trace in `path` over DIR/plan.json, made anew if it does not answer the documents.

    DocumentError for a trace that is no trace, InfeasibleError when there is no plan to begin with.
    """
    project = load_any_project(directory, overrides)
    file = read_rate_trace(path, build_problem(project))
    progress(0, 1, "the plan")
    plan, renewed = current_plan(project)
    found = _replayed(plan, file, seed, path.name, progress)
    hint = _hint(directory, overrides, plan, file, seed, progress) if found.breaks else None
    return Check(project, plan, renewed, file, found, hint)


def _replayed(plan: Plan, file: RateTraceFile, seed: int, label: str, progress: Progress) -> Replay:
    def advance(done: float, total: float) -> None:
        progress(done, total, label)

    return replay(plan, brains, file.trace, slow_latency_s=slow_latency_s(plan), seed=seed, progress=advance)


def _hint(
    directory: Path, overrides: Sequence[str], plan: Plan, file: RateTraceFile, seed: int, progress: Progress
) -> Hint:
    """The lowest headroom over the peak whose plan holds throughout the very same trace."""
    peaks = file.trace.peaks_per_s
    declared = {source.name: source.rate_per_s for source in plan.sources}
    reasons: tuple[str, ...] = ("the current plan was made for higher rates than the trace has",)
    for factor in HEADROOM:
        rates = {name: float(f"{peak * factor:.6g}") for name, peak in peaks.items() if peak > 0}
        if all(rate <= declared[name] for name, rate in rates.items()):
            continue
        wanted = [*overrides, *(f"{_path(name)}.rate={rate:.6g}/s" for name, rate in rates.items())]
        shown = " and ".join(f"{name} {rate:.6g}/s" for name, rate in rates.items())
        try:
            planned = plan_project(load_any_project(directory, wanted), compare=False)
            if planned.plan is None:
                return Hint(None, None, (f"no plan meets the targets at {shown}", *planned.reasons))
            again = _replayed(planned.plan, file, seed, f"at {shown}", progress)
        except (DocumentError, SolverError) as error:
            return Hint(None, None, (str(error),))
        if not again.breaks:
            options = " ".join(f"--set {shlex.quote(text)}" for text in wanted)
            checked = f"jellybean plan {shlex.quote(str(directory))} --check {shlex.quote(str(file.path))}"
            command = f"{checked} {options}"
            return Hint(command, planned.plan.cost.total_usd_per_h, ())
        reasons = (f"even the plan for {shown} would break: {again.breaks[0].text}",)
    return Hint(None, None, reasons)


def _path(source: str) -> str:
    """A source as `--set` reaches it."""
    workflow, of, name = source.rpartition(WORKFLOW_SEPARATOR)
    return f"{workflow}.sources.{name}" if of else f"sources.{name}"
