"""An audit: a share of the requests also runs the reference, the most accurate selection, to estimate what is served.

Its operators and sources are called audit.NAME. They form a request stream of their own, which no target is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from jellybean_protos.plan_format import WORKFLOW_SEPARATOR

Kind = TypeVar("Kind")

AUDIT_PREFIX = "audit."  # before the names of the workflow's sources and operators


class Audited(Protocol):
    """A plan or problem. `audits`: by workflow."""

    @property
    def audits(self) -> Mapping[str, Audit | PlannedAudit]: ...

    def workflow_of(self, name: str) -> str:
        """The workflow that a source or operator belongs to; empty if there is only one."""


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


def audits_of(only: Kind | None, by_workflow: Mapping[str, Kind | None]) -> Mapping[str, Kind]:
    """Workflow -> its audit, of those that have one. `only`: that of a single workflow, which has the name ""."""
    return {name: audit for name, audit in (by_workflow or {"": only}).items() if audit is not None}


def audit_name(name: str) -> str:
    """The name of a source or operator in the audit of its workflow."""
    workflow, separator, local = name.rpartition(WORKFLOW_SEPARATOR)
    return f"{workflow}{separator}{AUDIT_PREFIX}{local}"


def audited_name(of: Audited, name: str) -> str:
    """What a source or operator of an audit stands for; the name itself of any other."""
    if not is_of_audit(of, name):
        return name
    workflow, separator, local = name.rpartition(WORKFLOW_SEPARATOR)
    return f"{workflow}{separator}{local.removeprefix(AUDIT_PREFIX)}"


def with_audit_rates(of: Audited, rates: Mapping[str, float]) -> Mapping[str, float]:
    """The rates by source, with those of the audits' sources, which are a share of the others."""
    shares = {name: audit.share for name, audit in of.audits.items()}
    audits = {audit_name(n): shares[w] * rate for n, rate in rates.items() if (w := of.workflow_of(n)) in shares}
    return {**rates, **audits}


def is_of_audit(of: Audited, name: str) -> bool:
    """True if a source or operator of a plan or problem belongs to the audit of its workflow."""
    local = name.rpartition(WORKFLOW_SEPARATOR)[2]
    return local.startswith(AUDIT_PREFIX) and of.workflow_of(name) in of.audits
