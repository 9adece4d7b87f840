"""Record plans, predictions and measurements in a project's report store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jellybean.display import formats
from jellybean.documents import AnyProject, Project
from jellybean.documents.provenance.noise import hop_noise
from jellybean.report import Store
from jellybean_solver import Plan, to_document

if TYPE_CHECKING:  # the search, which commands that only serve need not import
    from jellybean.planning.planned import Planned


def record_plan(project: AnyProject, document: Mapping[str, Any], planned: Planned | None = None) -> None:
    """Record a plan document. `planned`: also record solve time, solver status, baselines and p99 latencies."""
    info: dict[str, Any] = {}
    if planned is not None:
        info = {
            "solve_s": planned.solve_s,
            "status": planned.status,
            "selections_tried": planned.solution.selections_tried,
            "baselines": [list(baseline) for baseline in planned.comparison],
            "profile_notes": list(_profile_notes(project, document)),
            "latency_p99": {name: asdict(p99) for name, p99 in planned.judged.p99.items()} if planned.judged else {},
        }
    Store.of(project.directory).add_plan(dict(document), info)


def _profile_notes(project: AnyProject, document: Mapping[str, Any]) -> Iterator[str]:
    """What is uncertain about the profiles that a plan was just made with: the hop, if it is theirs and noisy."""
    profiles = project.profiles if isinstance(project, Project) else None
    if profiles is not None and profiles.hop_s == document["hop_s"] and (why := hop_noise(profiles)):
        yield f"hop {formats.duration(profiles.hop_s)}: {why}; predicted latencies contain it for every message"


def record_prediction(directory: Path, plan: Plan, record: Mapping[str, Any]) -> None:
    """Record simulated figures of a plan, and the plan itself if it is not in the store yet."""
    document = to_document(plan)
    record_once(directory, document)
    Store.of(directory).add_prediction(document["hash"], dict(record))


def predicted_rate_per_s(directory: Path, plan_hash: str) -> float | None:
    """Predicted highest sustained rate of a plan in requests per second; None if it was not simulated."""
    snapshot = Store.of(directory).latest(plan_hash)
    record = snapshot.prediction.record if snapshot is not None and snapshot.prediction is not None else {}
    rate = record.get("highest_rate_per_s")
    return float(rate) if rate else None


def record_measurement(directory: Path, document: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Record a measurement of a plan, and the plan itself if it is not in the store yet."""
    record_once(directory, document)
    Store.of(directory).add_measurement(document["hash"], dict(record))


def record_once(directory: Path, document: Mapping[str, Any]) -> None:
    """Record a plan unless it is in the store already."""
    store = Store.of(directory)
    if store.latest(document["hash"]) is None:
        store.add_plan(dict(document))
