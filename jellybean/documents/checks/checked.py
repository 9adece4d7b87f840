"""The three checked documents that the checks take, and entries that were dropped for an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.validation import CheckedDocument
from jellybean.documents.schema.workflow import WorkflowDocument

CheckedWorkflow = CheckedDocument[WorkflowDocument]
CheckedInfrastructure = CheckedDocument[InfrastructureDocument]
CheckedProfiles = CheckedDocument[ProfilesDocument]


def variants_overridden(workflow: CheckedWorkflow, operator: str) -> bool:
    """True if `--set` chose this operator's variants, so that profiles of other variants are not an error."""
    return workflow.tree.position(("operators", operator, "variants")).line is None


def certain_answers(workflow: CheckedWorkflow) -> tuple[str, ...]:
    """Operators that feed no other; none if an operator is broken or an edge misnamed, as that may be what reads them.

    An edge whose rates or fan-outs are wrong still reads its upstream.
    """
    document = workflow.document
    if document is None or any(path[0] == "operators" for path in workflow.broken):
        return ()
    known = {*workflow.names("sources"), *workflow.names("operators")}
    if any(edge.upstream not in known for spec in document.operators.values() for edge in spec.inputs):
        return ()
    return document.answers


def as_written(checked: CheckedDocument[Any], section: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, raw map) of each entry of a section that was dropped for an error; its other keys can still be checked."""
    entries = checked.tree.data.get(section) if isinstance(checked.tree.data, dict) else None
    for path in sorted(checked.broken, key=str):
        if isinstance(entries, dict) and path[0] == section and len(path) == 2:
            raw = entries.get(path[1])
            if isinstance(raw, dict):
                yield str(path[1]), raw
