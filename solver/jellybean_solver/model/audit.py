"""An audit: a share of the requests also runs the reference, the most accurate selection, to estimate what is served.

Its operators and sources are called audit.NAME. They form a request stream of their own, which no target is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AUDIT_PREFIX = "audit."  # before the names of the workflow's sources and operators
AUDIT_STREAM = "audit"  # in place of a workflow's name: what is not of this name is answered to clients


@dataclass(frozen=True, slots=True)
class PlannedAudit:
    """The audit of a plan. `share`: of the requests; `accuracy`: of the reference, in percent.

    `metric`: how the two answers of operator `answer` are compared. `agreement`: percent of answers that are expected
    to be those of the reference, measured on `requests` held-out requests; None: not measured.
    """

    share: float
    metric: str
    answer: str
    accuracy: float
    agreement: float | None = None
    requests: int = 0


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

    def planned(self, selection: Mapping[str, str]) -> PlannedAudit:
        """The audit of a plan with this selection."""
        agreement = self.agreements.get(tuple(selection[name] for name in self.choices))
        requests = 0 if agreement is None else self.requests
        return PlannedAudit(self.share, self.metric, self.answer, self.accuracy, agreement, requests)


def audit_name(name: str) -> str:
    """The name of a source or operator in the audit."""
    return f"{AUDIT_PREFIX}{name}"


def audited_name(audit: Audit | PlannedAudit | None, name: str) -> str:
    """What a source or operator of the audit stands for; the name itself of any other."""
    return name.removeprefix(AUDIT_PREFIX) if is_of_audit(audit, name) else name


def with_audit_rates(audit: Audit | PlannedAudit | None, rates: Mapping[str, float]) -> Mapping[str, float]:
    """The rates by source, with those of the audit's sources, which are a share of the others."""
    if audit is None:
        return rates
    return {**rates, **{audit_name(name): audit.share * rate for name, rate in rates.items()}}


def is_of_audit(audit: Audit | PlannedAudit | None, name: str) -> bool:
    """True if a source or operator of a plan or problem with this audit (None: without one) belongs to it."""
    return audit is not None and name.startswith(AUDIT_PREFIX)
