"""Two workflows on one fleet from the command line: the example's own figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jellybean.cli import run
from jellybean.planning import PlanFile
from jellybean.planning.simulation import simulate_plan
from jellybean.report import record_measurement, record_prediction

COUNTING = """\
kind: Workflow
name: {name}
sources: {{camera: {{tier: edge, rate: {rate}/s, message: 50 KiB}}}}
operators: {{count: {{inputs: [camera], variants: [small]}}}}
"""
COUNTED = """\
kind: Profiles
operators: {count: {small: {latency: {box: {mean: 50 ms, p50: 48 ms, p90: 60 ms}}}}}
"""
FLEET = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 4, price: 0.05 USD/h}}
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects") / "two"
    assert run(["init", "two-workflows", str(directory)]) == 0
    return directory


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert run(list(arguments)) == status
    return capsys.readouterr()


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    return json.loads(printed(capsys, *arguments, "--json", status=status)[0])


def test_both_are_planned_together_for_less_than_apart(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed(capsys, "plan", str(two))[0].split())  # lines are as wide as the terminal
    assert "two: 7.94 USD/h (compute 6.05, network 1.89), proven optimal" in text
    assert "saves 21 % against planning one workflow after the other (10.10)" in text
    assert "cheapest variants" in text
    assert "notes: accuracy 91.4 is below the target of 95; vqa: accuracy 54.02 is below the target of 56" in text
    found = answer(capsys, "plan", str(two))
    assert found["accuracy"] is None
    assert {name: own["accuracy"] for name, own in found["workflows"].items()} == {"notes": 96.1, "vqa": 56.59}
    parts = [own["cost_usd_per_h"]["total"] for own in found["workflows"].values()]
    assert sum(parts) == pytest.approx(found["cost_usd_per_h"]["total"])
    assert found["workflows"]["vqa"]["selection"] == {
        "image_features": "resnet18",
        "speech_to_text": "wav2vec2-large",
        "answer": "default",
    }
    served: dict[str, float] = {}
    for place in found["placements"]:
        served[place["operator"]] = served.get(place["operator"], 0.0) + place["rate_per_s"]
    assert served == {
        "notes/speech_to_text": pytest.approx(6),
        "vqa/image_features": pytest.approx(50),
        "vqa/speech_to_text": pytest.approx(50),
        "vqa/answer": pytest.approx(50),
    }


def test_each_is_simulated_at_its_own_rate(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(two), "--set", "limits.utilisation=0.7"]) == 0
    result = simulate_plan(PlanFile(two).load().plan, duration_s=60.0)
    vqa, notes = result.workflows["vqa"], result.workflows["notes"]
    assert vqa.throughput_per_s == pytest.approx(50, rel=0.05)
    assert notes.throughput_per_s == pytest.approx(6, rel=0.15)
    assert vqa.offered + notes.offered == result.offered
    assert notes.latency_p50_s < vqa.latency_p50_s  # one operator, not two after each other
    least_s, most_s = sorted((notes.latency_p99_s, vqa.latency_p99_s))
    assert least_s <= result.latency_p99_s <= most_s


def test_a_target_too_high_is_told_with_its_workflow(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = printed(capsys, "plan", str(two), "--set", "vqa.slo.accuracy=59", status=3)
    assert "vqa: accuracy: the target is 59, but the best selection reaches 58.33" in text
    assert "all accuracy targets 0.67 points lower are feasible" in " ".join(text.split())


def test_a_budget_is_one_of_both(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "plan", str(two), "--set", "limits.budget=7 USD/h", status=3)
    assert "more than the 7.00 USD/h allowed" in found["breaches"][0]
    assert found["nearest"]["accuracy"] is None


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Two small workflows, quick to plan."""
    for name, rate in (("doors", 6), ("tills", 3)):
        folder = tmp_path / "shop" / "workflows" / name
        folder.mkdir(parents=True)
        (folder / "workflow.yaml").write_text(COUNTING.format(name=name, rate=rate), encoding="utf-8")
        (folder / "profiles.yaml").write_text(COUNTED, encoding="utf-8")
    (tmp_path / "shop" / "infrastructure.yaml").write_text(FLEET, encoding="utf-8")
    return str(tmp_path / "shop")


