"""The decision about a running plan as text and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.planning.replan import ReplanResult
from jellybean.quantities import DURATION, format_quantity
from jellybean.report import plan_text
from jellybean.report.plans.plan_diff_view import diff_json, diff_text
from jellybean.report.plans.plan_view import p99_lines
from jellybean.report.plans.selections import selection_lines, selections_json
from jellybean_solver import SAVING_TOLERANCE, Migration, Plan, Replanned, Verdict, removes_enough

MAX_REASONS = 3  # maximum number of missed targets of the running plan that are listed
NEW, RUNNING = "the new plan", "the running plan"


def change_text(change: ReplanResult) -> RenderableType:
    """Text of a decision: the verdict and the cost of running and new plan over the horizon.

    Also the p99 latency of the chosen plan, and for a new plan the migration, the difference to the running plan, and
    the plan.
    """
    decision = change.decision
    latencies = tuple(p99_lines(change.judged)) if change.judged is not None else ()
    parts: list[RenderableType] = [Text.assemble((decision.running.name, "bold"), ": ", (sentence(decision), "bold"))]
    parts += [Text(f"  - {text}") for text in _broken(decision)]
    parts.append(Padding(_totals(decision), (0, 0, 0, 2), expand=False))
    if decision.verdict is Verdict.REPLACE and decision.best is not None and decision.migration is not None:
        parts += [Text(f"  {line}") for line in _migration(decision.migration)]
        if decision.migration.loads:
            parts.append(Padding(_loads(decision.migration), (0, 0, 0, 2), expand=False))
        if change.diff is not None:
            parts.append(diff_text(change.diff, RUNNING, NEW))
        parts.append(plan_text(decision.best, change.solve_s, latencies=latencies))
    else:
        parts += [Text(f"  {line}") for line in (*latencies, *selection_lines(decision.running))]
    return Group(*parts)


def sentence(decision: Replanned) -> str:
    """The decision and its reason as one sentence."""
    if decision.verdict is Verdict.NONE:
        return "the running plan no longer meets the targets, and no other plan was found that does"
    if decision.verdict is Verdict.KEEP:
        return f"keep the running plan: {_kept(decision)}"
    if decision.broken:
        return "replace the running plan: it no longer meets the targets"
    if removes_enough(decision):
        return f"replace the running plan: this removes {_gain(decision)}"
    kept = "the accuracy stays, and " if decision.maximises_accuracy else ""
    return f"replace the running plan: {kept}this saves {_saving(decision)}"


def _kept(decision: Replanned) -> str:
    if decision.refused is not None and decision.best is None:
        return f"the best change would miss a target: {decision.refused}"
    if decision.saved_usd is None:
        return f"no other plan was found{_most(decision)}"
    if decision.maximises_accuracy:
        return _kept_accuracy(decision)
    if decision.saved_usd <= SAVING_TOLERANCE * decision.running_usd:
        return f"no change was found that reduces the cost over {_horizon(decision)}{_most(decision)}"
    required = _percent(decision.settings.least_saved_share)
    return f"the best change saves {_saving(decision)}, below {required}{_most(decision)}"


def _kept_accuracy(decision: Replanned) -> str:
    """Why a change to the most accurate plan found does not pay."""
    required = _percent(decision.settings.least_saved_share)
    if decision.is_more_accurate:
        return f"the best change removes {_gain(decision)}, below {required}"
    if (decision.saved_usd or 0.0) <= SAVING_TOLERANCE * decision.running_usd:
        return "no plan was found that is more accurate, or as accurate for less"
    return f"no more accurate plan was found, and one as accurate saves {_saving(decision)}, below {required}"


def _gain(decision: Replanned) -> str:
    """The share of the errors that the best change removes, with the migration beside it."""
    one, two = decision.running.accuracy, decision.best.accuracy if decision.best is not None else None
    moved = decision.migration.total_usd if decision.migration is not None else 0.0
    return (
        f"{_percent(decision.removed_share or 0.0)} of the errors (mean accuracy {formats.accuracy(one)} -> "
        f"{formats.accuracy(two)}) for {_usd(moved)} USD of migration"
    )


def change_json(change: ReplanResult) -> dict[str, Any]:
    """The decision as JSON values; costs are USD over the horizon unless the key says otherwise."""
    decision = change.decision
    return {
        "verdict": decision.verdict.value,
        "why": sentence(decision),
        "horizon_h": decision.settings.horizon_h,
        "at_least": decision.settings.least_saved_share,
        "running": {
            "hash": change.running.document["hash"],
            "cost_usd_per_h": _cost(decision.running),
            "accuracy": decision.running.accuracy,
            "penalty_usd_per_h": decision.penalty_usd_per_h(decision.running),
            "total_usd": decision.running_usd,
            "broken": list(decision.broken),
        },
        "best": None
        if decision.best is None
        else {
            "cost_usd_per_h": _cost(decision.best),
            "accuracy": decision.best.accuracy,
            "penalty_usd_per_h": decision.penalty_usd_per_h(decision.best),
            "selection": dict(decision.best.selection),
            **({"selections": selections_json(decision.best)} if decision.best.mixes else {}),
            "total_usd": decision.best_usd,
            "saved_usd": decision.saved_usd,
            "saved_share": decision.saved_share,
            "gained_points": decision.gained_points if decision.maximises_accuracy else None,
            "refused": decision.refused,
        },
        "bound_usd": None if decision.maximises_accuracy else decision.bound_usd,
        "accuracy_bound": decision.accuracy_bound,
        "migration": None if decision.migration is None else _migration_json(decision.migration),
        "diff": None if change.diff is None else diff_json(change.diff),
        "notes": list(change.notes),
    }


def _cost(plan: Plan) -> dict[str, float]:
    cost = plan.cost
    return {"total": cost.total_usd_per_h, "compute": cost.compute_usd_per_h, "network": cost.network_usd_per_h}


def _migration_json(migration: Migration) -> dict[str, Any]:
    loads = [{**dataclasses.asdict(load), "replica_usd": load.replica_usd} for load in migration.loads]
    return {
        "total_usd": migration.total_usd,
        "start_usd": migration.start_usd,
        "download_usd": migration.download_usd,
        "loads": loads,
        "kept": migration.kept,
        "dropped": migration.dropped,
        "out_of_time": migration.out_of_time,
    }


def _saving(decision: Replanned) -> str:
    saved_usd, share = decision.saved_usd or 0.0, decision.saved_share or 0.0
    moved = decision.migration.total_usd if decision.migration is not None else 0.0
    return f"{_percent(share)} over {_horizon(decision)} ({_usd(saved_usd)} USD) after {_usd(moved)} USD of migration"


def _most(decision: Replanned) -> str:
    """Text with an upper bound on the saving, if the search was not finished; otherwise empty."""
    most, known = decision.most_saved_usd, max(0.0, decision.saved_usd or 0.0)
    if most <= known + SAVING_TOLERANCE * max(1.0, decision.running_usd) or decision.running_usd == 0:
        return ""
    return f"; no change saves more than {_percent(most / decision.running_usd)}"


def _broken(decision: Replanned) -> list[str]:
    """The first reasons why the running plan no longer meets the targets, and how many more there are."""
    shown = list(decision.broken[:MAX_REASONS])
    more = len(decision.broken) - len(shown)
    return [*shown, f"and {more} more (--json has all)"] if more > 0 else shown


def _row(decision: Replanned, name: str, plan: Plan, moved_usd: float | None, total_usd: float) -> dict[str, str]:
    """Heading -> text, empty where a figure does not count or is not known."""
    penalty = decision.penalty_usd_per_h(plan)
    return {
        "": name,
        "mean accuracy": formats.accuracy(plan.accuracy) if decision.maximises_accuracy else "",
        "USD/h": formats.usd(plan.cost.total_usd_per_h),
        "penalty USD/h": formats.usd(penalty) if penalty else "",
        "migration USD": "" if moved_usd is None else _usd(moved_usd),
        f"over {_horizon(decision)} USD": _usd(total_usd),
    }


def _totals(decision: Replanned) -> Table:
    """The running plan and the best change, if that is better in anything, with what counts of each."""
    rows = [_row(decision, RUNNING, decision.running, None, decision.running_usd)]
    saved = decision.saved_usd is not None and decision.saved_usd > SAVING_TOLERANCE * decision.running_usd
    gained = decision.maximises_accuracy and decision.is_more_accurate
    best, best_usd, moved = decision.best, decision.best_usd, decision.migration
    if best is not None and best_usd is not None and moved is not None and (saved or gained or decision.broken):
        name = NEW if decision.verdict is Verdict.REPLACE else "the best change"
        rows.append(_row(decision, name, best, moved.total_usd, best_usd))
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def _migration(migration: Migration) -> list[str]:
    total = f"migration {_usd(migration.total_usd)} USD"
    others = f"{migration.kept} replicas are kept, {migration.dropped} stopped"
    if not migration.loads:
        return [f"{total}: no models to load; {others}"]
    size = sum(load.replicas * (load.size_bytes or 0.0) for load in migration.loads)
    start = f"{migration.replicas} to start {_usd(migration.start_usd)}"
    return [f"{total}: {start}, {formats.size(size)} to download {_usd(migration.download_usd)}; {others}"]


def _loads(migration: Migration) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for heading in ("where", "to load"):
        table.add_column(heading, overflow="fold")
    for heading in ("replicas", "size", "USD each"):
        table.add_column(heading, justify="right", no_wrap=True)
    for load in migration.loads:
        where, what = f"{load.tier}: {load.pool}", f"{load.operator} {load.variant}"
        size = formats.size(load.size_bytes)
        table.add_row(Text(where), Text(what), str(load.replicas), size, _usd(load.replica_usd))
    return table


def _horizon(decision: Replanned) -> str:
    return format_quantity(DURATION, decision.settings.horizon_h * 3600.0, 4)


def _usd(value: float) -> str:
    """An amount in USD as text; it may be negative."""
    return f"-{formats.usd(-value)}" if value < 0 else formats.usd(value)


def _percent(share: float) -> str:
    return f"{formats.plain(share * 100.0, 2)} %"
