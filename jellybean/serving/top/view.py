"""`jellybean top` on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, OverflowMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, LOAD, WARN
from jellybean.serving.outcomes import OUTCOME_WORDS, OutcomeKind
from jellybean.serving.top.overload import Overload, seconds
from jellybean.serving.top.top import ExpiringCertificate, Top, WorkerRow
from jellybean_agent import CPU, utc_minute
from jellybean_solver import plain_text, rate_text

_ENDLESS = 10_000  # columns, to measure how many a table needs
_BAR, _SHORT_BAR = 20, 10
_STATES = {
    **dict.fromkeys(("starting", "degraded", "draining"), WARN),
    **dict.fromkeys(("quarantined", "gone"), f"bold {BAD}"),
    "ready": GOOD,
}
_FAULTS = (OutcomeKind.LATE, OutcomeKind.SHED, OutcomeKind.UNAVAILABLE, OutcomeKind.SERVER_ERROR)
_HIGHLIGHT = 0.1  # busy fraction above the planned one that is highlighted


def render(top: Top, *, fold: bool = True) -> RenderableType:
    """All tables, as rich prints them. `fold`: break a long command at the screen's edge, where it cannot be copied."""
    parts: list[RenderableType] = [_header(top)]
    parts.append(_workflows(top) if top.workflows else _requests(top))
    for one in top.workflows or (top,):
        of = Text(f"{one.workflow}: ", "bold") if top.workflows else Text()
        parts += [Text.assemble(of, _audits(one.audits))] if any(one.audits.values()) else []
        parts += [of, *_overload(one.overload, fold=fold)] if one.overload is not None else []
    parts += [Text(sentence, f"bold {BAD}") for sentence in top.failing]
    parts += map(_expiring, top.expiring)
    parts += [Text(sentence, WARN) for sentence in top.refused]
    parts += [Text(f"{row.worker} is {row.state}: {row.reason}", WARN) for row in top.workers if row.reason]
    return Group(*parts, _Tables(top))


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables in the columns that the terminal has room for."""

    top: Top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tables = (_workers, _operators, _links) if self.top.links else (_workers, _operators)
        for table in tables:
            wide = table(self.top, narrow=False)
            fits = Measurement.get(console, options.update(max_width=_ENDLESS), wide).maximum <= options.max_width
            yield wide if fits else table(self.top, narrow=True)


def _header(top: Top) -> Text:
    found = Text.assemble((top.workflow, "bold"), f"  plan {top.plan[:12]}  ", (top.state, _STATES.get(top.state, "")))
    found.append(f"\n{formats.usd(top.usd_per_h)} USD/h", "bold")
    return found.append(f" (network {formats.usd(top.network_usd_per_h)}), {top.so_far_usd:.6f} USD so far")


def _workflows(top: Top) -> Table:
    """A row for each workflow: what is offered beside what was planned, and how it goes."""
    columns = (">planned/s", ">offered/s", ">answered/s", ">failed/s", ">p50", ">p99", ">target", ">USD/h")
    table = _table("workflow", *columns, narrow=False)
    for one in top.workflows:
        is_late = (one.latency_p99_s or 0.0) > (one.target_p99_s or math.inf)
        table.add_row(
            Text(one.workflow, "bold"),
            plain_text(one.planned_per_s),
            Text(f"{one.offered_per_s:.1f}", WARN if one.overload is not None else ""),
            f"{one.answered_per_s:.1f}",
            Text(f"{one.failed_per_s:.1f}", BAD if one.failed_per_s else ""),
            _ms(one.latency_p50_s),
            Text(_ms(one.latency_p99_s), WARN if is_late else ""),
            "" if one.target_p99_s is None else seconds(one.target_p99_s),
            formats.usd(one.usd_per_h),
        )
    return table


def _requests(top: Top) -> Text:
    found = Text.assemble(
        (f"{top.offered_per_s:.1f}/s offered", "bold"), f" (planned for {rate_text(top.planned_per_s)})"
    )
    found.append(f"   {top.answered_per_s:.1f}/s answered   {top.in_hand} in flight")
    found.append(f", {top.waiting} wait for a route" if top.waiting else "")
    found.append(f"   last {top.window_s:.0f} s", "dim")
    found.append(f"\np50 {_ms(top.latency_p50_s)}   p99 {_ms(top.latency_p99_s)}")
    found.append(f" (target {seconds(top.target_p99_s)})" if top.target_p99_s is not None else "")
    found.append("\nsince the start: ")
    for kind, words in OUTCOME_WORDS.items():
        if (count := top.outcomes[kind]) or kind is OutcomeKind.ANSWERED:
            found.append(f"{count} {words}", BAD if kind in _FAULTS else "").append(", ")
    found.append(f"{top.retries} retries, workers ")
    return found.append(f"{top.left_out} left out", WARN if top.left_out else "")


def _audits(audits: Mapping[str, float]) -> str:
    """How often the answers that were compared were those of the plan's reference, and audits without a result."""
    agreed, differed = audits.get("agreed", 0.0), audits.get("differed", 0.0)
    compared = agreed + differed
    found = f"audits since the start: {compared:.0f} compared"
    found += f", {100 * agreed / compared:.2f} % as the reference" if compared else ""
    unknown = [f"{audits[outcome]:.0f} {outcome}" for outcome in ("shed", "lost") if audits.get(outcome)]
    return "; ".join((found, *unknown))


