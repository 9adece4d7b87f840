"""Workflows that are served together: each has a gateway that writes intervals of its own, under one plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.ledger import By, Ledger, RequestKey, Span, compact, cost, served_seconds, timeline
from jellybean.ledger.interval_rows import interval_rows
from tests.support.made_up_run import BEGIN_S, DAY_S, PLAN, WORKERS, Serving

PIECES, PIECE_S = 36, 100.0
USD_PER_H = sum(worker.usd_per_h for worker in WORKERS)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """An hour in which two workflows were served, each of which pays its own workers."""
    url = str(tmp_path / "ledger.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres")())
    for workflow in ("flow", "notes"):
        gateway, serving = Ledger(url, workflow), Serving()
        serving.requests = {RequestKey(workflow, key.client): row for key, row in serving.requests.items()}
        for number in range(PIECES + 1):
            reading = serving.read(number * PIECE_S)
            gateway.write(replace(reading, plans=(replace(PLAN, workflow=workflow),)))
        gateway.close()
    found = Ledger(url)
    yield found
    found.close()


@pytest.mark.parametrize("is_compact", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize("span", [Span(), Span(plan=PLAN.hash)], ids=["all plans", "one plan"])
def test_their_time_is_counted_once_and_their_costs_add_up(ledger: Ledger, span: Span, is_compact: bool) -> None:
    if is_compact:
        compact(ledger, BEGIN_S + 3 * DAY_S)
    assert served_seconds(ledger, span) == {PLAN.hash: pytest.approx(PIECES * PIECE_S)}
    (point,) = timeline(ledger, 3_600, span)
    workers_usd = sum(line.workers_usd for line in cost(ledger, By.WORKFLOW, span))
    assert point.paid_s == pytest.approx(PIECES * PIECE_S)
    assert workers_usd == pytest.approx(2 * USD_PER_H)
    assert point.usd == pytest.approx(sum(line.usd for line in cost(ledger, By.WORKFLOW, span)))
    lengths = {(row.length, row.paid_s) for row in interval_rows(ledger)}
    assert lengths == ({("hour", PIECES * PIECE_S)} if is_compact else {("live", PIECE_S)})
    assert len(interval_rows(ledger)) == (2 if is_compact else 2 * PIECES)
