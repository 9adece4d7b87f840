"""An audit: a share of the requests also runs the reference, the most accurate selection, to estimate what is served.

Its operators and sources are called audit.NAME. They form a request stream of their own, which no target is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean_protos.plan_format import WORKFLOW_SEPARATOR

AUDIT_PREFIX = "audit."  # before the names of the workflow's sources and operators


@dataclass(frozen=True, slots=True)
class AuditedSelection:
    """One selection of a plan that mixes variants: its name, and the share of the workflow's requests that get it.

    `accuracy`, `agreement`: in percent, as in `PlannedAudit`; None: not measured.
    """

    name: str
    share: float
    accuracy: float | None
    agreement: float | None


@dataclass(frozen=True, slots=True)
class PlannedAudit:
    """The audit of a plan. `share`: of the requests; `accuracy`: of the reference, in percent.

    `metric`: how the two answers of operator `answer` are compared. `agreement`: percent of answers that are expected
    to be those of the reference, measured on `requests` held-out requests; None: not measured. `selections`: filled if
    requests get unlike selections, of which the agreement is the mean.
    """

    share: float
    metric: str
    answer: str
    accuracy: float
    agreement: float | None = None
    requests: int = 0
    selections: tuple[AuditedSelection, ...] = field(default=(), metadata={"said": "if there are several"})


@dataclass(frozen=True, slots=True)
class Audit:
    """What a problem says of its audit. `reference`: operator -> variant, of all operators of the workflow.

    `agreements`: variants of the operators `choices` -> percent of held-out answers that are those of the reference.
    The other fields are those of `PlannedAudit`.
    """

    share: float
    reference: Mapping[str, str]
    metric: str
    answer: str
    accuracy: float
    choices: tuple[str, ...] = ()
    agreements: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    requests: int = 0


def audit_name(name: str) -> str:
    """The name of a source or operator in the audit of its workflow."""
    workflow, separator, local = name.rpartition(WORKFLOW_SEPARATOR)
    return f"{workflow}{separator}{AUDIT_PREFIX}{local}"
