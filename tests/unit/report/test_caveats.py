"""What limits a measurement travels with it: record, store, report, JSON and page."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jellybean.bench import LATE, BenchResult
from jellybean.bench.result import Counts, verdict_of
from jellybean.bench.saturation import saturation_result
from jellybean.cli.console import collected_warnings, warn
from jellybean.cli.serving.measure import bench_table
from jellybean.report import Store, build_report, render_html, to_table
from tests import report_plans as plans

BUSY = "this machine was too slow or too busy to emulate the fleet: 20% of the time that edge-box-1 was busy"
CALM = BenchResult(
    plan="ab" * 32,
    workflow="digits",
    seed=0,
    rate_per_s=12.0,
    duration_s=30.0,
    offered=360,
    completed=360,
    answered_in_time=360,
    failed=0,
    throughput_per_s=12.0,
    sustained=True,
    verdict="kept up",
    at=1.0,
)


def test_a_result_records_what_limits_it() -> None:
    assert CALM.to_dict()["caveats"] == []
    assert replace(CALM, late={"edge-box-1": LATE}).caveats == ()
    (joined,) = replace(CALM, joined=True).caveats
    assert "boxes that joined do not" in joined
    busy = replace(CALM, late={"edge-box-1": 0.2, "cloud-1": 0.1}, deaths=("cloud-1 died and was started again",))
    death, late = busy.to_dict()["caveats"]
    assert death == "cloud-1 died and was started again"
    assert late.startswith(BUSY)
    assert json.loads(json.dumps(busy.to_dict()))["caveats"] == [death, late]


def test_the_numbers_of_a_measurement_add_up_for_its_reader() -> None:
    """Answers to the warm-up are told apart, and what is too late for the verdict from what is after the window."""
    counted = replace(CALM, duration_s=10.0, offered=2000, completed=2000, throughput_per_s=173.4, warmup_s=2.0)
    output = io.StringIO()
    shown = replace(counted, answered_in_window=1734, answered_of_warmup=96, answered_later=362)
    Console(file=output, width=200).print(bench_table(shown))
    table = output.getvalue()
    assert "173.40/s: 1734 answered within the 10 s (1638 sent in it, 96 in the warm-up), 362 later" in table
    assert shown.answered_in_window - shown.answered_of_warmup + shown.answered_later == shown.completed
    verdict = verdict_of(200.0, Counts(2000, 2000, 1710, 0, is_sustained=False, grace_s=0.6), {})
    text = "1710 of 2000 requests answered in time at 200/s, 290 later than 600 ms after the window, 0 failed"
    assert verdict == f"overload: {text}"


def test_a_saturation_is_limited_by_any_of_its_probes() -> None:
    fast = replace(CALM, rate_per_s=20.0, late={"edge-box-1": 0.01})
    failed = replace(CALM, rate_per_s=24.0, sustained=False, late={"edge-box-1": 0.2, "cloud-1": 0.02})
    last = replace(CALM, rate_per_s=22.0, sustained=False, deaths=("cloud-1 is gone",))
    found = saturation_result(20.5, 12.0, [CALM, fast, failed, last])
    assert (found.rate_per_s, found.highest_rate_per_s, found.sustained) == (20.0, 20.5, True)
    assert found.late == {"edge-box-1": 0.2, "cloud-1": 0.02}
    death, late = found.caveats
    assert death == "cloud-1 is gone"
    assert late.startswith(BUSY)


@pytest.mark.parametrize(
    "stored",
    [{"caveats": [f"{BUSY}, its device would have been done"]}, {"late": {"edge-box-1": 0.2}}],
    ids=["with caveats", "stored before caveats were"],
)
def test_the_report_shows_what_limits_its_measurements(tmp_path: Path, stored: dict[str, Any]) -> None:
    store = Store.of(tmp_path / "digits")
    plan = plans.digits()
    plan_hash = store.add_plan(plans.document(plan))
    store.add_measurement(plan_hash, plans.measurement(plan))
    assert build_report(store).caveats == ()
    store.add_measurement(plan_hash, plans.measurement(plan, **stored))
    store.add_measurement(plan_hash, {"highest_rate_per_s": 21.0, "caveats": ["cloud-1 is gone"]})
    report = build_report(store)
    bench, saturate = report.caveats
    assert bench.startswith(f"bench: {BUSY}")
    assert saturate == "bench --saturate: cloud-1 is gone"
    document = report.to_json()
    assert document["caveats"] == [bench, saturate]
    assert [len(run["caveats"]) for run in document["runs"]] == [0, 1, 1]
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(to_table(report))
    text = console.export_text()
    html = render_html(report)
    for caveat in (bench, saturate):
        assert f"caveat: {caveat}" in text
        assert f"<li>{caveat}</li>" in html
    assert html.count(BUSY) == 2  # at the top, and below the list of measurements

    store.add_measurement(plan_hash, plans.measurement(plan))
    assert build_report(store).caveats == (saturate,)  # the newest bench has none


def test_the_report_counts_outcomes_apart(tmp_path: Path) -> None:
    store = Store.of(tmp_path / "digits")
    plan = plans.digits()
    plan_hash = store.add_plan(plans.document(plan))
    outcomes = {"answered": 340, "cancelled": 3, "late": 4, "shed": 6, "client_error": 0, "server_error": 7}
    store.add_measurement(plan_hash, plans.measurement(plan, completed=340, errors=17, outcomes=outcomes))
    report = build_report(store)
    words = "3 cancelled, 4 late, 6 shed, 7 server errors"
    assert f"20 of 360 requests had no answer: {words}" in report.headline.reasons
    assert report.to_json()["runs"][0]["outcomes"] == outcomes
    assert render_html(report).count(words) == 2
    store.add_measurement(plan_hash, plans.measurement(plan, errors=17))  # stored before outcomes were
    assert "17 of 360 requests failed" in build_report(store).headline.reasons


def test_warnings_are_collected_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    with collected_warnings() as outer:
        for text in ("a is slow", "b is gone", "a is slow"):
            warn(text)
    warn("later")
    assert outer == ["a is slow", "b is gone"]
    assert capsys.readouterr().err.splitlines() == ["a is slow", "b is gone", "a is slow", "later"]
