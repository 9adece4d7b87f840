"""The intervals of a ledger, each with what was paid and answered in it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from jellybean.ledger import tables
from jellybean.ledger.columns import KINDS
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.span import Span


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """An interval: `length` (live, 5min, hour, day), seconds that workers were paid for, cost and requests.

    `plan`: that served new requests.
    """

    begin_unix_s: float
    end_unix_s: float
    length: str
    run: str
    plan: str
    paid_s: float
    usd: float
    received: int
    answered: int
    failed: int


def interval_rows(ledger: Ledger, span: Span = Span()) -> tuple[IntervalRow, ...]:
    """The intervals that begin in a span, in order."""
    intervals, requests = tables.intervals, tables.requests
    failed: ColumnElement[int] = sum(
        (requests.c[kind] for kind in KINDS if kind != "answered"), start=requests.c.lost * 0
    )
    amounts = (requests.c.usd, requests.c.received, requests.c.answered, failed)
    sums = [func.sum(amount).label(name) for name, amount in zip(("usd", "in", "out", "lost"), amounts, strict=True)]
    own = span.over_time(select(requests.c.interval, *sums), requests).group_by(requests.c.interval).subquery()
    columns = intervals.c
    query = select(
        *(columns.begin_s, columns.end_s, columns.length, columns.run, columns.plan, columns.seconds),
        *(func.coalesce(own.c[name], 0) for name in ("usd", "in", "out", "lost")),
    ).outerjoin_from(intervals, own, own.c.interval == columns.id)
    query = span.of(query, intervals).order_by(columns.begin_s, columns.id)
    with ledger.reading() as connection:
        rows = connection.execute(query).all()
    return tuple(
        IntervalRow(begin_s, end_s, length, run, plan, paid_s, float(usd), int(received), int(answered), int(lost))
        for begin_s, end_s, length, run, plan, paid_s, usd, received, answered, lost in rows
    )