def _overload(overload: Overload, *, fold: bool) -> list[Text]:
    """The overload as a sentence, and the command on a line of its own, so that it can be copied."""
    reasons = Text("; ".join(overload.reasons), f"bold {BAD}")
    if not overload.is_above_plan:
        return [reasons, Text("no more is offered than planned: look for workers that are gone or busier than planned")]
    if overload.command is None:
        return [reasons, Text("`jellybean top DIR` on the gateway's machine names the command that plans for more")]
    command = Text(overload.command, no_wrap=not fold, overflow="fold" if fold else "ignore")
    return [reasons.append(", so plan for more, then `jellybean apply`:"), command]


def _expiring(certificate: ExpiringCertificate) -> Text:
    """What a certificate that is about to expire needs, as a sentence."""
    at = utc_minute(certificate.expires_unix_s)
    when = f"expires in {_ms(certificate.left_s)} ({at})" if certificate.left_s > 0.0 else f"has expired ({at})"
    what = "its log names the command that renews it"
    return Text(f"the certificate of {certificate.process} {when}: {what}", f"bold {BAD}")


def _workers(top: Top, *, narrow: bool) -> Table:
    wide = ("worker", "tier", "state", "busy", ">planned", ">measured", ">queue")
    table = _table(*(("worker", "busy", ">plan", ">now", ">queue") if narrow else wide), narrow=narrow)
    for row in top.workers:
        measured = "?" if row.busy is None else f"{row.busy:.0%}"
        above = row.busy is not None and row.busy > row.planned + _HIGHLIGHT
        state = Text(row.state, _STATES.get(row.state, ""))
        name = Text(row.worker)
        if row.device not in ("", str(CPU)):
            name.append(f" {row.device}", "dim")
        if narrow and row.state != "ready":
            name.append(" ").append(state)
        table.add_row(
            *((name,) if narrow else (name, Text(row.tier), state)),
            *(_bar(row, _SHORT_BAR if narrow else _BAR), f"{row.planned:.0%}"),
            *(Text(measured, WARN if above else ""), str(row.queue)),
        )
    return table


def _bar(row: WorkerRow, cells: int) -> Text:
    """A bar of the busy fraction, with a mark at the planned one."""
    filled = round(min(row.busy or 0.0, 1.0) * cells)
    bar = Text()
    bar.append("━" * filled, LOAD if (row.busy or 0.0) <= row.planned + _HIGHLIGHT else WARN)
    bar.append("─" * (cells - filled), "dim")
    mark = min(round(row.planned * cells), cells - 1)
    return Text.assemble(bar[:mark], ("┃", "bold"), bar[mark + 1 :])


def _operators(top: Top, *, narrow: bool) -> Table:
    wide = ("operator", "variant", ">workers", ">rate/s", ">failed/s", ">batch", ">busy", ">queue")
    table = _table(*(("operator", ">rate/s", ">failed/s", ">busy", ">queue") if narrow else wide), narrow=narrow)
    for row in top.operators:
        batch = "" if row.batch is None else f"{row.batch:.1f}"
        failed = Text(f"{row.failed_per_s:.1f}", BAD if row.failed_per_s else "")
        rates = f"{row.rate_per_s:.1f}", failed
        names = Text(row.operator), Text(row.variant), str(row.workers)
        cells = (names[0], *rates) if narrow else (*names, *rates, batch)
        table.add_row(*cells, f"{row.busy:.0%}", str(row.queue))
    return table


def _links(top: Top, *, narrow: bool) -> Table:
    table = _table("link", ">rate", ">so far", ">USD/h", narrow=narrow)
    for row in top.links:
        sizes = f"{formats.size(row.bytes_per_s)}/s", formats.size(row.bytes)
        table.add_row(f"{row.tier} → {row.to_tier}", *sizes, f"{row.usd_per_h:.4f}")
    return table


def _table(*columns: str, narrow: bool) -> Table:
    """A table; columns that begin with > are right-aligned. In a narrow one, long names are folded, not cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0 if narrow else (0, 1))
    for index, column in enumerate(columns):
        side: JustifyMethod = "right" if column.startswith(">") else "left"
        fold = narrow and index == 0
        overflow: OverflowMethod = "fold" if fold else "ellipsis"
        table.add_column(column.removeprefix(">"), justify=side, no_wrap=not fold, overflow=overflow)
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else formats.duration(seconds)
