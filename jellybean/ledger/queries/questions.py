"""Questions about the ledger: what serving cost from one time to another, by what."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select

from jellybean.ledger import tables
from jellybean.ledger.columns import KINDS, LATENCY_BOUNDS_S
from jellybean.ledger.errors import LedgerError
from jellybean.ledger.events import Event, EventKind
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.paid_time import paid_seconds
from jellybean.ledger.queries.plan_cost import plan_pieces, plan_usd_by_client
from jellybean.ledger.span import PERIODS_S, Span, day_or_hour


class By(StrEnum):
    """What costs are divided by."""

    DAY = "day"
    HOUR = "hour"
    WORKFLOW = "workflow"
    PLAN = "plan"
    OPERATOR = "operator"
    VARIANT = "variant"
    WORKER = "worker"
    TIER = "tier"
    SITE = "site"
    LINK = "link"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class CostLine:
    """What one of them cost. `name`: empty where it is nobody's.

    `done`: requests answered; by operator, variant, worker, tier and site what operators completed there, children of
    fan-outs one by one; None by link.
    """

    name: str
    workers_usd: float
    traffic_usd: float
    done: int | None
    failed: int | None

    @property
    def usd(self) -> float:
        return self.workers_usd + self.traffic_usd


def cost(ledger: Ledger, by: By, span: Span = Span()) -> tuple[CostLine, ...]:
    """Cost of a span, divided by `by`; the lines sum to all that was paid.

    Days and hours come in order, others dearest first. A client's part of an interval is by its requests that arrived
    then.
    """
    with ledger.reading() as connection:
        lines = _by_client(connection, span) if by is By.CLIENT else _by_column(connection, by, span)
    in_order = by in (By.DAY, By.HOUR)
    return tuple(sorted(lines, key=lambda line: (line.name,) if in_order else (-line.usd, line.name)))


def _by_client(connection: Connection, span: Span) -> list[CostLine]:
    """Clients pay workers and bytes alike: their part is shown as workers'."""
    columns = tables.requests.c
    failed = sum((columns[kind] for kind in KINDS if kind != "answered"), start=columns.lost * 0)
    query = select(columns.client, func.sum(columns.usd), func.sum(columns.answered), func.sum(failed))
    rows = connection.execute(span.of(query, tables.requests).group_by(columns.client)).all()
    lines = {row[0]: CostLine(row[0], float(row[1]), 0.0, int(row[2]), int(row[3])) for row in rows}
    if not span.plan:
        return list(lines.values())
    parts = plan_usd_by_client(connection, span)
    others = {client: CostLine(client, 0.0, 0.0, 0, 0) for client in parts if client not in lines}
    return [replace(line, workers_usd=parts.get(line.name, 0.0)) for line in (lines | others).values()]


def _by_column(connection: Connection, by: By, span: Span) -> list[CostLine]:
    """By a column of the lines of work and of bytes."""
    by_workflow: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for number, table, done, failed in (
        (0, tables.work, tables.work.c.completed, tables.work.c.failed),
        (1, tables.sent, None, None),
    ):
        of_workflow = [table.c.workflow] if by in (By.OPERATOR, By.VARIANT) else []
        own = [*of_workflow, *_keys(by, table)]
        amounts = [func.sum(table.c.usd), *(func.sum(one) for one in (done, failed) if one is not None)]
        query = span.of(select(*own, *amounts), table).group_by(*own)
        for row in connection.execute(query):
            line = by_workflow[tuple(row[: len(of_workflow)]), _name(by, row[len(of_workflow) : len(own)])]
            line[number] += row[len(own)]
            for place, value in enumerate(row[len(own) + 1 :]):
                line[2 + place] += value
    several = len({workflow for workflow, _ in by_workflow}) > 1
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for (workflow, name), amounts_of in by_workflow.items():
        found["/".join((*workflow, name)) if several else name] = amounts_of
    if by in (By.DAY, By.HOUR, By.WORKFLOW, By.PLAN):
        _count_requests(connection, by, span, found)
    without = by is By.LINK
    return [
        CostLine(name, workers, traffic, None if without else round(done), None if without else round(failed))
        for name, (workers, traffic, done, failed) in found.items()
    ]


