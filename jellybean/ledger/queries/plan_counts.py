"""What was counted in each interval in which a plan served: what its predictions are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import select

from jellybean.ledger import tables
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.questions import last_plan
from jellybean.ledger.span import Span
from jellybean.ledger.value_figures import Figure, Port, ValueLine, value_lines

FIRST_ANSWERS = 300  # of a plan, sampled: what later ones are compared with


@dataclass(frozen=True, slots=True)
class ReceivedCount:
    """Requests of a client that arrived in an interval. `seconds`: of it that were paid for."""

    begin_s: float
    seconds: float
    requests: int
    workflow: str = ""


@dataclass(frozen=True, slots=True)
class WorkCount:
    """Requests that an operator completed on a worker in an interval, and the time that they took."""

    begin_s: float
    seconds: float
    operator: str
    worker: str
    completed: float
    busy_s: float
    workflow: str = ""


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """The counts of a plan (its hash), each in the order of time.

    `values`: those of the span, and of the first `FIRST_ANSWERS` answers of the plan.
    """

    plan: str
    received: tuple[ReceivedCount, ...]
    work: tuple[WorkCount, ...]
    values: tuple[ValueLine, ...]

    def of(self, workflow: str) -> PlanCounts:
        """Those of one of the plan's workflows."""
        return PlanCounts(
            self.plan,
            tuple(one for one in self.received if one.workflow == workflow),
            tuple(one for one in self.work if one.workflow == workflow),
            tuple(one for one in self.values if one.workflow == workflow),
        )


def plan_counts(ledger: Ledger, plan: str | None, span: Span = Span()) -> PlanCounts | None:
    """The counts of a plan in a span, by default of the plan that served last; None if nothing was served."""
    plan = plan or last_plan(ledger)
    if plan is None:
        return None
    values = tuple(_needed(value_lines(ledger, plan), span))
    return PlanCounts(plan, _received(ledger, plan, span), _work(ledger, plan, span), values)


def _received(ledger: Ledger, plan: str, span: Span) -> tuple[ReceivedCount, ...]:
    requests, intervals = tables.requests, tables.intervals
    query = (
        select(intervals.c.begin_s, intervals.c.seconds, requests.c.received, requests.c.workflow)
        .join(intervals, intervals.c.id == requests.c.interval)
        .where(requests.c.plan == plan, intervals.c.seconds > 0)
        .order_by(intervals.c.begin_s)
    )
    with ledger.reading() as connection:
        return tuple(ReceivedCount(*row) for row in connection.execute(span.of(query, requests)))


def _work(ledger: Ledger, plan: str, span: Span) -> tuple[WorkCount, ...]:
    work, intervals = tables.work, tables.intervals
    query = (
        select(
            intervals.c.begin_s,
            intervals.c.seconds,
            work.c.operator,
            work.c.worker,
            work.c.completed,
            work.c.busy_s,
            work.c.workflow,
        )
        .join(intervals, intervals.c.id == work.c.interval)
        .where(work.c.plan == plan, intervals.c.seconds > 0)
        .order_by(intervals.c.begin_s)
    )
    with ledger.reading() as connection:
        return tuple(WorkCount(*row) for row in connection.execute(span.of(query, work)))


def _needed(lines: Iterable[ValueLine], span: Span) -> Iterator[ValueLine]:
    """The lines of a span, and those of the first answers with the line that ends them."""
    seen: dict[tuple[str, str, Figure], int] = {}
    for line in lines:
        key = line.workflow, line.name, line.figure
        is_first = line.port is Port.ANSWER and seen.get(key, 0) >= 0
        if is_first:
            count = seen.get(key, 0)
            seen[key] = -1 if count >= FIRST_ANSWERS else count + line.requests
        if is_first or span.since_s <= line.begin_s < span.until_s:
            yield line
