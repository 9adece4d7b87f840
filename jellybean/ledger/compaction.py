"""Old intervals are added up to five minutes, hours and days: sums stay, and the space that they take is bounded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, Table, delete, func, insert, literal, select, update

from jellybean.ledger import tables
from jellybean.ledger.columns import KINDS
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.paid_time import paid_seconds

_DAY_S = 86_400.0
STEPS = (  # (age in seconds, intervals of this length, are added up to this length, of so many seconds)
    (600.0, tables.LIVE, tables.MINUTES, 300.0),
    (2 * _DAY_S, tables.MINUTES, tables.HOUR, 3_600.0),
    (60 * _DAY_S, tables.HOUR, tables.DAY, _DAY_S),
)
_WORKFLOW = (  # of an interval: workflows that are served together have intervals of their own
    select(func.min(tables.requests.c.workflow))
    .where(tables.requests.c.interval == tables.intervals.c.id)
    .scalar_subquery()
)
_AT_ONCE = 500  # intervals in a statement: SQLite before 3.32 takes 999 values
_SUMMED = frozenset(
    ("completed", "failed", "busy_s", "worker_s", "usd", "sent_bytes", "received", "answered_us", "answers")
).union(KINDS)


def compact(ledger: Ledger, now_unix_s: float) -> int:
    """Add up old intervals; returns how many are fewer. Each longer interval is a transaction of its own."""
    fewer = 0
    for age_s, length, longer, seconds in STEPS:
        groups: dict[tuple[float, str, str, str], list[int]] = defaultdict(list)
        columns = tables.intervals.c
        ends = (now_unix_s - age_s) // seconds * seconds  # only whole hours and days
        with ledger.reading() as connection:
            query = select(columns.id, columns.run, columns.plan, columns.begin_s, _WORKFLOW)
            for number, run, plan, begin_s, workflow in connection.execute(
                query.where(columns.length == length, columns.begin_s < ends)
            ):
                groups[begin_s // seconds, run, plan, workflow or ""].append(number)
        alone = [numbers[0] for numbers in groups.values() if len(numbers) == 1]
        _rename(ledger, longer, alone)
        for (_, run, plan, _), numbers in groups.items():
            if len(numbers) == 1:
                continue
            with ledger.changing() as connection:
                _add_up(connection, run, plan, longer, numbers)
            fewer += len(numbers) - 1
    return fewer


def _rename(ledger: Ledger, longer: str, numbers: Sequence[int]) -> None:
    """Intervals that are alone in their longer one are that already."""
    columns = tables.intervals.c
    for begin in range(0, len(numbers), _AT_ONCE):
        with ledger.changing() as connection:
            own = update(tables.intervals).where(columns.id.in_(numbers[begin : begin + _AT_ONCE]))
            connection.execute(own.values(length=longer))


def _add_up(connection: Connection, run: str, plan: str, length: str, numbers: Sequence[int]) -> None:
    columns = tables.intervals.c
    of_these = columns.id.in_(numbers)
    locked = connection.execute(select(columns.id).where(of_these).order_by(columns.id).with_for_update()).all()
    if len(locked) < len(numbers):
        return  # another gateway has added them up meanwhile
    times = select(columns.begin_s, columns.end_s, columns.seconds).where(of_these).order_by(columns.begin_s)
    found = [tuple(row) for row in connection.execute(times)]
    begin_s, end_s = found[0][0], max(end_s for _, end_s, _ in found)
    seconds = math.fsum(seconds for _, seconds in paid_seconds(found))
    row = {"run": run, "plan": plan, "length": length, "begin_s": begin_s, "end_s": end_s, "seconds": seconds}
    number = connection.execute(insert(tables.intervals).values(**row).returning(columns.id)).scalar_one()
    for table in tables.LINES:
        _add_up_lines(connection, table, numbers, number, begin_s)
    connection.execute(delete(tables.intervals).where(of_these))


def _add_up_lines(connection: Connection, table: Table, numbers: Sequence[int], number: int, begin_s: float) -> None:
    """Replace the lines of these intervals by their sums, in the interval `number`."""
    same = [column for column in table.c if column.name not in ("interval", "begin_s") and column.name not in _SUMMED]
    summed = [column for column in table.c if column.name in _SUMMED]
    sums = (
        select(literal(number), literal(int(begin_s)), *same, *(func.sum(column) for column in summed))
        .where(table.c.interval.in_(numbers))
        .group_by(*same)
    )
    rows = connection.execute(sums).all()
    connection.execute(delete(table).where(table.c.interval.in_(numbers)))
    names = ["interval", "begin_s", *(column.name for column in (*same, *summed))]
    if rows:
        connection.execute(insert(table), [dict(zip(names, row, strict=True)) for row in rows])
