"""What of a project has left its prediction while its last plan was served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jellybean.bench.heldout import read_array
from jellybean.documents import load_project
from jellybean.errors import InputError, JellyBeanError
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.questions import last_plan
from jellybean.ledger.span import Span
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.drift_watch import Drifted, DriftWatch
from jellybean.report.served_figures import observations
from jellybean.report.served_values import value_observations
from jellybean.report.store import Store
from jellybean_agent import Array
from jellybean_solver import from_document


@dataclass(frozen=True, slots=True)
class ProjectDrift:
    """What has drifted of the plan with the hash `plan`, among so many figures that were watched."""

    plan: str
    figures: int
    drifted: tuple[Drifted, ...]


def project_drift(
    directory: Path, ledger: Ledger | None, span: Span, on_problem: Callable[[str], None] = lambda text: None
) -> ProjectDrift:
    """Compare what the plan that was served last predicted with what was counted in a span.

    `on_problem` is told which held-out inputs cannot be read, so that inputs are not compared with them. InputError if
    nothing was served, or if the plan is not in the report store.
    """
    plan_hash = None if ledger is None else last_plan(ledger)
    if ledger is None or plan_hash is None:
        raise InputError(f"nothing was served yet: jellybean up {directory}")
    snapshot = Store.of(directory).latest(plan_hash)
    if snapshot is None:
        raise InputError(f"the plan that was served last, {plan_hash[:HASH_DIGITS]}, is not in the report store")
    seen = observations(ledger, from_document(snapshot.document), plan_hash, span)
    seen += value_observations(ledger, _held_out(directory, on_problem), plan_hash, span)
    return ProjectDrift(plan_hash, len({one.name for one in seen}), tuple(DriftWatch().see_all(seen).drifted))


def _held_out(directory: Path, on_problem: Callable[[str], None]) -> dict[str, Array]:
    """Source -> held-out requests of the project in a folder; without sources that have none."""
    try:
        project = load_project(directory, profiles=False, files=False)
    except JellyBeanError:
        return {}  # a folder with a plan alone
    sources = project.workflow.sources
    found = {name: source.inputs for name, source in sources.items() if source.inputs is not None}
    rows: dict[str, Array] = {}
    for name, reference in found.items():
        try:
            rows[name] = read_array(directory, reference)
        except JellyBeanError as error:
            on_problem(f"the inputs of {name} cannot be compared: {error}")
    return rows
