"""What was served in a span of time or by one plan, beside what was predicted: page, text and JSON."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.ledger import By, Ledger, OpenedLedger, Span, cost, ledger_url
from jellybean.report import PlannedFigures, Served, ServedQuestion, Store, build_report, planned_figures, render_html
from jellybean.report.served.served import served
from tests import report_plans as plans
from tests.support.command_line import jellybean
from tests.support.made_up_run import BEGIN_S
from tests.support.two_plans_run import BOTH, CHANGE, CHANGED_S, END, PIECE_S, keep_labelled, write_two_plans

FIRST_RIGHT, SECOND_RIGHT = 30, 10  # of 40 labels each
EVERY_S = 25.0
PLANNED = {"flow": 90.0}


def moment(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A folder with two stored plans and a ledger of both, and their hashes; the answers of both have labels."""
    folder = tmp_path_factory.mktemp("served") / "project"
    store = Store.of(folder)
    documents = [plans.document(plans.digits()), plans.document(replace(plans.digits(), accuracy=92.0))]
    hashes = [store.add_plan(document) and str(document["hash"]) for document in documents]
    ledger = Ledger(ledger_url(folder), "gateway")
    write_two_plans(ledger, *hashes)
    name = plans.digits().name
    keep_labelled(ledger, name, hashes[0], BEGIN_S, [number < FIRST_RIGHT for number in range(40)], EVERY_S)
    keep_labelled(ledger, name, hashes[1], CHANGED_S, [number < SECOND_RIGHT for number in range(40)], EVERY_S)
    ledger.close()
    yield folder, hashes[0], hashes[1]


def report(folder: Path, *options: str) -> dict:
    return json.loads(jellybean("report", str(folder), "--json", *options).stdout)["served"]


@pytest.mark.slow
def test_the_served_part_of_a_plan_is_its_own(project: tuple[Path, str, str]) -> None:
    folder, first, second = project
    ledger = Ledger(ledger_url(folder))
    costs = {line.name: line for line in cost(ledger, By.PLAN)}
    ledger.close()
    for own, labels, right, paid in ((first, 40, FIRST_RIGHT, CHANGE + BOTH), (second, 40, SECOND_RIGHT, END - CHANGE)):
        found = report(folder, "--plan", own)
        assert found["plan"] == own
        assert found["usd"] == pytest.approx(costs[own].usd)
        assert (found["answered"], found["failed"]) == (costs[own].done, costs[own].failed)
        assert found["paid_s"] == pytest.approx(paid * PIECE_S)
        accuracy = found["accuracy"][plans.digits().name]
        assert (accuracy["labels"], accuracy["accuracy"]) == (labels, 100 * right / labels)
        assert sum(point["usd"] for point in found["timeline"]) == pytest.approx(found["usd"])
        assert sum(line["workers_usd"] + line["traffic_usd"] for line in found["clients"]) == pytest.approx(
            found["usd"]
        )
    assert report(folder, "--plan", second)["predicted"]["accuracy"] == {plans.digits().name: 92.0}


def test_a_span_has_what_was_served_in_it_and_which_plan_took_over(project: tuple[Path, str, str]) -> None:
    folder, _, second = project
    span = Span(BEGIN_S + 600, BEGIN_S + 1500)
    found = report(folder, "--between", moment(span.since_s), moment(span.until_s))
    ledger = Ledger(ledger_url(folder))
    assert found["usd"] == pytest.approx(sum(line.usd for line in cost(ledger, By.PLAN, span)))
    assert found["answered"] == sum(line.done or 0 for line in cost(ledger, By.CLIENT, span))
    ledger.close()
    assert (found["since_unix_s"], found["until_unix_s"]) == (span.since_s, span.until_s)
    assert found["plan_changes"] == [{"at_unix_s": CHANGED_S, "plan": second}]
    assert found["accuracy"][plans.digits().name]["labels"] == 16 + 12
    assert [point["labels"] for point in found["accuracy_over_time"][plans.digits().name]] == [12, 4, 12]
    usd_per_h = plans.digits().cost.total_usd_per_h
    assert found["predicted"]["usd"] == pytest.approx(usd_per_h * 900 / 3600)
    assert found["predicted"]["accuracy"][plans.digits().name] == pytest.approx(
        (16 * (plans.digits().accuracy or 0) + 12 * 92.0) / 28
    )
    before = report(folder, "--between", moment(BEGIN_S), moment(BEGIN_S + 600), "--plan", second)
    assert before is None


def test_text_says_predicted_beside_served_and_the_page_has_the_span(project: tuple[Path, str, str]) -> None:
    folder, _, second = project
    told = jellybean("report", str(folder), "--between", moment(BEGIN_S), moment(BEGIN_S + END * PIECE_S)).stdout
    assert re.search(r"answered .*│ +[\d,]+ │ +[\d,]+ ", told)
    assert re.search(r"accuracy by labels +│ +[\d.]+ % │ +50.00 % ", told)
    assert re.search(r"95 % interval, by 80 labels +│ +│ 39.\d\d to 60.\d\d % ", told)
    assert f"{moment(CHANGED_S).replace('T', ' ')} plan {second[:12]} took over" in told
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Accuracy by labels" in page
    assert page.count('class="interval"') == 1
    assert page.count('class="foreseen"') == 2  # of cost and accuracy


def test_errors_and_empty_spans_are_told(project: tuple[Path, str, str]) -> None:
    folder, _, _ = project
    told = jellybean("report", str(folder), "--between", "2026-01-02", "2026-01-01", status=2)
    assert "ends before it begins" in told.stderr
    told = jellybean("report", str(folder), "--between", "soon", "2026-01-01", status=2)
    assert "'soon' is no time" in told.stderr
    told = jellybean("report", str(folder), "--drift", "--between", "2d", "1d", status=2)
    assert "--drift and --between exclude each other" in told.stderr
    told = jellybean("report", str(folder), "--between", "2001-01-01", "2001-01-02")
    assert "nothing was served from 2001-01-01 to 2001-01-02; see `jellybean history" in told.stderr
    assert "Nothing was served from 2001-01-01 to 2001-01-02." in (folder / "report.html").read_text(encoding="utf-8")


def test_a_plan_that_the_store_lacks_leaves_the_prediction_open(project: tuple[Path, str, str]) -> None:
    folder, first, second = project
    planned = planned_figures(Store.of(folder), [first, second])
    assert asked(folder, planned).predicted is not None
    known = {second: planned[second]}
    assert asked(folder, known).predicted is None
    cost_curve = asked(folder, known).curves[0]
    assert cost_curve.predicted.startswith("M50.0 ")  # from the change on
    assert cost_curve.predicted.endswith("H100.0")


def asked(folder: Path, planned: dict[str, PlannedFigures]) -> Served:
    ledger = Ledger(ledger_url(folder))
    found = served(OpenedLedger(ledger), ServedQuestion(Span(), (plans.digits().name,), planned))
    ledger.close()
    assert found is not None
    return found


def test_a_year_and_a_minute_have_few_points(tmp_path: Path, project: tuple[Path, str, str]) -> None:
    folder, _, _ = project
    found = asked(folder, {})
    assert len(found.points) <= 60
    page = render_html(build_report(Store.of(folder)), found)
    assert "all plans together" in page
