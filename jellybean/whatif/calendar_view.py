"""Text and JSON of plans by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.planning.mixing import selection_lines, selections_json
from jellybean.whatif.calendar import Calendar, TimedPlan
from jellybean_solver import Plan, to_document

MOST_LISTED = 6  # sources in a row


def calendar_text(found: Calendar) -> RenderableType:
    """Cost beside that of one plan for all of the time, and a row for each period."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("from", "to", "rates", "workers"):
        table.add_column(heading, overflow="fold")
    for heading in ("USD/h", "USD", "change USD"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None  # the first row states its plan also where that of the last one goes on
    for one in found.periods:
        is_new = before is None or one.options != before.options
        table.add_row(
            clock(one.period.start_s + found.file.origin_s),
            clock(one.period.end_s + found.file.origin_s),
            rates_text(one.period.rates_per_s),
            "\n".join((workers(one.plan), *_left_out(one.plan), *selection_lines(one.plan))) if is_new else "as before",
            formats.usd(one.cost_usd / one.period.hours),
            formats.usd(one.cost_usd),
            f"{formats.usd(one.change_usd)}, {formats.count(one.loads, 'load')}" if one.loads else "",
        )
        before = one
    return Group(Text(_headline(found)), Padding(table, (0, 0, 0, 2), expand=False))


def _headline(found: Calendar) -> str:
    length = formats.span(found.file.trace.length_s)
    total, peak = found.total_usd + found.penalty_usd + found.forgone_usd, found.peak_usd
    text = f"{formats.count(found.plans, 'plan')} in {length}: {formats.usd(found.total_usd)} USD"
    if found.change_usd:
        text += f", of which changes {formats.usd(found.change_usd)}"
    if found.unused_usd:
        joined = "and" if found.change_usd else "of which"
        text += f", {joined} rests of started units {formats.usd(found.unused_usd)}"
    if found.penalty_usd:
        text += f"; with penalties of soft targets {formats.usd(found.total_usd + found.penalty_usd)}"
    if found.forgone_usd:
        text += f"; with the worth of what is left out {formats.usd(total)}"
    if found.mean_accuracy is not None:
        text += f"; mean accuracy {formats.accuracy(found.mean_accuracy)} over the time"
    if peak > total:
        text += f"; one plan for the highest rates: {formats.usd(peak)} ({(peak / total - 1) * 100:.0f} % more)"
    if found.bound_usd > 0:
        text += f"; at least {formats.usd(found.bound_usd)} whatever the plans"
    return text


def rates_text(rates_per_s: Mapping[str, float]) -> str:
    """`camera 5/s, till 2/s`; of many sources their number and the sum."""
    if len(rates_per_s) > MOST_LISTED:
        return f"{formats.count(len(rates_per_s), 'source')}, {formats.rate(sum(rates_per_s.values()))} together"
    return ", ".join(f"{name} {formats.rate(rate)}" for name, rate in rates_per_s.items())


def _left_out(plan: Plan) -> Iterator[str]:
    if plan.left_out:
        yield f"without {', '.join(one.name for one in plan.left_out)}"


def workers(plan: Plan) -> str:
    """`cloud 2, edge 1`: workers by pool."""
    counts: dict[str, int] = {}
    for worker in plan.workers:
        counts[worker.pool] = counts.get(worker.pool, 0) + 1
    return ", ".join(f"{pool} {count}" for pool, count in counts.items())


def clock(seconds: float) -> str:
    """Time since 0 as hours and minutes, with days from the second one on: `06:30`, `24:00`, `1d 06:30`."""
    days, rest = divmod(round(seconds), 86_400)
    if days == 1 and rest == 0:
        days, rest = 0, 86_400
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    text = f"{hours:02}:{minutes:02}" + (f":{left:02}" if left else "")
    return f"{days}d {text}" if days else text


def calendar_json(found: Calendar) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "total_usd": found.total_usd,
        "change_usd": found.change_usd,
        "unused_usd": found.unused_usd,
        **({"unplanned": found.unplanned} if found.unplanned else {}),
        **({"penalty_usd": found.penalty_usd} if found.penalty_usd else {}),
        **({"forgone_usd": found.forgone_usd} if found.forgone_usd else {}),
        **({} if found.mean_accuracy is None else {"mean_accuracy": found.mean_accuracy}),
        "peak_usd": found.peak_usd,
        "bound_usd": found.bound_usd,
        "repeats": found.repeats,
        "periods": [_period_json(found, one) for one in found.periods],
    }


def _period_json(found: Calendar, one: TimedPlan) -> Mapping[str, Any]:
    return {
        "start_s": one.period.start_s + found.file.origin_s,
        "end_s": one.period.end_s + found.file.origin_s,
        "rates_per_s": dict(one.period.rates_per_s),
        "plan": to_document(one.plan)["hash"],
        **({"accuracy": one.plan.accuracy, "selections": selections_json(one.plan)} if one.plan.mixes else {}),
        "cost_usd_per_h": one.cost_usd / one.period.hours,
        "cost_usd": one.cost_usd,
        "change_usd": one.change_usd,
        **({"penalty_usd": one.penalty_usd} if one.penalty_usd else {}),
        **({"forgone_usd": one.forgone_usd} if one.forgone_usd else {}),
        **({"left_out": [gone.name for gone in one.plan.left_out]} if one.plan.left_out else {}),
        "loads": one.loads,
        "command": one.command(found.project.directory, found.command_verb),
    }
