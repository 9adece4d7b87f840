"""What a project has served, from its ledger, on the report's page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.ledger import By, Ledger, OpenedLedger, Span, cost
from jellybean.report import ServedQuestion, Store, build_report, last_days, render_html
from jellybean.report.served.served import DAYS, MOST_LINES, served
from tests import report_plans as plans
from tests.support.made_up_run import BEGIN_S, DAY_S, PLAN, Serving

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "gateway")
    yield found
    found.close()


def serve(ledger: Ledger, pieces: int, seconds: float, serving: Serving | None = None) -> float:
    """Write so many intervals, the later half under another plan; Unix time of the end."""
    serving = serving or Serving()
    for number in range(pieces + 1):
        reading = serving.read(number * seconds)
        if number > pieces // 2:
            reading = replace(reading, plans=(replace(PLAN, hash="p2"),), serving="p2")
        ledger.write(reading)
    return BEGIN_S + pieces * seconds


def test_the_page_shows_cost_requests_and_where_another_plan_took_over(tmp_path: Path, ledger: Ledger) -> None:
    now_s = serve(ledger, 40, 60.0)
    found = served(OpenedLedger(ledger), ServedQuestion(last_days(now_s)))
    assert found is not None
    assert found.usd == pytest.approx(sum(line.usd for line in cost(ledger, By.OPERATOR)))
    assert found.answered == sum(line.done or 0 for line in cost(ledger, By.CLIENT))
    assert [curve.label for curve in found.curves] == ["USD per hour", "Answered per second", "Latency p99", "Failed"]
    assert found.plans == 1
    assert found.curves[0].marks == (pytest.approx(52.5, abs=0.1),)
    page = page_of(tmp_path, found)
    assert 'id="served"' in page
    assert page.count('class="change"') == len(found.curves) + 1  # and in the legend
    assert "ann" in page
    assert "another plan took over" in page


def page_of(tmp_path: Path, found) -> str:
    store = Store(tmp_path / ".jellybean" / "report.db", clock=lambda: 1.0)
    store.add_plan(plans.document(plans.digits()))
    return render_html(build_report(store), found)


def test_only_the_last_days_count(ledger: Ledger) -> None:
    assert served(OpenedLedger(ledger), ServedQuestion(last_days(BEGIN_S))) is None
    serve(ledger, 20, DAY_S)
    now_s = BEGIN_S + 20 * DAY_S
    found = served(OpenedLedger(ledger), ServedQuestion(last_days(now_s)))
    assert found is not None
    assert found.usd == pytest.approx(sum(line.usd for line in cost(ledger, By.DAY, Span(now_s - DAYS * DAY_S))))


def test_many_clients_are_added_up_and_their_names_are_no_markup(tmp_path: Path, ledger: Ledger) -> None:
    serving = Serving()
    keys = list(serving.requests)
    for number in range(20):
        serving.requests[replace(keys[0], client=f"{HOSTILE}{number}")] = [0] * len(serving.requests[keys[0]])
    found = served(OpenedLedger(ledger), ServedQuestion(last_days(serve(ledger, 4, 10.0, serving))))
    assert found is not None
    assert len(found.clients) == MOST_LINES
    assert found.clients[-1].name == "15 others"
    assert sum(line.usd for line in found.clients) == pytest.approx(found.usd)
    assert HOSTILE not in page_of(tmp_path, found)