def _count_requests(connection: Connection, by: By, span: Span, found: dict[str, list[float]]) -> None:
    """Answered and failed requests in place of what operators completed."""
    table = tables.requests
    for line in found.values():
        line[2:] = [0.0, 0.0]
    own = _keys(by, table)
    failed = sum((table.c[kind] for kind in KINDS if kind != "answered"), start=table.c.lost * 0)
    query = span.of(select(*own, func.sum(table.c.answered), func.sum(failed)), table).group_by(*own)
    for row in connection.execute(query):
        line = found[_name(by, row[: len(own)])]
        line[2] += float(row[-2])  # PostgreSQL sums integers to decimals
        line[3] += float(row[-1])


_WORK_COLUMNS: Mapping[By, tuple[str, ...]] = {
    By.VARIANT: ("operator", "variant"),
    By.LINK: (),
}
_SENT_COLUMNS: Mapping[By, tuple[str, ...]] = {
    By.VARIANT: ("operator", "variant"),
    By.WORKER: ("sender",),
    By.LINK: ("tier", "to_tier"),
}


def _keys(by: By, table: Table) -> list[ColumnElement[Any]]:
    """What the lines of a table are grouped by."""
    if by in PERIODS_S:
        return [table.c.begin_s // PERIODS_S[by]]
    columns = (_SENT_COLUMNS if table is tables.sent else _WORK_COLUMNS).get(by, (by.value,))
    return [table.c[name] for name in columns]


def _name(by: By, key: Sequence[Any]) -> str:
    """What a group is called; empty where no one of them has its cost."""
    if by in PERIODS_S:
        return day_or_hour(by.value, key[0])
    return (" -> " if by is By.LINK else " ").join(map(str, key)).strip()


@dataclass(frozen=True, slots=True)
class ServedLine:
    """How the requests of a day or hour went. `ends`: how they ended -> number.

    Latencies of those answered are the upper bounds of the histogram's buckets, in seconds; None without an answer, inf
    above the last bound.
    """

    name: str
    received: int
    ends: Mapping[str, int]
    latency_p50_s: float | None
    latency_p90_s: float | None
    latency_p99_s: float | None


def served(ledger: Ledger, by: By, span: Span = Span()) -> tuple[ServedLine, ...]:
    """How requests went, by day or hour. LedgerError for another `by`."""
    if by not in PERIODS_S:
        raise LedgerError(f"requests are shown by {' or '.join(PERIODS_S)}, not by {by}")
    requests, latencies = tables.requests, tables.latencies
    totals = [requests.c.received, *(requests.c[kind] for kind in KINDS)]
    buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    with ledger.reading() as connection:
        key = _keys(by, latencies)
        query = select(*key, latencies.c.bucket, func.sum(latencies.c.answers))
        for time, bucket, answers in connection.execute(span.of(query, latencies).group_by(*key, latencies.c.bucket)):
            buckets[_name(by, (time,))][bucket] += int(answers)
        key = _keys(by, requests)
        query = select(*key, *(func.sum(column) for column in totals))
        rows = connection.execute(span.of(query, requests).group_by(*key)).all()
    lines = (
        ServedLine(
            name,
            int(row[1]),
            {kind: int(number) for kind, number in zip(KINDS, row[2:], strict=True)},
            *(_percentile(buckets[name], share) for share in (0.50, 0.90, 0.99)),
        )
        for row in rows
        for name in [_name(by, row[:1])]
    )
    return tuple(sorted(lines, key=lambda line: line.name))


def _percentile(counts: Sequence[int], share: float) -> float | None:
    """The bound of the bucket in which the answer at this share of all lies."""
    needed = math.ceil(share * sum(counts))
    if needed == 0:
        return None
    reached = next(index for index, count in enumerate(accumulate(counts)) if count >= needed)
    return LATENCY_BOUNDS_S[reached] if reached < len(LATENCY_BOUNDS_S) else math.inf


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """What was served in one of equal pieces of time, from `begin_s` (Unix time) on.

    `paid_s`: seconds of it that were paid for, of one plan those of its workers; `latency_p99_s`: as in `ServedLine`.
    """

    begin_s: float
    paid_s: float
    usd: float
    answered: int
    failed: int
    latency_p99_s: float | None


def timeline(ledger: Ledger, piece_s: int, span: Span = Span()) -> tuple[TimelinePoint, ...]:
    """The pieces of time in which something was served or paid, in order."""
    pieces: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    buckets: dict[int, list[int]] = defaultdict(lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    latencies, requests = tables.latencies, tables.requests
    failed = sum((requests.c[kind] for kind in KINDS if kind != "answered"), start=requests.c.lost * 0)
    intervals = tables.intervals.c
    paid: Select[Any] = select(intervals.begin_s, intervals.end_s, intervals.seconds).order_by(intervals.begin_s)
    piece: ColumnElement[Any] = requests.c.begin_s // piece_s
    amounts: Select[Any] = select(piece, func.sum(requests.c.usd), func.sum(requests.c.answered), func.sum(failed))
    late: ColumnElement[Any] = latencies.c.begin_s // piece_s
    answers: Select[Any] = select(late, latencies.c.bucket, func.sum(latencies.c.answers))
    with ledger.reading() as connection:
        rows = connection.execute(span.of(paid, tables.intervals))
        for begin_s, seconds in paid_seconds(tuple(row) for row in rows):
            pieces[int(begin_s // piece_s)][0] += seconds
        for number, *sums in connection.execute(span.of(amounts, requests).group_by(piece)):
            pieces[int(number)][1:] = map(float, sums)
        for number, bucket, count in connection.execute(span.of(answers, latencies).group_by(late, latencies.c.bucket)):
            buckets[int(number)][bucket] += int(count)
        if span.plan:
            for amounts_of_piece in pieces.values():
                amounts_of_piece[:2] = 0.0, 0.0
            for number, (paid_s, usd) in plan_pieces(connection, piece_s, span).items():
                pieces[number][:2] = paid_s, usd
    return tuple(
        TimelinePoint(number * piece_s, paid_s, usd, int(answered), int(lost), _percentile(buckets[number], 0.99))
        for number, (paid_s, usd, answered, lost) in sorted(pieces.items())
    )


def served_between(ledger: Ledger, span: Span = Span()) -> tuple[float, float] | None:
    """Unix times at which the first interval of a span begins and the last one ends; None if nothing was served."""
    columns = tables.intervals.c
    query = span.of(select(func.min(columns.begin_s), func.max(columns.end_s)), tables.intervals)
    with ledger.reading() as connection:
        begin_s, end_s = connection.execute(query).one()
    return None if begin_s is None else (float(begin_s), float(end_s))


def run_cost(ledger: Ledger, run: str, workflow: str) -> tuple[float, float]:
    """What a workflow has cost in a run up to its last interval: USD for workers, and for bytes over links."""
    intervals = tables.intervals
    with ledger.reading() as connection:
        workers, links = (
            connection.execute(
                select(func.coalesce(func.sum(table.c.usd), 0.0))
                .join(intervals, intervals.c.id == table.c.interval)
                .where(intervals.c.run == run, table.c.workflow == workflow)
            ).scalar_one()
            for table in (tables.work, tables.sent)
        )
    return float(workers), float(links)


def last_plan(ledger: Ledger) -> str | None:
    """Hash of the plan that served requests last; None if nothing was served."""
    columns = tables.intervals.c
    with ledger.reading() as connection:
        found: str | None = connection.execute(
            select(columns.plan).order_by(columns.begin_s.desc(), columns.id.desc()).limit(1)
        ).scalar()
    return found


def all_events(ledger: Ledger) -> tuple[Event, ...]:
    """What happened to serving, in the order in which it was written."""
    columns = tables.events.c
    query = select(columns.at_s, columns.run, columns.kind, columns.plan, columns.note).order_by(columns.id)
    with ledger.reading() as connection:
        rows = connection.execute(query).all()
    return tuple(Event(at_s, run, EventKind(kind), plan, note) for at_s, run, kind, plan, note in rows)
