"""Check `slo.audit`: what a workflow must be like so that a share of its requests can also run the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.flow import total_rate
from jellybean.documents.schema.fields import name_problem
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean_solver import Deliver, Objective, audit_name

_PATH: DocPath = ("slo", "audit")


def check_audit(
    workflow: CheckedWorkflow, *, has_cascades: bool, has_unlike_sites: bool, sites: Mapping[str, int]
) -> None:
    """Report why a workflow (without its cascades) cannot be audited as it asks for. `sites`: number by tier."""
    document = workflow.document
    if document is None or document.slo.audit is None:
        return
    if has_cascades:
        workflow.tree.add(_PATH, "a workflow with a cascade is not audited", "remove the audit, or the cascade")
    if has_unlike_sites:
        workflow.tree.add(_PATH, "sites that differ are not audited", "remove the audit, or write identical sites")
    for message, hint in (*_of_targets(document), *_of_requests(document, sites), *_of_names(document)):
        workflow.tree.add(_PATH, message, hint)


def _of_targets(document: WorkflowDocument) -> Iterator[tuple[str, str]]:
    """(message, hint) of targets whose plans are not audited."""
    slo = document.slo
    if slo.mean_accuracy is not None or document.objective is Objective.MEAN_ACCURACY:
        yield (
            "a plan that may mix variants (a mean accuracy) is not audited: requests get unlike selections",
            "write slo: {accuracy: 90}, which holds for every request, or remove the audit",
        )
    if slo.survives:
        yield "a plan that bears losses (slo.survive) is not audited", "remove survive, or the audit"


def _of_requests(document: WorkflowDocument, sites: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """(message, hint) of requests that cannot be sent a second time, or whose answers cannot be compared."""
    if stateful := [name for name, operator in document.operators.items() if operator.state is not None]:
        yield (
            f"{stateful[0]} keeps a state by stream: the reference would need every chunk of a stream, not a share",
            "remove the audit",
        )
    if any(source.deliver is Deliver.EVENTUALLY for source in document.sources.values()):
        yield "requests with `deliver: eventually` are not audited", "remove deliver, or the audit"
    if len({total_rate(source, sites) for source in document.sources.values()}) > 1:
        yield "its sources have unlike rates, so it has several streams of requests", "give them one rate"
    if document.labelled_answer is None:
        choices = " or ".join(f"labels_of: {name}" for name in document.answers)
        yield f"{len(document.answers)} operators answer, and one answer is compared", f"write {choices}, with labels"


def _of_names(document: WorkflowDocument) -> Iterator[tuple[str, str]]:
    """(message, hint) of names that the audit's operators cannot have."""
    taken = {*document.sources, *document.operators}
    for name in sorted(taken):
        own = audit_name(name)
        if own in taken:
            yield f"the audit calls its part of {name} {own}, but that name is in use", "rename that one"
        elif (problem := name_problem(own)) is not None:
            yield f"the audit calls its part of {name} {own}, which is too long", problem.hint
