"""`jellybean top` on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jellybean.serving.outcomes import OUTCOME_WORDS, OutcomeKind
from jellybean.serving.top.overload import Overload, seconds
from jellybean.serving.top.top import Top, WorkerRow

_BAR = 20
_STATES = {"ready": "green", "starting": "yellow", "degraded": "yellow", "draining": "yellow", "gone": "bold red"}
_FAULTS = (OutcomeKind.LATE, OutcomeKind.SHED, OutcomeKind.SERVER_ERROR)
_HIGHLIGHT = 0.1  # busy fraction above the planned one that is highlighted


def render(top: Top, *, fold: bool = True) -> RenderableType:
    """All tables, as rich prints them. `fold`: break a long command at the screen's edge, where it cannot be copied."""
    parts: list[RenderableType] = [_header(top), _requests(top)]
    parts += _overload(top.overload, fold=fold) if top.overload is not None else []
    parts += [_workers(top), _operators(top)]
    return Group(*parts, *([_links(top)] if top.links else []))


def _header(top: Top) -> Text:
    found = Text.assemble((top.workflow, "bold"), f"  plan {top.plan[:12]}  ", (top.state, _STATES.get(top.state, "")))
    found.append(f"\n{top.usd_per_h:.4f} USD/h", "bold")
    return found.append(f" (network {top.network_usd_per_h:.4f}), {top.so_far_usd:.6f} USD so far")


def _requests(top: Top) -> Text:
    found = Text.assemble((f"{top.offered_per_s:.1f}/s offered", "bold"), f" (planned for {top.planned_per_s:g}/s)")
    found.append(f"   {top.answered_per_s:.1f}/s answered   {top.in_hand} in flight")
    found.append(f", {top.waiting} wait for a route" if top.waiting else "")
    found.append(f"   last {top.window_s:.0f} s", "dim")
    found.append(f"\np50 {_ms(top.latency_p50_s)}   p99 {_ms(top.latency_p99_s)}")
    found.append(f" (target {seconds(top.target_p99_s)})" if top.target_p99_s is not None else "")
    found.append("\nsince the start: ")
    for kind, words in OUTCOME_WORDS.items():
        if (count := top.outcomes[kind]) or kind is OutcomeKind.ANSWERED:
            found.append(f"{count} {words}", "red" if kind in _FAULTS else "").append(", ")
    found.append(f"{top.retries} retries, workers ")
    return found.append(f"{top.left_out} left out", "yellow" if top.left_out else "")


def _overload(overload: Overload, *, fold: bool) -> list[Text]:
    """The overload as a sentence, and the command on a line of its own, so that it can be copied."""
    reasons = Text("; ".join(overload.reasons), "bold red")
    if not overload.is_above_plan:
        return [reasons, Text("no more is offered than planned: look for workers that are gone or busier than planned")]
    if overload.command is None:
        return [reasons, Text("`jellybean top DIR` on the gateway's machine names the command that plans for more")]
    command = Text(overload.command, no_wrap=not fold, overflow="fold" if fold else "ignore")
    return [reasons.append(", so plan for more and `jellybean apply` it:"), command]


def _workers(top: Top) -> Table:
    table = _table("worker", "tier", "state", "busy", ">planned", ">measured", ">queue")
    for row in top.workers:
        measured = "?" if row.busy is None else f"{row.busy:.0%}"
        above = row.busy is not None and row.busy > row.planned + _HIGHLIGHT
        state = Text(row.state, _STATES.get(row.state, ""))
        table.add_row(
            *(row.worker, row.tier, state, _bar(row), f"{row.planned:.0%}"),
            *(Text(measured, "yellow" if above else ""), str(row.queue)),
        )
    return table


def _bar(row: WorkerRow) -> Text:
    """A bar of the busy fraction, with a mark at the planned one."""
    filled = round(min(row.busy or 0.0, 1.0) * _BAR)
    bar = Text()
    bar.append("━" * filled, "green" if (row.busy or 0.0) <= row.planned + _HIGHLIGHT else "yellow")
    bar.append("─" * (_BAR - filled), "dim")
    mark = min(round(row.planned * _BAR), _BAR - 1)
    return Text.assemble(bar[:mark], ("┃", "bold"), bar[mark + 1 :])


def _operators(top: Top) -> Table:
    table = _table("operator", "variant", ">workers", ">rate/s", ">failed/s", ">batch", ">busy", ">queue")
    for row in top.operators:
        batch = "" if row.batch is None else f"{row.batch:.1f}"
        failed = Text(f"{row.failed_per_s:.1f}", "red" if row.failed_per_s else "")
        table.add_row(
            *(row.operator, row.variant, str(row.workers), f"{row.rate_per_s:.1f}", failed, batch),
            *(f"{row.busy:.0%}", str(row.queue)),
        )
    return table


def _links(top: Top) -> Table:
    table = _table("link", ">rate", ">so far", ">USD/h")
    for row in top.links:
        sizes = f"{_size(row.bytes_per_s)}/s", _size(row.bytes)
        table.add_row(f"{row.tier} → {row.to_tier}", *sizes, f"{row.usd_per_h:.4f}")
    return table


def _table(*columns: str) -> Table:
    """A table; columns that begin with > are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
