"""What the values of requests and answers are like, in two figures for each tensor, and their means by interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from sqlalchemy import delete, insert, select

from jellybean.ledger import tables
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.span import Span
from jellybean_agent import Array

KEPT_S = 14 * 86_400.0
MOST_VALUES = 4096  # of a tensor: more say hardly more, and would take time of the gateway


class Port(StrEnum):
    """Where a tensor passes the gateway."""

    SOURCE = "source"
    ANSWER = "answer"


class Figure(StrEnum):
    """A figure of one tensor."""

    MEAN = "mean"
    SPREAD = "spread"  # standard deviation of its values


@dataclass(frozen=True, slots=True)
class ValueLine:
    """A figure over some requests of an interval: its mean, and its standard deviation from request to request.

    `name`: of the source, or of the operator that answers.
    """

    begin_s: float
    seconds: float
    workflow: str
    plan: str
    port: Port
    name: str
    figure: Figure
    requests: int
    mean: float
    deviation: float


def figures_of(tensor: Array) -> dict[Figure, float]:
    """The figures of a tensor, from at most `MOST_VALUES` of its finite values; empty if it has none."""
    flat = tensor.reshape(-1)
    values = flat[:: max(1, -(-flat.size // MOST_VALUES))].astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return {}
    return {Figure.MEAN: float(values.mean()), Figure.SPREAD: float(values.std())}


def keep_values(ledger: Ledger, lines: Sequence[ValueLine], now_unix_s: float) -> None:
    """Add lines, and remove those of long ago."""
    table = tables.values
    with ledger.changing() as connection:
        if lines:
            connection.execute(insert(table), [asdict(line) for line in lines])
        connection.execute(delete(table).where(table.c.begin_s < now_unix_s - KEPT_S))


def value_lines(ledger: Ledger, plan: str, span: Span = Span()) -> list[ValueLine]:
    """The lines of a plan in the order of time."""
    table = tables.values
    columns = [column for column in table.c if column.name != "number"]
    query = span.of(select(*columns).where(table.c.plan == plan), table).order_by(table.c.begin_s, table.c.number)
    with ledger.reading() as connection:
        rows = connection.execute(query).all()
    return [ValueLine(**{**row._mapping, "port": Port(row.port), "figure": Figure(row.figure)}) for row in rows]
