"""The verdict on each worker's measured utilisation, and the causes that are known."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jellybean.report import Report, Store, build_report, render_html, to_table
from jellybean.report.comparison import ComparisonVerdict
from jellybean.report.headline import HeadlineLevel
from jellybean_solver import Plan
from tests import report_plans as plans

PLANNED = {"edge-box-1": 0.2148, "edge-box-2": 0.1656, "cloud-1": 0.3}


def _report(tmp_path: Path, plan: Plan, *, simulated: dict[str, float] | None = None, **measured: Any) -> Report:
    store = Store.of(tmp_path)
    plan_hash = store.add_plan(plans.document(plan))
    if simulated is not None:
        store.add_prediction(plan_hash, plans.prediction(plan, utilisation=simulated))
    store.add_measurement(plan_hash, plans.measurement(plan, **measured))
    return build_report(store)


def _text(report: Report) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(to_table(report))
    return console.export_text()


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (0.40, ComparisonVerdict.WITHIN), (0.41, ComparisonVerdict.HIGHER), (0.20, ComparisonVerdict.WITHIN),
        (0.19, ComparisonVerdict.LOWER), (None, ComparisonVerdict.UNKNOWN),
    ],
)  # fmt: skip
def test_a_utilisation_may_differ_by_ten_points(
    tmp_path: Path, measured: float | None, verdict: ComparisonVerdict
) -> None:
    report = _report(tmp_path, plans.digits(), utilisation=PLANNED | {"cloud-1": measured})
    found = {worker.name: worker for worker in report.workers}
    assert found["cloud-1"].verdict is verdict
    assert found["edge-box-1"].verdict is ComparisonVerdict.WITHIN
    deviates = verdict in (ComparisonVerdict.HIGHER, ComparisonVerdict.LOWER)
    assert report.headline.level is (HeadlineLevel.WARNING if deviates else HeadlineLevel.GOOD)
    words = f"Utilisation of cloud-1 {100 * (measured or 0):.0f} % measured, 30 % planned"
    assert (words in report.headline.reasons) == deviates


def test_the_simulation_is_what_a_measurement_is_compared_with(tmp_path: Path) -> None:
    simulated = PLANNED | {"cloud-1": 0.72}
    report = _report(tmp_path, plans.digits(), simulated=simulated, utilisation=PLANNED | {"cloud-1": 0.89})
    assert "Utilisation of cloud-1 89 % measured, 72 % simulated" in report.headline.reasons
    (row,) = [line for line in _text(report).splitlines() if line.split()[:2] == ["cloud-1", "cloud"]]
    assert row.split()[-7:] == ["30", "%", "72", "%", "89", "%", "higher"]


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ({"late": {"cloud-1": 0.2, "edge-box-1": 0.4}}, "20 % of its busy time it was slower than the device that it "
         "emulates"),
        ({"machine_cpu": 0.97}, "the CPUs of this machine were 97 % busy, so processes waited for each other"),
        ({"offered": 396}, "1.10 times the planned rate was offered in the window"),
        ({"offered": 360, "late": {"cloud-1": 0.01}, "machine_cpu": 0.5}, None),
    ],
    ids=["emulated device too slow", "machine busy", "more requests", "unknown"],
)  # fmt: skip
def test_known_causes_stand_beside_a_deviation(tmp_path: Path, measured: dict[str, Any], reason: str | None) -> None:
    plan = plans.digits()
    report = _report(tmp_path, plan, utilisation=PLANNED | {"cloud-1": 0.5}, **measured)
    reasons = {worker.name: worker.reasons for worker in report.workers}
    assert reasons == {name: (reason,) if name == "cloud-1" and reason else () for name in PLANNED}
    line = "cloud-1 50 % measured, 30 % planned"
    assert f"- {line}{f': {reason}' if reason else ''}" in map(str.strip, _text(report).splitlines())
    page = " ".join(render_html(report).split())
    assert "in 1 of 3 workers" in page
    assert (reason is None) or reason[1:] in page
    lower = _report(tmp_path / "lower", plan, utilisation=PLANNED | {"cloud-1": 0.1}, **measured)
    assert all(worker.reasons == () for worker in lower.workers), "causes of more work explain no less"


def test_a_worker_at_several_sites_is_late_if_one_of_its_processes_is(tmp_path: Path) -> None:
    late = {"store-1/cloud-1": 0.01, "store-2/cloud-1": 0.3}
    report = _report(tmp_path, plans.digits(), utilisation=PLANNED | {"cloud-1": 0.5}, late=late)
    assert report.workers[2].reasons[0].startswith("30 % of its busy time")


def test_a_pool_says_how_many_of_its_workers_deviate(tmp_path: Path) -> None:
    plan = plans.large()
    loads = {worker.name: worker.load for worker in plan.workers}
    busy = loads | {f"hub-{number}": loads[f"hub-{number}"] + 0.2 for number in (1, 2)}
    report = _report(tmp_path, plan, utilisation=busy)
    verdicts = {line.split()[0]: line.split()[-4:] for line in _text(report).splitlines() if " × " in line}
    assert verdicts["hub"] == ["2", "of", "9", "higher"]
    assert verdicts["t4-spot"][-1] == "within"
