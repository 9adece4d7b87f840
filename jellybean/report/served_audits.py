"""The audits of a plan in the ledger: the accuracy that they show, and whether fewer answers agree than expected."""

from __future__ import annotations

from jellybean.ledger.audits import audit_lines
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.questions import Span
from jellybean.report.agreement_watch import AgreementWatch
from jellybean.report.audited_accuracy import AuditedAccuracy, audited_accuracy, expected_agreement
from jellybean_solver import Plan, served_streams


def accuracy_by_audits(ledger: Ledger, plan: Plan, plan_hash: str, span: Span = Span()) -> AuditedAccuracy | None:
    """The accuracy of a plan's answers in a span; None if it has no audit, or none was compared."""
    if plan.audit is None:
        return None
    expected, lines = expected_agreement(plan.audit, audit_lines(ledger, plan.name, plan_hash))
    own = (line for line in lines if span.since_s <= line.begin_s < span.until_s)
    return audited_accuracy(plan.audit, plan.accuracy, expected, own)


def watched_agreement(ledger: Ledger, plan: Plan, plan_hash: str, span: Span = Span()) -> AgreementWatch | None:
    """The watch of a plan's agreement after its audits of a span; None if it has none, or nothing is expected yet."""
    if plan.audit is None:
        return None
    expected, lines = expected_agreement(plan.audit, audit_lines(ledger, plan.name, plan_hash))
    own = [line for line in lines if span.since_s <= line.begin_s < span.until_s]
    if expected is None or not any(line.audits for line in own):
        return None
    audits_per_s = plan.audit.share * sum(stream.rate_per_s for stream in served_streams(plan))
    return AgreementWatch(expected, audits_per_s).see_all(own)
