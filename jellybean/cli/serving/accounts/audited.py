"""What `accuracy` shows of audits: the accuracy of the newest plan, estimated without labels."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from jellybean.ledger.audits import FIRST_AUDITS
from jellybean.ledger.queries.source import LedgerSource
from jellybean.ledger.span import Span
from jellybean.report.drift.audited_accuracy import AuditedAccuracy
from jellybean.report.drift.served_audits import accuracy_by_audits
from jellybean_solver import Plan


def audits_of(source: LedgerSource, workflow: str, plan: Plan, plan_hash: str, span: Span) -> AuditedAccuracy | None:
    """The accuracy of a workflow of a plan by its audits in a span; None if it has none. `plan`: of it alone."""
    if plan.audit is None:
        return None
    return accuracy_by_audits(source.audits(workflow, plan_hash, span), plan, span)


def audit_table(audited: AuditedAccuracy, whose: str = "") -> Table:
    """The audits of the newest plan, what was expected of them, and the accuracy that follows."""
    table = Table("of the newest plan", title=f"{whose}accuracy by audits, without labels", title_justify="left")
    table.add_column("", justify="right")
    table.add_column("95 % interval", justify="right")
    lost = f"; {audited.shed:,} shed, {audited.lost:,} lost" if audited.shed or audited.lost else ""
    table.add_row("audits", f"{audited.audits:,}{lost}", "")
    agreement, estimate = audited.agreement, audited.estimate
    table.add_row("as the reference", f"{agreement.value:.2f} %", f"{agreement.low:.2f} to {agreement.high:.2f} %")
    for one in audited.selections:
        own = one.agreement
        of = f"{own.value:.2f} % of {one.audits:,}; {one.usual:.2f} % expected"
        table.add_row(f"  {one.name}", of, f"{own.low:.2f} to {own.high:.2f} %")
    if audited.expected is not None:
        source = "held-out requests" if audited.expected.is_measured else "first audits"
        table.add_row("expected", f"{100 * audited.expected.share:.2f} %", f"by {audited.expected.requests:,} {source}")
    else:
        table.add_row("expected", "not known", f"by the first {FIRST_AUDITS} audits")
    if estimate is not None:
        table.add_row("estimated accuracy", f"{estimate.value:.2f} %", f"{estimate.low:.2f} to {estimate.high:.2f} %")
    table.add_row("bounds", "", f"{audited.bounds[0]:.2f} to {audited.bounds[1]:.2f} %")
    if audited.planned is not None:
        table.add_row("planned accuracy", f"{audited.planned:.2f} %", "")
    return table


def audit_warnings(audited: AuditedAccuracy | None) -> Iterator[str]:
    """That the newest plan is worse than planned by its audits, if it is."""
    if audited is not None and audited.is_below_plan and audited.estimate is not None:
        shown = f"{audited.estimate.low:.2f} to {audited.estimate.high:.2f} % by {audited.audits:,} audits"
        yield f"the newest plan is worse than planned ({audited.planned:.2f} %): {shown}"
