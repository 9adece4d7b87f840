"""`jellybean plan` and its neighbours on the published figures, from the command line."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path

import pytest

from jellybean.cli import run
from tests.support.command_line import jellybean


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects") / "vqa"
    jellybean("init", "vqa", str(directory))
    return directory


@pytest.mark.parametrize(("sharing", "total"), [("shared", 7.0115), ("exclusive", 7.4850)])
def test_plan_is_the_known_optimum(vqa: Path, sharing: str, total: float) -> None:
    answer = json.loads(jellybean("plan", str(vqa), "--json", "--set", f"limits.sharing={sharing}").stdout)
    assert answer["status"] == "optimal"
    assert answer["cost_usd_per_h"]["total"] == pytest.approx(total, abs=5e-5)
    cost = answer["cost_usd_per_h"]
    assert cost["compute"] + cost["network"] == pytest.approx(cost["total"])
    assert answer["certificate"]["gap"] == pytest.approx(0, abs=1e-9)
    assert answer["certificate"]["objective"] == pytest.approx(total, abs=5e-5)
    assert answer["accuracy"] == 56.59
    assert answer["selection"]["image_features"] == "resnet18"
    assert answer["solve_s"] > 0
    served = {}
    for place in answer["placements"]:
        served[place["operator"]] = served.get(place["operator"], 0) + place["rate_per_s"]
        assert 0 < place["load"] <= 1 + 1e-9
        assert place["count"] >= 1
    assert served == {name: pytest.approx(40) for name in ("image_features", "speech_to_text", "answer")}


def test_infeasible_is_exit_3_and_names_the_nearest(vqa: Path) -> None:
    answer = json.loads(jellybean("plan", str(vqa), "--json", "--set", "slo.accuracy=58.9", status=3).stdout)
    assert answer["status"] == "infeasible"
    assert answer["nearest"]["accuracy"] == pytest.approx(58.33)
    text = jellybean("plan", str(vqa), "--set", "slo.accuracy=58.9", status=3).stderr
    assert "58.33" in text


@pytest.mark.slow
def test_a_p99_that_the_cheapest_plan_breaks_is_kept_by_a_dearer_one(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    jellybean("init", "digits", str(directory))
    cheapest = json.loads(jellybean("plan", str(directory), "--json").stdout)
    answer = json.loads(jellybean("plan", str(directory), "--json", "--set", "slo.latency_p99=300ms").stdout)
    proof = answer["certificate"]
    assert proof["objective"] > cheapest["certificate"]["objective"]
    assert cheapest["certificate"]["bound"] <= proof["bound"] * (1 + 1e-9) <= proof["objective"] * (1 + 2e-9)


@pytest.mark.nightly
def test_a_p99_that_no_plan_keeps_names_the_nearest(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    jellybean("init", "digits", str(directory))
    answer = json.loads(jellybean("plan", str(directory), "--json", "--set", "slo.latency_p99=50ms", status=3).stdout)
    assert answer["error"]["kind"] == "infeasible"
    assert "above the SLO of 50.0 ms" in answer["reasons"][0]
    nearest_s = answer["nearest"]["latency_p99_s"]
    assert f"slo.latency_p99={nearest_s * 1e3:.4g} ms" in answer["reasons"][-1]
    jellybean("plan", str(directory), "--set", f"slo.latency_p99={nearest_s} s")


@pytest.mark.slow
def test_a_plan_that_stays_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "vqa"
    jellybean("init", "vqa", str(directory))
    infeasible = ("--set", "slo.accuracy=58.9")
    assert "plan.json" not in jellybean("plan", str(directory), *infeasible, status=3).stderr
    jellybean("plan", str(directory))
    written = (directory / "plan.json").read_bytes()
    for command in ("plan", "simulate"):
        text = jellybean(command, str(directory), *infeasible, status=3).stderr
        assert f"{directory / 'plan.json'} still has the plan of 20" in text
        assert "does not match these documents" in text
    answer = json.loads(jellybean("plan", str(directory), "--json", *infeasible, status=3).stdout)
    assert answer["error"]["kind"] == "infeasible"
    assert "still has" in answer["kept_plan"]
    assert (directory / "plan.json").read_bytes() == written


@pytest.mark.slow
def test_time_that_ends_without_a_plan_is_an_error_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "vqa"
    jellybean("init", "vqa", str(directory))
    jellybean("plan", str(directory))
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))  # so that no machine is quick enough
    assert run(["plan", str(directory), "--json", "--time-limit", "0.5"]) == 1
    monkeypatch.undo()
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "time_limit"
    assert "allow more time" in error["message"]
    assert "still has the plan of" in error["message"]


def test_bad_input_is_exit_2_with_file_and_line(vqa: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    jellybean("init", "vqa", str(broken))
    workflow = broken / "workflow.yaml"
    lines = workflow.read_text(encoding="utf-8").splitlines()
    row = next(index for index, line in enumerate(lines) if "accuracy" in line)
    lines[row] = lines[row].replace("accuracy", "acuracy")
    workflow.write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = jellybean("plan", str(broken), status=2).stderr
    assert f"workflow.yaml:{row + 1}:" in text
    assert "accuracy" in text
    answer = json.loads(jellybean("validate", str(broken), "--json", status=2).stdout)
    assert answer["valid"] is False


def test_unknown_override_is_bad_input(vqa: Path) -> None:
    assert "slo.acuracy" in jellybean("plan", str(vqa), "--set", "slo.acuracy=57", status=2).stderr


def test_unknown_command_and_option_are_bad_input() -> None:
    jellybean("plann", "x", status=2)
    jellybean("plan", ".", "--nonsense", status=2)


def test_a_missing_plan_file_is_bad_input(vqa: Path) -> None:
    assert "no.json: file not found" in jellybean("plan", str(vqa), "--from", "no.json", status=2).stderr


def test_rates_are_scaled_for_the_plan_and_for_the_next_commands(vqa: Path) -> None:
    answer = jellybean("plan", str(vqa), "--rate-scale", "0.5")
    assert "--set sources.image.rate=20/s --set sources.speech.rate=20/s" in answer.stderr
    plan = json.loads((vqa / "plan.json").read_text(encoding="utf-8"))
    assert [source["rate_per_s"] for source in plan["sources"]] == [20, 20]
    jellybean("plan", str(vqa), "--rate-scale", "2", "--check", "trace.csv", status=2)


def test_missing_project_is_bad_input(tmp_path: Path) -> None:
    assert "folder not found" in jellybean("plan", str(tmp_path / "nowhere"), status=2).stderr


def test_init_refuses_a_folder_with_content(vqa: Path) -> None:
    assert "not empty" in jellybean("init", "vqa", str(vqa), status=1).stderr


@pytest.mark.slow
def test_simulate_predicts_the_plans_own_throughput(vqa: Path) -> None:
    record = json.loads(
        jellybean(
            "simulate", str(vqa), "--json", "--set", "sources.image.rate=10/s", "--set", "sources.speech.rate=10/s"
        ).stdout
    )
    assert record["throughput_per_s"] == pytest.approx(10, rel=0.1)
    assert 0 < record["latency_p50_s"] <= record["latency_p99_s"]


def test_report_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    jellybean("init", "digits", str(directory))
    assert "jellybean plan" in jellybean("report", str(directory), status=1).stderr
    jellybean("plan", str(directory))
    jellybean("report", str(directory))
    page = (directory / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert "jellybean bench" in text
    assert "jellybean simulate" in text


@pytest.mark.nightly
def test_the_report_is_about_the_plan_that_was_made_anew(tmp_path: Path) -> None:
    directory = str(tmp_path / "digits")
    jellybean("init", "digits", directory)
    jellybean("plan", directory)
    first = json.loads(jellybean("report", directory, "--json").stdout)
    workflow = tmp_path / "digits" / "workflow.yaml"
    written = workflow.read_text(encoding="utf-8")
    workflow.write_text(written.replace("rate: 10/s", "rate: 15/s"), encoding="utf-8")
    jellybean("plan", directory)
    assert json.loads(jellybean("report", directory, "--json").stdout)["plan_hash"] != first["plan_hash"]
    workflow.write_text(written, encoding="utf-8")
    assert "planned again" in jellybean("simulate", directory).stderr
    again = json.loads(jellybean("report", directory, "--json").stdout)
    assert again["plan_hash"] == first["plan_hash"]
    assert again["baselines"], "what it was compared to is not forgotten"


def test_schema_prints_every_document() -> None:
    schemas = json.loads(jellybean("schema").stdout)
    assert set(schemas) == {"workflow", "infrastructure", "profiles", "training"}


def test_commands_without_a_running_plan_say_what_to_do(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    jellybean("init", "digits", str(directory))
    sample = f"strip={directory / 'samples' / 'strip.png'}"
    assert "jellybean up" in jellybean("infer", str(directory), "--input", sample, status=1).stderr
    assert "no.png" in jellybean("infer", str(directory), "--input", "strip=no.png", status=2).stderr
    assert "SOURCE=FILE" in jellybean("infer", str(directory), "--input", "no.png", status=2).stderr
    assert "nothing is up" in jellybean("down", str(directory), status=1).stderr


def test_a_plan_without_models_cannot_be_served(vqa: Path) -> None:
    assert "no model file" in jellybean("up", str(vqa), "--detach", status=1).stderr
