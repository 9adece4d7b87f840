"""Check `slo.audit`: what a workflow must be like so that a share of its requests can also run the reference."""

from __future__ import annotations

from collections.abc import Iterator

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.schema.fields import name_problem
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean_solver import audit_name

_PATH: DocPath = ("slo", "audit")


def check_audit(workflow: CheckedWorkflow) -> None:
    """Report why a workflow cannot be audited as it asks for."""
    document = workflow.document
    if document is None or document.slo.audit is None:
        return
    for message, hint in (*_of_requests(document), *_of_names(document)):
        workflow.tree.add(_PATH, message, hint)


def _of_requests(document: WorkflowDocument) -> Iterator[tuple[str, str]]:
    """(message, hint) of requests that cannot be sent a second time, or whose answers cannot be compared."""
    if stateful := [name for name, operator in document.operators.items() if operator.state is not None]:
        yield (
            f"{stateful[0]} keeps a state by stream: its audit would follow whole streams, a few of which say little "
            "of the others",
            "remove the audit, and label answers (jellybean label)",
        )
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
