"""How often served answers were those of the plan's reference, by interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import delete, insert, select

from jellybean.ledger import tables
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.span import Span

KEPT_S = 60 * 86_400.0
FIRST_AUDITS = 300  # of a plan, that say what is expected where the profiles do not


@dataclass(frozen=True, slots=True)
class AuditLine:
    """The audits of an interval. `audits`: answers that were compared, `agreed`: the sum of their agreements (0 to 1).

    `shed`: not sent, as the gateway or the workers were busy; `lost`: not answered. Neither says anything of accuracy.
    `selection`: that the requests got, where the plan mixes variants (`detect=small, read=big`).
    """

    begin_s: float
    seconds: float
    workflow: str
    plan: str
    site: str
    audits: int
    agreed: float
    shed: int
    lost: int
    selection: str = ""


def keep_audits(ledger: Ledger, lines: Sequence[AuditLine], now_unix_s: float) -> None:
    """Add lines, and remove those of long ago."""
    table = tables.audits
    with ledger.changing() as connection:
        if lines:
            connection.execute(insert(table), [asdict(line) for line in lines])
        connection.execute(delete(table).where(table.c.begin_s < now_unix_s - KEPT_S))


def audit_lines(ledger: Ledger, workflow: str, plan: str, span: Span = Span()) -> list[AuditLine]:
    """The lines of a workflow's plan in the order of time."""
    table = tables.audits
    columns = [column for column in table.c if column.name != "number"]
    query = select(*columns).where(table.c.workflow == workflow, table.c.plan == plan)
    query = span.of(query, table).order_by(table.c.begin_s, table.c.number)
    with ledger.reading() as connection:
        rows = connection.execute(query).all()
    return [AuditLine(**row._mapping) for row in rows]


def span_and_first_audits(ledger: Ledger, workflow: str, plan: str, span: Span = Span()) -> list[AuditLine]:
    """The lines of a span in the order of time, and before them those of the plan's first `FIRST_AUDITS` audits."""
    return list(_needed(audit_lines(ledger, workflow, plan), span))


def _needed(lines: Iterable[AuditLine], span: Span) -> Iterator[AuditLine]:
    """The lines of the interval with which the first audits are complete are some of them."""
    audits, last_s = 0, -math.inf
    for line in lines:
        is_first = audits < FIRST_AUDITS or line.begin_s == last_s
        if is_first or span.since_s <= line.begin_s < span.until_s:
            yield line
        if is_first:
            audits, last_s = audits + line.audits, line.begin_s
