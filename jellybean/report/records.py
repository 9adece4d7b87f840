"""Record plans, predictions and measurements in a project's report store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jellybean.planning.project_plan import Planned
from jellybean.report import Store
from jellybean.serving.run_state import running_state
from jellybean_solver import Plan, from_document, to_document


def record_plan(directory: Path, document: Mapping[str, Any], planned: Planned | None = None) -> None:
    """Record a plan document. `planned`: also record solve time, solver status, baselines and p99 latencies."""
    info: dict[str, Any] = {}
    if planned is not None:
        info = {
            "solve_s": planned.solve_s,
            "status": planned.status,
            "selections_tried": planned.solution.selections_tried,
            "baselines": [list(baseline) for baseline in planned.comparison],
            "latency_p99_s": dict(planned.judged.p99_s) if planned.judged is not None else {},
        }
    Store.of(directory).add_plan(dict(document), info)


def record_prediction(directory: Path, plan: Plan, record: Mapping[str, Any]) -> None:
    """Record simulated figures of a plan, and the plan itself if it is not in the store yet."""
    store = Store.of(directory)
    document = to_document(plan)
    if store.latest(document["hash"]) is None:
        store.add_plan(document)
    store.add_prediction(document["hash"], dict(record))


def predicted_rate_per_s(directory: Path) -> float | None:
    """Predicted highest sustained rate of the running plan in requests per second; None if it was not simulated."""
    plan = _running_plan(directory)
    snapshot = Store.of(directory).latest(to_document(plan)["hash"])
    record = snapshot.prediction.record if snapshot is not None and snapshot.prediction is not None else {}
    rate = record.get("highest_rate_per_s")
    return float(rate) if rate else None


def record_measurement(directory: Path, record: Mapping[str, Any]) -> None:
    """Record a measurement of the running plan, and the plan itself if it is not in the store yet."""
    store = Store.of(directory)
    if store.latest(record["plan"]) is None:
        store.add_plan(to_document(_running_plan(directory)))
    store.add_measurement(record["plan"], dict(record))


def _running_plan(directory: Path) -> Plan:
    path = running_state(directory.resolve()).plan_path
    return from_document(json.loads(path.read_text(encoding="utf-8")))
