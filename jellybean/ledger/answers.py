"""Answers that wait for their labels, and how many of those that have one are right.

The interval of a share is Wilson's score interval (Wilson 1927): it holds for few labels, and for shares near 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, insert, select, update

from jellybean.ledger import tables
from jellybean.ledger.errors import LABELLED_ALREADY, NoAnswerError
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.span import PERIODS_S, Span, day_or_hour

MAX_ANSWER_BYTES = 4096  # of all sinks together: larger answers are not kept
KEPT_S = 30 * 86_400.0  # answers without a label are kept as long
MOST_WAITING = 1_000_000  # of all that were kept, the last so many wait: with small answers some 300 MB
Z95 = 1.959964  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer as it is kept. `client`: of the request, empty without a certificate; `id`: that it gave it."""

    client: str
    id: str
    at_s: float
    workflow: str
    plan: str
    selection: str
    site: str
    outputs: bytes


class LabelledBy(StrEnum):
    """What labelled answers are grouped by."""

    ALL = "all"
    DAY = "day"
    HOUR = "hour"
    PLAN = "plan"
    SELECTION = "selection"
    SITE = "site"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class ServedAccuracy:
    """Accuracy of labelled answers in percent, with its 95 % interval."""

    name: str
    labels: int
    accuracy: float
    low: float
    high: float


def keep_answers(
    ledger: Ledger, answers: Sequence[KeptAnswer], now_unix_s: float, most_waiting: int = MOST_WAITING
) -> None:
    """Add answers, and remove those whose labels never came: the old ones, and all but the last `most_waiting`."""
    table = tables.answers
    waiting = delete(table).where(table.c.correct.is_(None))
    with ledger.changing() as connection:
        if answers:
            connection.execute(insert(table), [asdict(answer) for answer in answers])
        connection.execute(waiting.where(table.c.at_s < now_unix_s - KEPT_S))
        newest = connection.execute(select(func.max(table.c.number))).scalar()
        if newest is not None and newest > most_waiting:
            connection.execute(waiting.where(table.c.number <= newest - most_waiting))


@dataclass(frozen=True, slots=True)
class AnswerName:
    """Which answer a label is for: of a workflow, to the request with this id. `client`: None if that is clear."""

    workflow: str
    id: str
    client: str | None = None


def label_answer(ledger: Ledger, name: AnswerName, judge: Callable[[bytes], float], now_s: float) -> float:
    """Judge the answer to the request with this id by `judge` (serialised outputs -> 0 to 1); its verdict.

    NoAnswerError if there is none, if it was labelled before, or if it cannot be told which answer the label is for: if
    several clients used the id and none is named, or one client used it several times. The latest of these is no better
    a guess than the others, and a wrong one would be a wrong accuracy.
    """
    columns = tables.answers.c
    query = select(columns.number, columns.client, columns.outputs)
    query = query.where(columns.id == name.id, columns.workflow == name.workflow)
    if name.client is not None:
        query = query.where(columns.client == name.client)
    with ledger.changing() as connection:
        rows = connection.execute(query.order_by(columns.number.desc())).all()
        if not rows:
            raise NoAnswerError(
                f"no answer to a request {name.id!r} is kept{_of_client(name.client)}: "
                f"only requests with an id are, with answers of at most {MAX_ANSWER_BYTES} bytes, for "
                f"{KEPT_S / 86_400:.0f} days, the last {MOST_WAITING:,} at most"
            )
        if len(clients := {row.client for row in rows}) > 1:
            named = ", ".join(one or "(no certificate)" for one in sorted(clients))
            raise NoAnswerError(f"several clients sent a request {name.id!r}: {named}; say which one with --client")
        waiting = [row for row in rows if row.outputs is not None]
        if not waiting:
            raise NoAnswerError(f"request {name.id!r} {LABELLED_ALREADY}")
        if len(waiting) > 1:
            raise NoAnswerError(
                f"{len(waiting)} answers to requests {name.id!r} of one client wait for a label, and which one this "
                "label is for cannot be told: give each request an id of its own"
            )
        correct = judge(waiting[0].outputs)
        own = update(tables.answers).where(columns.number == waiting[0].number)
        connection.execute(own.values(correct=correct, labelled_s=now_s, outputs=None))
    return correct


def _of_client(client: str | None) -> str:
    """Words on whose answer a label names."""
    if not client:
        return "" if client is None else " of callers without a certificate"
    form = "" if "/" in client else " (a client of only one of several workflows is written WORKFLOW/NAME)"
    return f" of client {client!r}{form}"


def served_accuracy(ledger: Ledger, workflow: str, by: LabelledBy, span: Span = Span()) -> tuple[ServedAccuracy, ...]:
    """Accuracy of a workflow's answers that were given in a span and have labels by now, in the order of names."""
    query = _of_span(_grouped(by), span).where(tables.answers.c.workflow == workflow)
    with ledger.reading() as connection:
        rows = connection.execute(query).all()
    found = [accuracy_of(str(day_or_hour(by.value, name) if by in PERIODS_S else name), *sums) for name, *sums in rows]
    return tuple(sorted(found, key=lambda line: line.name))


def waiting_answers(ledger: Ledger, workflow: str) -> int:
    """Number of a workflow's answers that have no label yet."""
    columns = tables.answers.c
    query = select(func.count()).where(columns.correct.is_(None), columns.workflow == workflow)
    with ledger.reading() as connection:
        return int(connection.execute(query).scalar_one())


def _grouped(by: LabelledBy) -> Select[Any]:
    columns = tables.answers.c
    correct = columns.correct
    key: ColumnElement[Any]
    if by in PERIODS_S:
        key = func.floor(columns.at_s / PERIODS_S[by])
    else:
        key = columns[by.value] if by is not LabelledBy.ALL else func.min(columns.workflow)
    query = select(key, func.count(correct), func.sum(correct)).where(correct.is_not(None))
    return query if by is LabelledBy.ALL else query.group_by(key)


def _of_span(query: Select[Any], span: Span) -> Select[Any]:
    query = span.over_time(query, tables.answers, "at_s")
    return query.where(tables.answers.c.plan == span.plan) if span.plan else query


def accuracy_of(name: str, labels: int, right: float | None) -> ServedAccuracy:
    """The share of `labels` that is right, with its interval; nan from 0 to 100 without labels."""
    if not labels or right is None:
        return ServedAccuracy(name, 0, math.nan, 0.0, 100.0)
    low, high = wilson(right / labels, labels)
    return ServedAccuracy(name, labels, 100 * right / labels, 100 * low, 100 * high)


def wilson(share: float, count: float, z: float = Z95) -> tuple[float, float]:
    """The score interval of a share of `count`, the 95 % one by default. `z`: quantile of the normal distribution."""
    square = z**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)
