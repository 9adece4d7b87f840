"""Replay a rate trace over the current plan; if a target is missed, find rates for which to plan instead."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jellybean.display import formats
from jellybean.documents import AnyProject, build_problem, load_any_project, rates_of_sources, with_settings
from jellybean.documents.rate_trace import RateTraceFile, read_rate_trace
from jellybean.errors import DocumentError, SolverError
from jellybean.planning.plan_file import current_plan, plan_options
from jellybean.planning.project_plan import plan_project
from jellybean.planning.simulation import brains, slow_latency_s
from jellybean_solver import OutOfTimeError, Plan, Replay, rate_text, replay, work_limit

HEADROOM = (1.0, 1.1, 1.25, 1.5)  # factors on the peak rates, tried in this order

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class Hint:
    """The `command` that makes a plan that meets all targets at the peak rates, or `reasons` why none was found."""

    command: str | None
    cost_usd_per_h: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """The replay of a trace over a plan.

    `hint` is None if all targets are met. `renewed`: why the plan was made again before the replay, otherwise empty.
    """

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
    accept_stale: bool = False,
    writes: bool = True,
) -> TraceCheck:
    """Replay the trace in `path` over DIR/plan.json, planning again first if the documents have changed.

    DocumentError for an invalid trace, InfeasibleError if there is no plan. `accept_stale`: as in `load_project`;
    `writes`: as in `current_plan`.
    """
    project = load_any_project(directory, overrides, accept_stale=accept_stale)
    file = read_rate_trace(path, build_problem(project))
    progress(0, 1, "plan")
    plan, renewed = current_plan(project, writes=writes)
    replayed = _replay(plan, file, seed, path.name, progress)
    hint = _hint(project, plan, file, seed, progress) if replayed.breaks else None
    return TraceCheck(project, plan, renewed, file, replayed, hint)


def _replay(plan: Plan, file: RateTraceFile, seed: int, label: str, progress: Progress) -> Replay:
    def advance(done: float, total: float) -> None:
        progress(done, total, label)

    return replay(plan, brains, file.trace, slow_latency_s=slow_latency_s(plan), seed=seed, progress=advance)


def _hint(project: AnyProject, plan: Plan, file: RateTraceFile, seed: int, progress: Progress) -> Hint:
    """Find the smallest headroom over the peak rates whose plan meets all targets throughout the trace."""
    declared = {source.name: source.rate_per_s for source in plan.sources}
    peaks = {name: peak for name, peak in file.trace.peaks_per_s.items() if name in declared}
    reasons: tuple[str, ...] = ("the current plan was made for higher rates than those in the trace",)
    for factor in HEADROOM:
        rates = {name: float(f"{peak * factor:.6g}") for name, peak in peaks.items() if peak > 0}
        if all(rate <= declared[name] for name, rate in rates.items()):
            continue
        shown = " and ".join(f"{name} {rate_text(rate)}" for name, rate in rates.items())
        late = f"time ended before a plan for {shown} was found; allow more time"
        try:
            _require_time(late)
            planned = plan_project(with_settings(project, rates_of_sources(project, rates)), compare=False)
            if planned.plan is None:
                return Hint(None, None, (f"no plan meets the targets at {shown}", *planned.reasons))
            cost = formats.usd(planned.plan.cost.total_usd_per_h)
            _require_time(
                f"a plan for {shown} costs {cost} USD/h, but time ended before the trace was replayed over it"
            )
            second = _replay(planned.plan, file, seed, f"at {shown}", progress)
        except (DocumentError, SolverError) as error:
            return Hint(None, None, (str(error),))
        if not second.breaks:
            command = f"jellybean plan {shlex.quote(str(project.directory))}{plan_options(planned.plan)}"
            return Hint(command, planned.plan.cost.total_usd_per_h, ())
        reasons = (f"even the plan for {shown} would miss a target: {second.breaks[0].text}",)
    return Hint(None, None, reasons)


def _require_time(otherwise: str) -> None:
    """OutOfTimeError, with what is known then, once the time of the command is over: the next step cannot be cut."""
    if work_limit().left() == 0.0:
        raise OutOfTimeError(otherwise)
