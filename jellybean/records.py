"""What the CLI keeps in a project's report store: plans, predictions, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jellybean.planning import Planned
from jellybean.report import Store
from jellybean_solver.plan import Plan
from jellybean_solver.plan_document import to_document


def record_plan(directory: Path, document: Mapping[str, Any], planned: Planned | None = None) -> None:
    """Keep a plan, with how it was found when it was just made."""
    info: dict[str, Any] = {}
    if planned is not None:
        info = {
            "solve_s": planned.solve_s,
            "status": planned.status,
            "selections_tried": planned.solution.selections_tried,
            "baselines": [list(baseline) for baseline in planned.comparison],
        }
    Store.of(directory).add_plan(dict(document), info)


def record_prediction(directory: Path, plan: Plan, record: Mapping[str, Any]) -> None:
    """Keep what the simulator expects of a plan, the plan too when the store does not have it yet."""
    store = Store.of(directory)
    document = to_document(plan)
    if store.latest(document["hash"]) is None:
        store.add_plan(document)
    store.add_prediction(document["hash"], dict(record))


def record_measurement(directory: Path, record: Mapping[str, Any]) -> None:
    """Keep what was measured of the plan that is up."""
    Store.of(directory).add_measurement(record["plan"], dict(record))
