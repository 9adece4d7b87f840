"""A check as people and as machines read it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import figures as units
from jellybean.whatif.check import Check, Hint
from jellybean_solver import ReplayInterval, TargetBreach, to_document

MOST_ROWS = 24  # of the table; JSON has every interval


def check_text(check: Check) -> RenderableType:
    """The verdict first, then the figures over time, then what may be done."""
    parts: list[RenderableType] = [_verdict(check)]
    parts += [Text(f"  {line}", "red") for line in (_told(check, item) for item in check.replay.breaks)]
    parts += [Text(f"  {note}", "yellow" if check.replay.share < 1 else "dim") for note in _notes(check)]
    parts.append(Padding(_table(check), (0, 0, 0, 2), expand=False))
    if check.hint is not None:
        parts.append(_hint(check.hint))
    return Group(*parts)


def check_json(check: Check) -> dict[str, Any]:
    """Times are the trace file's own; figures as `ReplayInterval` and `TargetBreach` state them."""
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
        "intervals": [_from_origin(interval, origin) for interval in replay.intervals],
        "hint": None if check.hint is None else dataclasses.asdict(check.hint),
    }


def _from_origin(item: TargetBreach | ReplayInterval, origin_s: float) -> dict[str, Any]:
    values = dataclasses.asdict(item)
    return values | {"start_s": item.start_s + origin_s, "end_s": item.end_s + origin_s}


def _verdict(check: Check) -> Text:
    replay, name = check.replay, check.plan.name
    if replay.breaks:
        when = _time(check, replay.breaks[0].start_s)
        return Text.assemble((f"{name}: would break at {when}", "bold red"), f" of {check.file.path}")
    worst = max((i.latency_p99_s for i in replay.intervals if not math.isnan(i.latency_p99_s)), default=None)
    busiest = max(replay.intervals, key=lambda interval: interval.utilisation)
    return Text.assemble(
        (f"{name}: holds", "bold green"),
        f" throughout {check.file.path}: p99 latency up to {units.duration(worst)}, {busiest.busiest} busy up to "
        f"{units.percent(busiest.utilisation)}, {units.usd(max(i.cost_usd_per_h for i in replay.intervals))} USD/h at "
        "most",
    )


def _told(check: Check, item: TargetBreach) -> str:
    span = f"{_time(check, item.start_s)} to {_time(check, item.end_s)}"
    more = f" (breaks in {item.intervals} of {len(check.replay.intervals)} intervals)" if item.intervals > 1 else ""
    return f"{span}: {item.text}{more}"


def _notes(check: Check) -> list[str]:
    replay = check.replay
    notes = [f"{replay.requests:,} requests in {units.duration(replay.length_s)}, seed {replay.seed}"]
    if replay.share < 1:
        notes.append(
            f"too long to simulate every request: of every stretch in which no worker or link is near its limit only "
            f"the beginning was, so {units.duration(replay.simulated_s)} of {units.duration(replay.length_s)} in all; "
            "offered, answered and backlog count what was simulated"
        )
    return notes


def _table(check: Check) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("from\ns", "rate\n/s", "offered", "answered", "latency\np50", "latency\np99"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("busiest", overflow="fold")
    for heading in ("busy", "backlog", "traffic\nUSD/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    intervals = check.replay.intervals
    rows = _rows(intervals)
    if len(rows) < len(intervals):
        table.title = f"{len(intervals)} intervals, several a row: counts are sums, all else is the highest"
        table.title_justify = "left"
    broken = [(item.start_s, item.end_s) for item in check.replay.breaks]
    for row in rows:
        busiest = max(row, key=lambda interval: interval.utilisation)
        first = any(row[0].start_s <= start < row[-1].end_s for start, _ in broken)
        table.add_row(
            f"{check.file.origin_s + row[0].start_s:,.10g}",
            units.number(max(max(interval.rates_per_s.values()) for interval in row)),
            f"{sum(interval.offered for interval in row):,}",
            f"{sum(interval.answered for interval in row):,}",
            units.duration(_highest([interval.latency_p50_s for interval in row])),
            units.duration(_highest([interval.latency_p99_s for interval in row])),
            Text(busiest.busiest),
            units.percent(busiest.utilisation),
            f"{max(interval.backlog for interval in row):,}",
            units.usd(max(interval.network_usd_per_h for interval in row)),
            style="red" if first else "",
        )
    return table


def _rows(intervals: Sequence[ReplayInterval]) -> list[Sequence[ReplayInterval]]:
    """Consecutive intervals in at most MOST_ROWS rows of nearly equal number."""
    count = min(MOST_ROWS, len(intervals))
    borders = [round(index * len(intervals) / count) for index in range(count + 1)]
    return [intervals[start:end] for start, end in pairwise(borders)]


def _hint(hint: Hint) -> Text:
    """What comes before the command, which is printed by itself: whoever copies it needs it whole."""
    if hint.command is None:
        return Text(f"  no rates were found to plan for: {'; '.join(hint.reasons)}", "yellow")
    cost = units.usd(hint.cost_usd_per_h)
    return Text(f"  a plan for the peak holds, at {cost} USD/h; this makes and checks it:", "dim")


def _highest(values: Sequence[float]) -> float | None:
    return max((value for value in values if not math.isnan(value)), default=None)


def _time(check: Check, at_s: float) -> str:
    return f"{check.file.origin_s + at_s:,.10g} s"
