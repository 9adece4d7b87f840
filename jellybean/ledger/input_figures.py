"""What the values of a source's requests are like, in two figures for each, and their means by interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from sqlalchemy import delete, insert, select

from jellybean.ledger import tables
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.questions import Span
from jellybean_agent import Array

KEPT_S = 14 * 86_400.0
MOST_VALUES = 4096  # of a tensor: more say hardly more, and would take time of the gateway


class InputFigure(StrEnum):
    """A figure of one request's tensor."""

    MEAN = "mean"
    SPREAD = "spread"  # standard deviation of its values


@dataclass(frozen=True, slots=True)
class InputLine:
    """The mean of a figure over some requests of an interval."""

    begin_s: float
    seconds: float
    workflow: str
    plan: str
    source: str
    figure: InputFigure
    requests: int
    mean: float


def figures_of(tensor: Array) -> dict[InputFigure, float]:
    """The figures of a tensor, from at most `MOST_VALUES` of its finite values; empty if it has none."""
    flat = tensor.reshape(-1)
    values = flat[:: max(1, -(-flat.size // MOST_VALUES))].astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return {}
    return {InputFigure.MEAN: float(values.mean()), InputFigure.SPREAD: float(values.std())}


def keep_inputs(ledger: Ledger, lines: Sequence[InputLine], now_unix_s: float) -> None:
    """Add lines, and remove those of long ago."""
    table = tables.inputs
    with ledger.changing() as connection:
        if lines:
            connection.execute(insert(table), [asdict(line) for line in lines])
        connection.execute(delete(table).where(table.c.begin_s < now_unix_s - KEPT_S))


def input_lines(ledger: Ledger, plan: str, span: Span = Span()) -> list[InputLine]:
    """The lines of a plan in the order of time."""
    table = tables.inputs
    columns = [column for column in table.c if column.name != "number"]
    query = span.of(select(*columns).where(table.c.plan == plan), table).order_by(table.c.begin_s, table.c.number)
    with ledger.reading() as connection:
        rows = connection.execute(query).all()
    return [InputLine(**{**row._mapping, "figure": InputFigure(row.figure)}) for row in rows]
