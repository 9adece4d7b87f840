"""Planning figures of operators with a state: a worker takes whole streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jellybean.documents.layout import WORKFLOW_FILE
from jellybean.documents.project import Project
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.reader import dotted
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_solver import Slo, Variant, largest_margin, plain_text, whole_stream_times


def utilisation_of(workflow: WorkflowDocument, infrastructure: InfrastructureDocument) -> float:
    """The highest utilisation of a workflow's workers, if times and rates are as stated or higher by its margin."""
    stated = (workflow.slo.latency_p99_s, workflow.slo.soft_latency_p99_s)
    return infrastructure.limits.highest_utilisation(in_time=any(target_s is not None for target_s in stated))


def planned_utilisation(projects: Sequence[Project]) -> float:
    """The highest planned utilisation of workers that serve these workflows, so that the margins of all are left."""
    margin = largest_margin([Slo(margin=one.workflow.slo.margin) for one in projects])
    return min(utilisation_of(one.workflow, one.infrastructure) for one in projects) / margin.work


def with_whole_streams(
    directory: Path,
    operator: str,
    variants: Sequence[Variant],
    workflow: WorkflowDocument,
    utilisation: float,
) -> tuple[Variant, ...]:
    """The variants of an operator with a state, whose workers take whole streams.

    DocumentError if no worker takes even one.
    """
    source = next(iter(workflow.sources.values()))
    stream_rate_per_s = source.rate_per_s / (source.streams or 1)
    found = []
    for variant in variants:
        whole = {
            pool: whole_stream_times(times, stream_rate_per_s, utilisation) for pool, times in variant.service.items()
        }
        found.append(replace(variant, service={pool: times for pool, times in whole.items() if times}))
    if not any(variant.service for variant in found):
        message = (
            f"no worker takes one stream: it sends {plain_text(stream_rate_per_s, 4)} chunks/s, which must run on one "
            f"worker that is busy at most {utilisation:g} of the time"
        )
        where, file = dotted(("operators", operator, "state")), str(directory / WORKFLOW_FILE)
        hint = "use a faster worker or variant, or streams of a lower rate"
        raise DocumentError([DocumentProblem(file, None, None, where, message, hint)])
    return tuple(found)
