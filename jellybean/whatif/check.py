"""Replay a rate trace over the current plan; if a target is missed, find rates for which to plan instead."""

from __future__ import annotations

import math
import operator
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.pictures import SERIES, WORKER
from jellybean.display.tables import figures_table, indented
from jellybean.display.terminal import BAD, GOOD, WARN
from jellybean.display.time_picture import Panel, Scale, Steps, save_time_picture
from jellybean.documents import AnyProject, build_problem, rates_of_sources, with_settings
from jellybean.documents.rate_trace import RateTraceFile, read_rate_trace
from jellybean.errors import DocumentError, SolverError
from jellybean.planning.plan_file import current_plan, plan_options
from jellybean.planning.project_plan import plan_project
from jellybean.planning.simulated_deadline import no_progress
from jellybean.planning.simulation import brains, slow_latency_s
from jellybean.planning.soft_targets import latency_penalty, soft_targets
from jellybean_solver import (
    OutOfTimeError,
    Plan,
    Progress,
    Replay,
    ReplayInterval,
    TargetBreach,
    rate_text,
    replay,
    to_document,
    work_limit,
)

HEADROOM = (1.0, 1.1, 1.25, 1.5)  # factors on the peak rates, tried in this order
MAX_ROWS = 24  # rows of the table; JSON has every interval


@dataclass(frozen=True, slots=True)
class Hint:
    """The `command` that makes a plan that meets all targets at the peak rates, or `reasons` why none was found."""

    command: str | None
    cost_usd_per_h: float | None
    reasons: tuple[str, ...]

    @property
    def text(self) -> Text:
        """Introduces the command, which is printed on a line of its own to be copied, or says why there is none."""
        if self.command is None:
            return Text(f"  no rates were found for which a plan meets all targets: {'; '.join(self.reasons)}", WARN)
        cost = formats.usd(self.cost_usd_per_h)
        return Text(f"  a plan for the peak rates meets all targets at {cost} USD/h; make it with:", "dim")


