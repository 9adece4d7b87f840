"""The replay of a rate trace as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, WARN
from jellybean.planning.deadline.soft_search import SoftTarget
from jellybean.planning.deadline.soft_targets import soft_targets
from jellybean.whatif.check import Hint, TraceCheck
from jellybean_solver import ReplayInterval, TargetBreach, to_document

MAX_ROWS = 24  # rows of the table; JSON has every interval


def check_text(check: TraceCheck) -> RenderableType:
    """Verdict, table of figures over time, and a hint how to plan for the trace."""
    parts: list[RenderableType] = [_verdict(check)]
    parts += [Text(f"  {line}", BAD) for line in (_describe_break(check, item) for item in check.replay.breaks)]
    parts += [Text(f"  {note}", WARN if check.replay.share < 1 else "dim") for note in _notes(check)]
    parts.append(Padding(_table(check), (0, 0, 0, 2), expand=False))
    if check.hint is not None:
        parts.append(_hint(check.hint))
    return Group(*parts)


def check_json(check: TraceCheck) -> dict[str, Any]:
    """The replay as JSON values, with times as in the trace file."""
    replay, origin = check.replay, check.file.origin_s
    return {
        "verdict": "would_break" if replay.breaks else "holds",
        "trace": str(check.file.path),
        "plan": to_document(check.plan)["hash"],
        "planned_anew": check.renewed or None,
        "seed": replay.seed,
        "start_s": origin,
        "end_s": origin + replay.length_s,
        "requests": replay.requests,
        "simulated_share": replay.share,
        "breaks": [_from_origin(item, origin) for item in replay.breaks],
        **({} if (penalty := _penalties(check)) is None else {"latency_penalty_usd_per_h": penalty}),
        "intervals": [_from_origin(interval, origin) for interval in replay.intervals],
        "hint": None if check.hint is None else dataclasses.asdict(check.hint),
    }


def _from_origin(item: TargetBreach | ReplayInterval, origin_s: float) -> dict[str, Any]:
    values = dataclasses.asdict(item)
    return values | {"start_s": item.start_s + origin_s, "end_s": item.end_s + origin_s}


def _verdict(check: TraceCheck) -> Text:
    replay, name = check.replay, check.plan.name
    if replay.breaks:
        when = _time(check, replay.breaks[0].start_s)
        return Text.assemble((f"{name}: misses a target at {when}", f"bold {BAD}"), f" of {check.file.path}")
    worst = max((i.latency_p99_s for i in replay.intervals if not math.isnan(i.latency_p99_s)), default=None)
    busiest = max(replay.intervals, key=lambda interval: interval.utilisation)
    return Text.assemble(
        (f"{name}: meets all targets", f"bold {GOOD}"),
        f" throughout {check.file.path}: p99 latency up to {formats.duration(worst)}, utilisation up to "
        f"{formats.percent(busiest.utilisation)} ({busiest.busiest}), cost up to "
        f"{formats.usd(max(i.cost_usd_per_h for i in replay.intervals))} USD/h",
    )


def _describe_break(check: TraceCheck, item: TargetBreach) -> str:
    span = f"{_time(check, item.start_s)} to {_time(check, item.end_s)}"
    more = f" (in {item.intervals} of {len(check.replay.intervals)} intervals)" if item.intervals > 1 else ""
    return f"{span}: {item.text}{more}"


def _notes(check: TraceCheck) -> list[str]:
    replay = check.replay
    notes = [f"{replay.requests:,} requests in {formats.duration(replay.length_s)}, seed {replay.seed}"]
    if check.plan.left_out:
        names = ", ".join(one.name for one in check.plan.left_out)
        notes.append(f"without what the plan leaves out: {names}")
    if (penalty := _penalties(check)) is not None:
        soft = soft_targets(check.plan)
        target = f"target {formats.duration(soft[''].p99_s)}: counts" if "" in soft else "targets: count"
        highest, mean = formats.usd(penalty["highest"]), formats.usd(penalty["mean"])
        notes.append(f"soft p99 {target} up to {highest} USD/h, {mean} USD/h in the mean")
    if replay.share < 1:
        notes.append(
            f"the trace is too long to simulate every request: where no worker or link is near its limit, only the "
            f"start of a stretch was simulated ({formats.duration(replay.simulated_s)} of "
            f"{formats.duration(replay.length_s)} in total); offered, answered and backlog are of the simulated time"
        )
    return notes


def _penalties(check: TraceCheck) -> dict[str, float] | None:
    """What the p99 of intervals counts above a soft target, at most and in the mean of the time; None without one."""
    soft, intervals = soft_targets(check.plan), check.replay.intervals
    if not soft:
        return None
    own = [sum(_penalty(one, interval.of(name)) for name, one in soft.items()) for interval in intervals]
    lengths_s = [interval.end_s - interval.start_s for interval in intervals]
    return {"highest": max(own), "mean": sum(map(operator.mul, own, lengths_s)) / sum(lengths_s)}


def _penalty(soft: SoftTarget, interval: ReplayInterval) -> float:
    return 0.0 if math.isnan(interval.latency_p99_s) else soft.penalty(interval.latency_p99_s)


def _table(check: TraceCheck) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("from\ns", "rate\n/s", "offered", "answered", "latency\np50", "latency\np99"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("busiest", overflow="fold")
    for heading in ("utilisation", "backlog", "traffic\nUSD/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    intervals = check.replay.intervals
    rows = _rows(intervals)
    if len(rows) < len(intervals):
        table.title = f"{len(intervals)} intervals, several per row: counts are sums, other figures maxima"
        table.title_justify = "left"
    broken = [(item.start_s, item.end_s) for item in check.replay.breaks]
    for row in rows:
        busiest = max(row, key=lambda interval: interval.utilisation)
        first = any(row[0].start_s <= start < row[-1].end_s for start, _ in broken)
        table.add_row(
            f"{check.file.origin_s + row[0].start_s:,.10g}",
            formats.number(max(max(interval.rates_per_s.values()) for interval in row)),
            f"{sum(interval.offered for interval in row):,}",
            f"{sum(interval.answered for interval in row):,}",
            formats.duration(_highest([interval.latency_p50_s for interval in row])),
            formats.duration(_highest([interval.latency_p99_s for interval in row])),
            Text(busiest.busiest),
            formats.percent(busiest.utilisation),
            f"{max(interval.backlog for interval in row):,}",
            formats.usd(max(interval.network_usd_per_h for interval in row)),
            style=BAD if first else "",
        )
    return table


def _rows(intervals: Sequence[ReplayInterval]) -> list[Sequence[ReplayInterval]]:
    """Group consecutive intervals into at most MAX_ROWS rows of nearly equal size."""
    count = min(MAX_ROWS, len(intervals))
    borders = [round(index * len(intervals) / count) for index in range(count + 1)]
    return [intervals[start:end] for start, end in pairwise(borders)]


def _hint(hint: Hint) -> Text:
    """Text that introduces the hint's command, or says why there is none.

    The command itself is printed on its own line, so that it can be copied.
    """
    if hint.command is None:
        return Text(f"  no rates were found for which a plan meets all targets: {'; '.join(hint.reasons)}", WARN)
    cost = formats.usd(hint.cost_usd_per_h)
    return Text(f"  a plan for the peak rates meets all targets at {cost} USD/h; make it with:", "dim")


def _highest(values: Sequence[float]) -> float | None:
    return max((value for value in values if not math.isnan(value)), default=None)


def _time(check: TraceCheck, at_s: float) -> str:
    return f"{check.file.origin_s + at_s:,.10g} s"
