"""Type aliases of the three checked documents that the checks take."""

from __future__ import annotations

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