@dataclass(frozen=True)
class TraceCheck:
    """The replay of a trace over a plan, as text, JSON and picture.

    `hint` is None if all targets are met. `renewed`: why the plan was made again before the replay, otherwise empty.
    """

    plan: Plan
    renewed: str
    file: RateTraceFile
    replay: Replay
    hint: Hint | None

    @cached_property
    def penalty_usd_per_h(self) -> dict[str, float]:
        """What the p99 of intervals counts above soft targets: the highest, and the mean of the time; or nothing."""
        soft, intervals = soft_targets(self.plan), self.replay.intervals
        if not soft:
            return {}
        own = [
            latency_penalty(self.plan, {name: interval.of(name).latency_p99_s for name in soft})
            for interval in intervals
        ]
        lengths_s = [interval.end_s - interval.start_s for interval in intervals]
        return {"highest": max(own), "mean": sum(map(operator.mul, own, lengths_s)) / sum(lengths_s)}

    def json(self) -> dict[str, Any]:
        """The replay as JSON values, with times as in the trace file."""
        replay, origin_s = self.replay, self.file.origin_s

        def from_origin(item: TargetBreach | ReplayInterval) -> dict[str, Any]:
            return asdict(item) | {"start_s": item.start_s + origin_s, "end_s": item.end_s + origin_s}

        penalty = {"latency_penalty_usd_per_h": self.penalty_usd_per_h} if self.penalty_usd_per_h else {}
        return {
            "verdict": "would_break" if replay.breaks else "holds",
            "trace": str(self.file.path),
            "plan": to_document(self.plan)["hash"],
            "planned_anew": self.renewed or None,
            "seed": replay.seed,
            "start_s": origin_s,
            "end_s": origin_s + replay.length_s,
            "requests": replay.requests,
            "simulated_share": replay.share,
            "breaks": [from_origin(item) for item in replay.breaks],
            **penalty,
            "intervals": [from_origin(interval) for interval in replay.intervals],
            "hint": None if self.hint is None else asdict(self.hint),
        }

    def text(self) -> RenderableType:
        """Verdict, table of figures over time, and a hint how to plan for the trace."""
        parts: list[RenderableType] = [self._verdict()]
        for item in self.replay.breaks:
            more = f" (in {item.intervals} of {len(self.replay.intervals)} intervals)" if item.intervals > 1 else ""
            parts.append(Text(f"  {self._time(item.start_s)} to {self._time(item.end_s)}: {item.text}{more}", BAD))
        style = WARN if self.replay.share < 1 else "dim"
        parts += [*(Text(f"  {note}", style) for note in self._notes()), indented(self._table())]
        return Group(*parts, *([] if self.hint is None else [self.hint.text]))

    def _time(self, at_s: float) -> str:
        return f"{self.file.origin_s + at_s:,.10g} s"

    def _verdict(self) -> Text:
        replay, name = self.replay, self.plan.name
        if replay.breaks:
            when = self._time(replay.breaks[0].start_s)
            return Text.assemble((f"{name}: misses a target at {when}", f"bold {BAD}"), f" of {self.file.path}")
        busiest = _busiest(replay.intervals)
        return Text.assemble(
            (f"{name}: meets all targets", f"bold {GOOD}"),
            f" throughout {self.file.path}: p99 latency up to "
            f"{_longest(interval.latency_p99_s for interval in replay.intervals)}, utilisation up to "
            f"{formats.percent(busiest.utilisation)} ({busiest.busiest}), cost up to "
            f"{formats.usd(max(interval.cost_usd_per_h for interval in replay.intervals))} USD/h",
        )

    def _notes(self) -> Iterator[str]:
        replay = self.replay
        yield f"{replay.requests:,} requests in {formats.duration(replay.length_s)}, seed {replay.seed}"
        if self.plan.left_out:
            yield f"without what the plan leaves out: {', '.join(one.name for one in self.plan.left_out)}"
        if penalty := self.penalty_usd_per_h:
            soft = soft_targets(self.plan)
            target = f"target {formats.duration(soft[''].p99_s)}: counts" if "" in soft else "targets: count"
            highest, mean = formats.usd(penalty["highest"]), formats.usd(penalty["mean"])
            yield f"soft p99 {target} up to {highest} USD/h, {mean} USD/h in the mean"
        if replay.share < 1:
            yield (
                f"the trace is too long to simulate every request: where no worker or link is near its limit, only "
                f"the start of a stretch was simulated ({formats.duration(replay.simulated_s)} of "
                f"{formats.duration(replay.length_s)} in total); offered, answered and backlog are of the simulated "
                "time"
            )

    def _table(self) -> Table:
        """At most `MAX_ROWS` rows of nearly as many intervals each."""
        headings = ("from\ns", "rate\n/s", "offered", "answered", "latency\np50", "latency\np99", "busiest")
        table = figures_table(*headings, "utilisation", "backlog", "traffic\nUSD/h", words=("busiest",), gap=1)
        intervals = self.replay.intervals
        count = min(MAX_ROWS, len(intervals))
        if count < len(intervals):
            table.title = f"{len(intervals)} intervals, several per row: counts are sums, other figures maxima"
            table.title_justify = "left"
        borders = [round(index * len(intervals) / count) for index in range(count + 1)]
        for row in (intervals[start:end] for start, end in pairwise(borders)):
            busiest = _busiest(row)
            is_broken = any(row[0].start_s <= item.start_s < row[-1].end_s for item in self.replay.breaks)
            table.add_row(
                f"{self.file.origin_s + row[0].start_s:,.10g}",
                formats.number(max(max(one.rates_per_s.values()) for one in row)),
                f"{sum(one.offered for one in row):,}",
                f"{sum(one.answered for one in row):,}",
                _longest(one.latency_p50_s for one in row),
                _longest(one.latency_p99_s for one in row),
                Text(busiest.busiest),
                formats.percent(busiest.utilisation),
                f"{max(one.backlog for one in row):,}",
                formats.usd(max(one.network_usd_per_h for one in row)),
                style=BAD if is_broken else "",
            )
        return table

    def save_picture(self, path: Path) -> None:
        """Draw rates, latency and utilisation over time. JellyBeanError for a format other than .svg, .png and .pdf."""
        replay, stretches = self.replay, self.file.trace.stretches
        names: dict[tuple[float, ...], list[str]] = {}  # sources of one stream of requests share a curve
        for name in self.file.trace.peaks_per_s:
            names.setdefault(tuple(one.rates_per_s[name] for one in stretches), []).append(name)
        changes_s = [*(one.start_s for one in stretches), replay.length_s]
        colors = SERIES * len(names)
        rates = [
            Steps(", ".join(own), changes_s, values, color)
            for (values, own), color in zip(names.items(), colors, strict=False)
        ]
        planned = self.plan.sources[0].rate_per_s
        slo = self.plan.slo
        target_s, soft = slo.latency_p99_s, ""
        if slo.soft_latency_p99_s is not None:
            target_s, soft = slo.soft_latency_p99_s, "soft "
        borders_s = [*(one.start_s for one in replay.intervals), replay.intervals[-1].end_s]

        def curve(label: str, key: str, color: str) -> Steps:
            return Steps(label, borders_s, [getattr(one, key) for one in replay.intervals], color)

        latencies = [curve("p50", "latency_p50_s", SERIES[0]), curve("p99", "latency_p99_s", SERIES[1])]
        peak = f"busiest worker or link (peak: {_busiest(replay.intervals).busiest})"
        panels = (
            Panel("requests / s", rates, [(planned, f"planned\n{formats.rate(planned)}")] * (len(rates) == 1)),
            Panel(
                "latency",
                latencies,
                [] if target_s is None else [(target_s, f"{soft}p99 target\n{formats.duration(target_s)}")],
                Scale.DURATIONS,
            ),
            Panel("utilisation", [curve(peak, "utilisation", WORKER)], [(1.0, "")], Scale.SHARE),
        )
        verdict = "misses a target" if replay.breaks else "meets all targets"
        sampled = f", {replay.share:.0%} of the time simulated" if replay.share < 1 else ""
        title = f"{self.plan.name}: {verdict} in {self.file.path.name}{sampled}"
        bad = [span for item in replay.breaks for span in item.spans_s]
        save_time_picture(path, title, panels, self.file.origin_s, bad)


