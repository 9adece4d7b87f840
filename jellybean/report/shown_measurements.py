"""The measurements whose figures a report shows: of each workflow the newest at the planned rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean.report.store import Record, Snapshot, StoreRow
from jellybean_solver import Plan


def newest_benches(plan: Plan, snapshot: Snapshot, benches: Sequence[StoreRow]) -> Mapping[str, Record]:
    """The newest measurement of each workflow that has one; a single workflow has the empty name.

    `benches`: the plan's measurements at the planned rate, oldest first.
    """
    if not plan.workflows:
        return {} if snapshot.bench is None else {"": snapshot.bench.record}
    newest = {str(row.record.get("workflow", "")): row.record for row in benches}
    return {workflow.name: newest[workflow.name] for workflow in plan.workflows if workflow.name in newest}


def newest_of_all(plan: Plan, snapshot: Snapshot, benches: Sequence[StoreRow]) -> Mapping[str, Record]:
    """As `newest_benches`, of measurements in which all workflows had their load at the same time, or empty.

    Only these say what workers that workflows share did, and what all cost together.
    """
    names = {workflow.name for workflow in plan.workflows}
    found = newest_benches(plan, snapshot, [row for row in benches if names <= set(row.record.get("beside") or {})])
    return found if names <= set(found) else {}
