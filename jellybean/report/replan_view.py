"""A decision about a running plan as people and as machines read it."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import figures
from jellybean.planning.replan import Change
from jellybean.quantities import DURATION, format_quantity
from jellybean.report import plan_text
from jellybean.report.plan_diff_view import diff_json, diff_text
from jellybean_solver import SAVING_TOLERANCE, Migration, Plan, Replanned, Verdict

MOST_REASONS = 3  # why a plan is replaced, listed one by one
NEW, RUNNING = "the new plan", "the running plan"


def change_text(change: Change) -> RenderableType:
    """What was decided and why, both plans over the horizon; of a new one what it takes, the diff and the plan."""
    found = change.decision
    parts: list[RenderableType] = [Text.assemble((found.running.name, "bold"), ": ", (sentence(found), "bold"))]
    parts += [Text(f"  - {text}") for text in _broken(found)]
    parts.append(Padding(_totals(found), (0, 0, 0, 2), expand=False))
    if found.verdict is Verdict.REPLACE and found.best is not None and found.migration is not None:
        parts += [Text(f"  {line}") for line in _migration(found.migration)]
        if found.migration.loads:
            parts.append(Padding(_loads(found.migration), (0, 0, 0, 2), expand=False))
        if change.diff is not None:
            parts.append(diff_text(change.diff, RUNNING, NEW))
        parts.append(plan_text(found.best, change.solve_s))
    return Group(*parts)


def sentence(found: Replanned) -> str:
    """What was decided, and why."""
    if found.verdict is Verdict.NONE:
        return "the running plan no longer meets the targets, and no plan was found that does"
    if found.verdict is Verdict.KEEP:
        return f"keep the running plan: {_kept(found)}"
    if found.broken:
        return "replace the running plan: it no longer meets the targets"
    return f"replace the running plan: this saves {_saving(found)}"


def _kept(found: Replanned) -> str:
    if found.refused is not None and found.best is None:
        return f"the best change would break a target: {found.refused}"
    if found.saved_usd is None:
        return f"no other plan was found{_most(found)}"
    if found.saved_usd <= SAVING_TOLERANCE * found.running_usd:
        return f"no change was found that saves anything over {_horizon(found)}{_most(found)}"
    return f"the best change saves {_saving(found)}, below {_percent(found.settings.least_saved_share)}{_most(found)}"


def change_json(change: Change) -> dict[str, Any]:
    """The decision; money is USD over the horizon unless a name says otherwise."""
    found = change.decision
    return {
        "verdict": found.verdict.value,
        "why": sentence(found),
        "horizon_h": found.settings.horizon_h,
        "at_least": found.settings.least_saved_share,
        "running": {
            "hash": change.document["hash"],
            "cost_usd_per_h": _cost(found.running),
            "total_usd": found.running_usd,
            "broken": list(found.broken),
        },
        "best": None
        if found.best is None
        else {
            "cost_usd_per_h": _cost(found.best),
            "selection": dict(found.best.selection),
            "total_usd": found.best_usd,
            "saved_usd": found.saved_usd,
            "saved_share": found.saved_share,
            "refused": found.refused,
        },
        "bound_usd": found.bound_usd,
        "migration": None if found.migration is None else _migration_json(found.migration),
        "diff": None if change.diff is None else diff_json(change.diff),
        "notes": list(change.notes),
    }


def _cost(plan: Plan) -> dict[str, float]:
    cost = plan.cost
    return {"total": cost.total_usd_per_h, "compute": cost.compute_usd_per_h, "network": cost.network_usd_per_h}


def _migration_json(found: Migration) -> dict[str, Any]:
    loads = [{**dataclasses.asdict(load), "replica_usd": load.replica_usd} for load in found.loads]
    return {
        "total_usd": found.total_usd,
        "start_usd": found.start_usd,
        "download_usd": found.download_usd,
        "loads": loads,
        "kept": found.kept,
        "dropped": found.dropped,
    }


def _saving(found: Replanned) -> str:
    saved_usd, share = found.saved_usd or 0.0, found.saved_share or 0.0
    moved = found.migration.total_usd if found.migration is not None else 0.0
    return f"{_percent(share)} over {_horizon(found)} ({_usd(saved_usd)} USD) after {_usd(moved)} USD of migration"


def _most(found: Replanned) -> str:
    """What an unfinished search leaves open."""
    most, known = found.most_saved_usd, max(0.0, found.saved_usd or 0.0)
    if most <= known + SAVING_TOLERANCE * max(1.0, found.running_usd) or found.running_usd == 0:
        return ""
    return f"; no change saves more than {_percent(most / found.running_usd)}"


def _broken(found: Replanned) -> list[str]:
    """Why a running plan is no answer any more: the first reasons."""
    shown = list(found.broken[:MOST_REASONS])
    more = len(found.broken) - len(shown)
    return [*shown, f"and {more} more (--json has all)"] if more > 0 else shown


def _totals(found: Replanned) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("USD/h", "migration USD", f"over {_horizon(found)} USD"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(RUNNING, figures.usd(found.running.cost.total_usd_per_h), "", _usd(found.running_usd))
    saved = found.saved_usd is not None and found.saved_usd > SAVING_TOLERANCE * found.running_usd
    if (
        found.best_usd is not None
        and found.best is not None
        and found.migration is not None
        and (saved or found.broken)
    ):
        name = NEW if found.verdict is Verdict.REPLACE else "the best change"
        hourly = figures.usd(found.best.cost.total_usd_per_h)
        table.add_row(name, hourly, _usd(found.migration.total_usd), _usd(found.best_usd))
    return table


def _migration(found: Migration) -> list[str]:
    total = f"migration {_usd(found.total_usd)} USD"
    stays = f"{found.kept} of the replicas stay where they are, {found.dropped} end"
    if not found.loads:
        return [f"{total}: nothing to load; {stays}"]
    size = sum(load.replicas * (load.size_bytes or 0.0) for load in found.loads)
    start = f"{found.replicas} to start {_usd(found.start_usd)}"
    return [f"{total}: {start}, {figures.size(size)} to download {_usd(found.download_usd)}; {stays}"]


def _loads(found: Migration) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for heading in ("where", "to load"):
        table.add_column(heading, overflow="fold")
    for heading in ("replicas", "size", "USD each"):
        table.add_column(heading, justify="right", no_wrap=True)
    for load in found.loads:
        where, what = f"{load.tier}: {load.pool}", f"{load.operator} {load.variant}"
        size = figures.size(load.size_bytes)
        table.add_row(Text(where), Text(what), str(load.replicas), size, _usd(load.replica_usd))
    return table


def _horizon(found: Replanned) -> str:
    return format_quantity(DURATION, found.settings.horizon_h * 3600.0, 4)


def _usd(value: float) -> str:
    """Money that may be negative: what a forced change costs."""
    return f"-{figures.usd(-value)}" if value < 0 else figures.usd(value)


def _percent(share: float) -> str:
    return f"{figures.plain(share * 100.0, 2)} %"