def _busiest(intervals: Sequence[ReplayInterval]) -> ReplayInterval:
    return max(intervals, key=lambda interval: interval.utilisation)


def _longest(latencies_s: Iterator[float]) -> str:
    """The longest latency, of the intervals in which requests came."""
    return formats.duration(max((one for one in latencies_s if not math.isnan(one)), default=None))


def check_trace(
    project: AnyProject,
    path: Path,
    *,
    seed: int = 0,
    progress: Progress = no_progress,
    writes: bool = True,
) -> TraceCheck:
    """Replay the trace in `path` over DIR/plan.json, planning again first if the documents have changed.

    DocumentError for an invalid trace, InfeasibleError if there is no plan. `writes`: as in `current_plan`.
    """
    file = read_rate_trace(path, build_problem(project))
    progress(0, 1, "plan")
    plan, renewed = current_plan(project, writes=writes)

    def replayed(of: Plan, label: str) -> Replay:
        def advance(done: float, total: float) -> None:
            progress(done, total, label)

        return replay(of, brains, file.trace, slow_latency_s=slow_latency_s(of), seed=seed, progress=advance)

    first = replayed(plan, path.name)
    hint = _hint(project, plan, file.trace.peaks_per_s, replayed) if first.breaks else None
    return TraceCheck(plan, renewed, file, first, hint)


def _hint(
    project: AnyProject, plan: Plan, peaks_per_s: Mapping[str, float], replayed: Callable[[Plan, str], Replay]
) -> Hint:
    """Find the smallest headroom over the peak rates whose plan meets all targets throughout the trace."""
    declared = {source.name: source.rate_per_s for source in plan.sources}
    reasons: tuple[str, ...] = ("the current plan was made for higher rates than those in the trace",)
    for factor in HEADROOM:
        peaks = {name: peak for name, peak in peaks_per_s.items() if name in declared and peak > 0}
        rates = {name: float(f"{peak * factor:.6g}") for name, peak in peaks.items()}
        if all(rate <= declared[name] for name, rate in rates.items()):
            continue
        shown = " and ".join(f"{name} {rate_text(rate)}" for name, rate in rates.items())
        late = f"time ended before a plan for {shown} was found; allow more time"
        try:
            _require_time(late)
            planned = plan_project(with_settings(project, rates_of_sources(project, rates)), compare=False)
            if planned.plan is None:
                return Hint(None, None, (f"no plan meets the targets at {shown}", *planned.reasons))
            usd_per_h = planned.plan.cost.total_usd_per_h
            cost = formats.usd(usd_per_h)
            _require_time(
                f"a plan for {shown} costs {cost} USD/h, but time ended before the trace was replayed over it"
            )
            second = replayed(planned.plan, f"at {shown}")
        except (DocumentError, SolverError) as error:
            return Hint(None, None, (str(error),))
        if not second.breaks:
            command = f"jellybean plan {shlex.quote(str(project.directory))}{plan_options(planned.plan)}"
            return Hint(command, usd_per_h, ())
        reasons = (f"even the plan for {shown} would miss a target: {second.breaks[0].text}",)
    return Hint(None, None, reasons)


def _require_time(otherwise: str) -> None:
    """OutOfTimeError, with what is known then, once the time of the command is over: the next step cannot be cut."""
    if work_limit().left() == 0.0:
        raise OutOfTimeError(otherwise)
