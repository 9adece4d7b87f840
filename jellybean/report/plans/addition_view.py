"""Text and JSON of workflows or sites that were added to a plan of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jellybean.display import formats
from jellybean.planning.add import AddedPlan
from jellybean.report.plans.workflows_summary import MOST_NAMED, noun


def addition_lines(result: AddedPlan) -> Iterator[str]:
    """What was planned, by how much the cost changes, what stays and what is gone."""
    plan, kept = result.plan, result.added.kept
    if plan is None:
        return
    what = noun(plan)
    gone = {one.name for one in plan.left_out}
    for words, names in (("added", kept.new), ("changed since and planned anew", kept.changed)):
        if served := [name for name in names if name not in gone]:
            yield f"{words}: {_named(served, what)}"
    if kept.dropped:
        yield f"no longer in the documents: {_named(kept.dropped, what)}"
    if not (kept.new or kept.changed or kept.dropped):
        yield f"nothing to add: the plan has every {what}, with the same figures"
    if kept.workflows:
        yield (
            f"{formats.count(len(kept.workflows), what)} as before, with the same workers and routes; cost "
            f"{formats.usd(result.before.cost.total_usd_per_h)} -> {formats.usd(plan.cost.total_usd_per_h)} USD/h"
        )


def addition_json(result: AddedPlan) -> dict[str, Any]:
    """The names of what was planned, what stays and what is gone, and the cost before."""
    kept = result.added.kept
    return {
        "new": list(kept.new),
        "changed": list(kept.changed),
        "dropped": list(kept.dropped),
        "kept": len(kept.workflows),
        "before_usd_per_h": result.before.cost.total_usd_per_h,
        **({"notes": list(result.notes)} if result.notes else {}),
    }


def _named(names: Sequence[str], what: str) -> str:
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    return f"{formats.count(len(names), what)}: {', '.join(names[:MOST_NAMED])}, ..."