@pytest.mark.slow
def test_a_trace_that_breaks_one_of_them_is_told_with_its_name(
    shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text(
        "time_s,source,rate_per_s\n0,doors/camera,6\n30,doors/camera,30\n60,doors/camera,1\n", encoding="utf-8"
    )
    found = answer(capsys, "plan", shop, "--check", str(trace), "--set", "tills.slo.latency_p99=9 s", status=6)
    assert {item["text"].partition(":")[0] for item in found["breaks"]} <= {"doors", "tills"}
    assert found["breaks"][0]["target"] == "rate"
    assert found["breaks"][0]["start_s"] == 30
    first = found["intervals"][0]["workflows"]
    assert first["doors"]["offered"] == pytest.approx(180, rel=0.3)
    assert first["tills"]["offered"] == pytest.approx(90, rel=0.4)
    assert first["doors"]["missed"] == first["tills"]["late"] == 0
    assert "doors.sources.camera.rate=" in (found["hint"]["command"] or " ".join(found["hint"]["reasons"]))


def test_explain_names_each_and_its_lines(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", shop, "--set", "limits.utilisation=1", "--why-not", "tills/count@box")
    limits = {(limit["kind"], *limit["subjects"]): limit for limit in found["limits"]}
    (place,) = limits["rate", "doors/camera"]["places"]
    assert place["path"] == "doors.sources.camera.rate"
    assert (place["file"], place["line"]) == (f"{shop}/workflows/doors/workflow.yaml", 3)
    assert found["why_not"][0]["verdict"] == "used"
    infeasible = answer(capsys, "explain", shop, "--set", "tills.sources.camera.rate=90/s", status=3)
    settings = [text for item in infeasible["conflict"]["requirements"] for text in item["settings"]]
    assert any(text.startswith("tills.sources.camera.rate=") for text in settings)


def test_the_report_has_each_with_its_targets(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--set", "doors.slo.latency_p99=9 s")
    assert run(["plan", shop, *options]) == 0
    plan = PlanFile(Path(shop)).load().plan
    workflows = {
        name: {"throughput_per_s": rate, "latency_p50_s": 0.1, "latency_p99_s": p99_s}
        for name, rate, p99_s in (("doors", 6.0, 9.5), ("tills", 3.0, 0.4))
    }
    record_prediction(Path(shop), plan, {"throughput_per_s": 9.0, "latency_p99_s": 9.2, "workflows": workflows})
    text = " ".join(printed(capsys, "report", shop)[0].split())
    assert "Misses its targets: doors: Latency p99 9.50 s predicted, target 9.00 s" in text
    assert re.search(
        r"doors \S+ – 6\.00/s 100 ms 9\.50 s .*9\.00 s broken.* tills \S+ – 3\.00/s 100 ms 400 ms", text
    ), text
    page = (Path(shop) / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="workflows">Workflows</h2>' in page
    found = answer(capsys, "report", shop)
    assert [own["name"] for own in found["workflows"]] == ["doors", "tills"]
    assert found["workflows"][0]["slos"][0]["predicted_state"] == "broken"


def test_the_report_adds_up_what_was_measured_together(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", shop]) == 0
    document = json.loads((Path(shop) / "plan.json").read_text(encoding="utf-8"))
    worker = PlanFile(Path(shop)).load().plan.workers[0]

    def measure(rates: Mapping[str, float], busy: float, scales: Mapping[str, float], late: float = 0.0) -> None:
        for name, rate_per_s in rates.items():
            figures = {"throughput_per_s": rate_per_s, "cost_usd_per_h": 0.01, "utilisation": {worker.name: busy}}
            own = {"workflow": name, "rate_per_s": rate_per_s, "beside": scales, "late": {worker.name: late}}
            record_measurement(Path(shop), document, {**figures, **own})

    measure({"doors": 6.0, "tills": 3.0}, worker.load / 2, {"doors": 1.0, "tills": 1.0}, late=0.2)
    measure({"doors": 6.0}, 0.01, {"doors": 1.0})  # alone: it says nothing of the worker that both use
    measure({"doors": 60.0, "tills": 3.0}, 0.99, {"doors": 10.0, "tills": 1.0})  # tills beside a flood
    found = answer(capsys, "report", shop)
    (used, *_) = found["workers"]
    assert (used["name"], used["verdict"]) == (worker.name, "within")
    assert used["measured"] == pytest.approx(worker.load)
    measured = {one["metric"]: one["measured"] for one in found["comparisons"]}
    assert (measured["throughput_per_s"], measured["cost_usd_per_h"]) == (9.0, 0.02)
    assert [text.partition(":")[0] for text in found["caveats"]] == ["bench of tills", "bench of doors"]
    history = answer(capsys, "history", shop)
    assert [one["workflow"] for one in history if one["what"] == "measured"] == ["doors", "tills", "doors"]
    assert [one["workflow"] for one in history if one["what"] == "measured at another rate"] == ["doors", "tills"]
    assert all(one["text"].startswith(f"{one['workflow']}: ") for one in history if one["workflow"])


@pytest.mark.slow
def test_a_p99_of_one_of_them_is_kept_or_told_with_its_name(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    cheapest = answer(capsys, "plan", shop)["cost_usd_per_h"]["total"]
    kept = answer(capsys, "plan", shop, "--set", "doors.slo.latency_p99=150 ms")
    assert kept["workflows"]["doors"]["slo"]["latency_p99_s"] == 0.15
    assert kept["cost_usd_per_h"]["total"] > cheapest
    _, text = printed(capsys, "plan", shop, "--set", "doors.slo.latency_p99=20 ms", status=3)
    text = " ".join(text.split())
    assert "doors: p99 latency would be" in text
    assert "no plan keeps p99 latencies of 20.0 ms for doors even with zero queueing delay" in text
    assert "nearest found: doors.slo.latency_p99=" in text


def test_a_plan_without_model_files_is_not_served(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = printed(capsys, "up", str(two), status=1)
    assert "notes can be planned and simulated, but not served: no model file" in " ".join(text.split())


def test_going_on_from_a_running_plan_of_both(shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = answer(capsys, "plan", shop)
    (tmp_path / "before.json").write_bytes((Path(shop) / "plan.json").read_bytes())
    busier = ("--set", "doors.sources.camera.rate=40/s")
    after = answer(capsys, "plan", shop, "--from", str(tmp_path / "before.json"), *busier)
    assert after["replan"]["verdict"] == "replace"
    assert after["cost_usd_per_h"]["total"] > before["cost_usd_per_h"]["total"]
    assert set(after["workflows"]) == {"doors", "tills"}


def test_one_of_them_is_a_project_of_its_own(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = answer(capsys, "plan", str(two / "workflows" / "notes"))
    assert "workflows" not in alone
    assert alone["selection"] == {"speech_to_text": "wav2vec2-large"}
    text = " ".join(printed(capsys, "validate", str(two))[0].split())
    assert "valid: notes, 1 operator, 1 source; vqa, 3 operators, 2 sources; 9 workers in 9 pools" in text
