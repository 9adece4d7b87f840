"""Questions about one plan of a ledger: also what it cost while another one served in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jellybean.ledger import (
    By,
    LabelledBy,
    Ledger,
    Span,
    accuracy_timeline,
    compact,
    cost,
    served,
    served_accuracy,
    served_between,
    served_seconds,
    timeline,
    wilson,
)
from tests.support.made_up_run import BEGIN_S, WORKERS
from tests.support.two_plans_run import BOTH, CHANGE, CHANGED_S, END, PIECE_S, keep_labelled, write_two_plans

FIRST, SECOND = Span(plan="a" * 64), Span(plan="b" * 64)
PAID_S = {FIRST: (CHANGE + BOTH) * PIECE_S, SECOND: (END - CHANGE) * PIECE_S}
USD_PER_S = sum(worker.usd_per_h for worker in WORKERS) / 3600


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    at_file = request.param == "sqlite"
    found = Ledger(str(tmp_path / "ledger.db") if at_file else request.getfixturevalue("postgres")(), "gateway")
    write_two_plans(found, FIRST.plan, SECOND.plan)
    yield found
    found.close()


@pytest.mark.parametrize("is_compact", [False, True], ids=["as written", "compacted"])
def test_a_plan_costs_what_its_workers_and_bytes_do_until_they_end(ledger: Ledger, is_compact: bool) -> None:
    if is_compact:
        compact(ledger, BEGIN_S + 7 * 86_400)
    by_plan = {line.name: line for line in cost(ledger, By.PLAN)}
    for span in (FIRST, SECOND):
        own = by_plan[span.plan]
        assert own.workers_usd == pytest.approx(PAID_S[span] * USD_PER_S)
        for by in By:
            lines = cost(ledger, by, span)
            assert sum(line.usd for line in lines) == pytest.approx(own.usd), by
        points = timeline(ledger, 300, span)
        assert sum(point.usd for point in points) == pytest.approx(own.usd)
        assert sum(point.paid_s for point in points) == pytest.approx(PAID_S[span])
        assert sum(point.answered for point in points) == own.done
        assert sum(line.ends["answered"] for line in served(ledger, By.DAY, span)) == own.done
        assert sum(line.done or 0 for line in cost(ledger, By.CLIENT, span)) == own.done
    assert served_seconds(ledger, Span()) == pytest.approx(
        {FIRST.plan: CHANGE * PIECE_S, SECOND.plan: (END - CHANGE) * PIECE_S}
    )
    assert served_between(ledger, FIRST) == (BEGIN_S, CHANGED_S)
    assert served_between(ledger, Span(plan="c" * 64)) is None


def test_a_client_pays_for_the_replaced_plan_by_the_requests_that_it_sent_then(ledger: Ledger) -> None:
    """In each interval, clients share each plan's cost as they share that of both."""
    both = Span(CHANGED_S, CHANGED_S + BOTH * PIECE_S)
    shares = {line.name: line.usd for line in cost(ledger, By.CLIENT, both)}
    parts = [cost(ledger, By.CLIENT, Span(both.since_s, both.until_s, plan=span.plan)) for span in (FIRST, SECOND)]
    together = {
        line.name: sum(own.usd for lines in parts for own in lines if own.name == line.name) for line in parts[1]
    }
    assert together == pytest.approx(shares)
    assert [line.done for line in parts[0]] == [0, 0]


def test_accuracy_over_time_is_that_of_the_labels_of_each_piece(ledger: Ledger) -> None:
    keep_labelled(ledger, "flow", FIRST.plan, BEGIN_S, [True, True, False, True], 10.0)
    keep_labelled(ledger, "flow", SECOND.plan, BEGIN_S + 300, [False, True], 10.0)
    keep_labelled(ledger, "another", SECOND.plan, BEGIN_S + 300, [True], 10.0)
    first, second = accuracy_timeline(ledger, "flow", 300)
    low, high = wilson(0.75, 4)
    assert (first.begin_s, first.accuracy.labels, first.accuracy.accuracy) == (BEGIN_S, 4, 75.0)
    assert (first.accuracy.low, first.accuracy.high) == pytest.approx((100 * low, 100 * high))
    assert (second.begin_s, second.accuracy.labels, second.accuracy.accuracy) == (BEGIN_S + 300, 2, 50.0)
    assert accuracy_timeline(ledger, "flow", 300, SECOND) == (second,)
    assert accuracy_timeline(ledger, "flow", 300, Span(until_s=BEGIN_S + 300)) == (first,)
    (of_second,) = served_accuracy(ledger, "flow", LabelledBy.ALL, SECOND)
    assert of_second.labels == 2
