"""The audits of a plan in the ledger: the accuracy that they show, and whether fewer answers agree than expected."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.ledger.audits import AuditLine
from jellybean.ledger.span import Span
from jellybean.report.drift.agreement_watch import AgreementWatch
from jellybean.report.drift.audited_accuracy import AuditedAccuracy, audited_accuracy, expected_agreement
from jellybean_solver import Plan, served_streams


def accuracy_by_audits(lines: Sequence[AuditLine], plan: Plan, span: Span = Span()) -> AuditedAccuracy | None:
    """The accuracy of a plan's answers in a span; None if it has no audit, or none was compared.

    `lines`: the plan's audits of the span, and its first ones.
    """
    if plan.audit is None:
        return None
    expected, compared = expected_agreement(plan.audit, lines)
    own = (line for line in compared if span.since_s <= line.begin_s < span.until_s)
    return audited_accuracy(plan.audit, plan.accuracy, expected, own)


def watched_agreement(lines: Sequence[AuditLine], plan: Plan, span: Span = Span()) -> AgreementWatch | None:
    """The watch of a plan's agreement after its audits of a span; None if it has none, or nothing is expected yet.

    `lines`: as of `accuracy_by_audits`.
    """
    if plan.audit is None:
        return None
    expected, compared = expected_agreement(plan.audit, lines)
    own = [line for line in compared if span.since_s <= line.begin_s < span.until_s]
    if expected is None or not any(line.audits for line in own):
        return None
    audits_per_s = plan.audit.share * sum(stream.rate_per_s for stream in served_streams(plan))
    return AgreementWatch(expected, audits_per_s).see_all(own)
