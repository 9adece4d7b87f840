"""What one plan cost by piece of time and by client: also while it was being replaced and another one served.

Requests are written under the plan that served them, with the cost of all plans that were up. So a plan's own cost is
that of its lines of work and bytes, and its time that for which its workers were paid.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, union_all

from jellybean.ledger import tables
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.paid_time import paid_seconds
from jellybean.ledger.span import Span


def plan_pieces(connection: Connection, piece_s: int, span: Span) -> Mapping[int, tuple[float, float]]:
    """Number of a piece of time -> seconds for which the span's plan was paid (of the worker paid longest), and USD."""
    work = tables.work
    piece: ColumnElement[Any] = work.c.begin_s // piece_s
    own = (piece, work.c.workflow, work.c.worker)  # workflows that share a worker pay for the same time
    query: Select[Any] = select(*own, func.sum(work.c.worker_s), func.sum(work.c.usd))
    paid_s: dict[int, float] = defaultdict(float)
    usd: dict[int, float] = defaultdict(float)
    for number, _, _, worker_s, amount in connection.execute(span.of(query, work).group_by(*own)):
        paid_s[int(number)] = max(paid_s[int(number)], worker_s)
        usd[int(number)] += amount
    sent = tables.sent
    piece = sent.c.begin_s // piece_s
    traffic: Select[Any] = select(piece, func.sum(sent.c.usd))
    for number, amount in connection.execute(span.of(traffic, sent).group_by(piece)):
        usd[int(number)] += amount
    return {number: (paid_s[number], usd[number]) for number in usd}


def plan_usd_by_client(connection: Connection, span: Span) -> Mapping[str, float]:
    """Client -> its part of the plan's cost: in each interval, as it shared the cost of all plans that were up."""
    lines: list[Select[Any]] = []
    for table in (tables.work, tables.sent):
        query: Select[Any] = select(table.c.interval, table.c.usd)
        lines.append(span.of(query, table))
    own = union_all(*lines).subquery()
    plan = select(own.c.interval, func.sum(own.c.usd).label("usd")).group_by(own.c.interval).subquery()
    requests = tables.requests
    total = span.over_time(select(requests.c.interval, func.sum(requests.c.usd).label("usd")), requests)
    paid = total.group_by(requests.c.interval).subquery()
    parts = (
        select(requests.c.client, func.sum(requests.c.usd * plan.c.usd / paid.c.usd))
        .join(plan, plan.c.interval == requests.c.interval)
        .join(paid, paid.c.interval == requests.c.interval)
        .where(paid.c.usd > 0)
        .group_by(requests.c.client)
    )
    return {str(client): float(usd) for client, usd in connection.execute(parts)}


def served_seconds(ledger: Ledger, span: Span) -> Mapping[str, float]:
    """Hash -> seconds of the span in which workers were paid and the plan served new requests."""
    columns = tables.intervals.c
    query = select(columns.plan, columns.begin_s, columns.end_s, columns.seconds)
    by_plan: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with ledger.reading() as connection:
        for plan, *interval in connection.execute(span.of(query, tables.intervals).order_by(columns.begin_s)):
            by_plan[plan].append(tuple(interval))
    return {plan: math.fsum(seconds for _, seconds in paid_seconds(own)) for plan, own in by_plan.items()}
