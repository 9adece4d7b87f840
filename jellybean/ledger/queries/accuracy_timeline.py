"""Accuracy over time, by the labels that the answers of each piece of time have by now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select

from jellybean.ledger import tables
from jellybean.ledger.answers import ServedAccuracy, accuracy_of
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.span import Span


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """Accuracy of the labelled answers of one of equal pieces of time, from `begin_s` (Unix time) on."""

    begin_s: float
    accuracy: ServedAccuracy


def accuracy_timeline(ledger: Ledger, workflow: str, piece_s: int, span: Span = Span()) -> tuple[AccuracyPoint, ...]:
    """The pieces of time with labelled answers of a workflow, in order."""
    columns = tables.answers.c
    piece: ColumnElement[Any] = func.floor(columns.at_s / piece_s)
    query = select(piece, func.count(columns.correct), func.sum(columns.correct))
    query = span.over_time(query, tables.answers, "at_s")
    query = query.where(columns.workflow == workflow, columns.correct.is_not(None))
    if span.plan:
        query = query.where(columns.plan == span.plan)
    with ledger.reading() as connection:
        rows = connection.execute(query.group_by(piece).order_by(piece)).all()
    return tuple(AccuracyPoint(number * piece_s, accuracy_of(workflow, *sums)) for number, *sums in rows)
