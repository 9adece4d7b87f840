"""Intervals that are alone in their five minutes become five minutes without their lines being written anew."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select, text

from jellybean.ledger import By, Ledger, compact, cost, tables
from tests.support.made_up_run import BEGIN_S, Serving

HOUR_S = 3_600.0


def lengths(ledger: Ledger) -> list[str]:
    columns = tables.intervals.c
    with ledger.reading() as connection:
        return list(connection.execute(select(columns.length).order_by(columns.begin_s)).scalars())


def line_rows(ledger: Ledger) -> list[int]:
    with ledger.reading() as connection:
        return list(connection.execute(text("SELECT rowid FROM ledger_work ORDER BY rowid")).scalars())


def test_lone_intervals_are_renamed_and_added_up_later(tmp_path: Path) -> None:
    ledger, serving = Ledger(str(tmp_path / "ledger.db"), "gateway"), Serving()
    for number in range(13):
        ledger.write(serving.read(number * 300.0))
    before, rows = cost(ledger, By.OPERATOR), line_rows(ledger)
    assert compact(ledger, BEGIN_S + 2 * HOUR_S) == 0
    assert lengths(ledger) == 12 * [tables.MINUTES]
    assert line_rows(ledger) == rows
    assert compact(ledger, BEGIN_S + 72 * HOUR_S) == 11
    assert lengths(ledger) == [tables.HOUR]
    assert [(line.name, round(line.usd, 9)) for line in cost(ledger, By.OPERATOR)] == [
        (line.name, round(line.usd, 9)) for line in before
    ]
    ledger.close()
