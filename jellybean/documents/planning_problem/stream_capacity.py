"""Planning figures of operators with a state: a worker takes whole streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jellybean.documents.layout import WORKFLOW_FILE
from jellybean.documents.project import Project
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.reader import dotted
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_solver import Operator, Problem, Slo, largest_margin, plain_text, whole_stream_times, whole_streams


def utilisation_of(workflow: WorkflowDocument, infrastructure: InfrastructureDocument) -> float:
    """The highest utilisation of a workflow's workers, if times and rates are as stated or higher by its margin."""
    stated = (workflow.slo.latency_p99_s, workflow.slo.soft_latency_p99_s)
    return infrastructure.limits.highest_utilisation(in_time=any(target_s is not None for target_s in stated))


def planned_utilisation(projects: Sequence[Project]) -> float:
    """The highest planned utilisation of workers that serve these workflows, so that the margins of all are left."""
    margin = largest_margin([Slo(margin=one.workflow.slo.margin) for one in projects])
    return min(utilisation_of(one.workflow, one.infrastructure) for one in projects) / margin.work


def with_whole_streams(project: Project, problem: Problem, name: str = "") -> Problem:
    """The problem of a project's workflow with times by which a worker takes whole streams of operators with a state.

    `name`: of the workflow, or its site, among several. DocumentError if no worker takes even one stream.
    """
    streams = whole_streams(problem)
    per_s = {name: one.sources[0].rate_per_s / one.count for one in streams for name in one.operators}

    def of_streams(operator: Operator) -> Operator:
        if not operator.state or operator.name not in per_s:
            return operator
        rate_per_s, variants = per_s[operator.name], []
        for variant in operator.variants:
            times = {
                pool: whole_stream_times(one, rate_per_s, problem.utilisation) for pool, one in variant.service.items()
            }
            variants.append(replace(variant, service={pool: own for pool, own in times.items() if own}))
        if any(one.service for one in operator.variants) and not any(one.service for one in variants):
            raise DocumentError([_too_fast(project, name, operator.name, rate_per_s, problem.utilisation)])
        return replace(operator, variants=tuple(variants))

    return replace(problem, operators=tuple(map(of_streams, problem.operators)))


def _too_fast(project: Project, name: str, operator: str, rate_per_s: float, utilisation: float) -> DocumentProblem:
    message = (
        f"{f'{name}: ' if name else ''}no worker takes one stream: it sends {plain_text(rate_per_s, 4)} chunks/s, "
        f"which must run on one worker that is busy at most {utilisation:g} of the time"
    )
    where, file = dotted(("operators", operator, "state")), str(project.directory / WORKFLOW_FILE)
    return DocumentProblem(
        file, None, None, where, message, "use a faster worker or variant, or streams of a lower rate"
    )
