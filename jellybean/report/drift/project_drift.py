"""What of a project has left its prediction while its last plan was served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jellybean.bench.heldout import read_array
from jellybean.documents import load_project
from jellybean.documents.layout import workflow_folders
from jellybean.errors import InputError, JellyBeanError
from jellybean.ledger.queries.plan_counts import PlanCounts
from jellybean.ledger.queries.source import LedgerSource
from jellybean.ledger.span import Span
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.drift.agreement_watch import AgreementWatch
from jellybean.report.drift.drift_watch import Drifted, DriftWatch, Observation
from jellybean.report.drift.served_audits import watched_agreement
from jellybean.report.drift.served_figures import observations
from jellybean.report.drift.served_values import value_observations
from jellybean.report.store import Store
from jellybean_agent import Array, plan_part
from jellybean_solver import from_document

OnProblem = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProjectDrift:
    """What has drifted of the plan with the hash `plan`, among so many figures that were watched."""

    plan: str
    figures: int
    drifted: tuple[Drifted, ...]


def project_drift(
    store: Store,
    ledger: LedgerSource,
    span: Span,
    documents: Path | None,
    on_problem: OnProblem = lambda text: None,
) -> ProjectDrift | None:
    """Compare what the plan that was served last predicted with what was counted in a span; None if nothing was served.

    Of several workflows each is looked at, and its figures have its name before theirs. `documents`: folder with the
    held-out inputs, None: inputs are not compared with any. `on_problem` is told which of them cannot be read.
    InputError if the plan is not in `store`.
    """
    counts = ledger.counts(None, span)
    if counts is None:
        return None
    snapshot = store.latest(counts.plan)
    if snapshot is None:
        raise InputError(f"the plan that was served last, {counts.plan[:HASH_DIGITS]}, is not in the report store")
    found = list(_observations(snapshot.document, counts, span, documents, on_problem))
    agreements = dict(_agreements(ledger, snapshot.document, counts.plan, span))
    differ = (replace(one, name=f"{of}{one.name}") for of, watch in agreements.items() for one in watch.drifted)
    drifted = (*differ, *DriftWatch().see_all(found).drifted)
    return ProjectDrift(counts.plan, len({one.name for one in found}) + len(agreements), drifted)


def _agreements(
    ledger: LedgerSource, document: Mapping[str, Any], plan_hash: str, span: Span
) -> Iterator[tuple[str, AgreementWatch]]:
    """The watch of each workflow's agreement with its reference, under what its figures are named after.

    None of workflows without audits, or with too few.
    """
    names = [item["name"] for item in document.get("workflows", ())]
    parts = {name: from_document(plan_part(document, name)) for name in names}
    for name, plan in (parts or {document["name"]: from_document(document)}).items():
        watch = watched_agreement(ledger.audits(name, plan_hash, span), plan, span) if plan.audit is not None else None
        if watch is not None:
            yield (f"{name}: " if names else ""), watch


def _observations(
    document: Mapping[str, Any], counts: PlanCounts, span: Span, documents: Path | None, on_problem: OnProblem
) -> Iterator[Observation]:
    """The figures of all workflows of a plan document."""
    names = [item["name"] for item in document.get("workflows", ())]
    folders = workflow_folders(documents) if documents is not None and names else {}
    for name in names:
        own = _of_workflow(plan_part(document, name), counts.of(name), span, _held_out(folders.get(name), on_problem))
        yield from (replace(one, name=f"{name}: {one.name}") for one in own)
    if not names:
        yield from _of_workflow(document, counts, span, _held_out(documents, on_problem))


def _of_workflow(
    document: Mapping[str, Any], counts: PlanCounts, span: Span, held_out: Mapping[str, Array]
) -> Iterator[Observation]:
    yield from observations(counts, from_document(document))
    yield from value_observations(counts.values, held_out, span)


def _held_out(directory: Path | None, on_problem: OnProblem) -> dict[str, Array]:
    """Source -> held-out requests of the project in a folder; without sources that have none."""
    try:
        project = None if directory is None else load_project(directory, profiles=False, files=False)
    except JellyBeanError:
        project = None  # a folder with a plan alone
    if directory is None or project is None:
        return {}
    sources = project.workflow.sources
    found = {name: source.inputs for name, source in sources.items() if source.inputs is not None}
    rows: dict[str, Array] = {}
    for name, reference in found.items():
        try:
            rows[name] = read_array(directory, reference)
        except JellyBeanError as error:
            on_problem(f"the inputs of {name} cannot be compared: {error}")
    return rows
