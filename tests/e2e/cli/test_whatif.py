"""`jellybean plan --check` and `jellybean diff` on the examples, from the command line."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import jellybean

HEADER = "time_s,source,rate_per_s\n"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    directory = tmp_path / "digits"
    jellybean("init", "digits", str(directory))
    return directory


@pytest.fixture
def vqa(tmp_path: Path) -> Path:
    directory = tmp_path / "vqa"
    jellybean("init", "vqa", str(directory))
    return directory


def trace(directory: Path, *rates: float, source: str = "strip") -> str:
    path = directory / "trace.csv"
    path.write_text(
        HEADER + "".join(f"{60 * index},{source},{rate:g}\n" for index, rate in enumerate(rates)), encoding="utf-8"
    )
    return str(path)


def test_a_calm_trace_holds(digits: Path) -> None:
    answer = json.loads(jellybean("plan", str(digits), "--check", trace(digits, 1, 3), "--json").stdout)
    assert answer["verdict"] == "holds"
    assert answer["breaks"] == []
    assert answer["hint"] is None
    assert [interval["rates_per_s"] for interval in answer["intervals"]] == [{"strip": 1}, {"strip": 3}]
    assert answer["simulated_share"] == 1


@pytest.mark.slow
def test_the_plan_that_is_there_is_checked(digits: Path) -> None:
    calm = trace(digits, 1, 3)
    first = jellybean("plan", str(digits), "--check", calm)
    assert f"plan.json did not exist: planned again and wrote {digits / 'plan.json'}" in first.stderr
    planned = (digits / "plan.json").read_text(encoding="utf-8")
    again = jellybean("plan", str(digits), "--check", calm)
    assert "anew" not in again.stderr
    answer = json.loads(jellybean("plan", str(digits), "--check", calm, "--json").stdout)
    assert answer["planned_anew"] is None
    assert answer["plan"] == json.loads(planned)["hash"]
    workflow = digits / "workflow.yaml"
    workflow.write_text(workflow.read_text(encoding="utf-8").replace("rate: 10/s", "rate: 12/s"), encoding="utf-8")
    changed = json.loads(jellybean("plan", str(digits), "--check", calm, "--json").stdout)
    assert "the documents have changed since plan.json was made" in changed["planned_anew"]
    assert (digits / "plan.json").read_text(encoding="utf-8") != planned
    shutil.rmtree(digits / ".jellybean")  # as after a fresh checkout: the same plan comes out
    assert "anew" not in jellybean("plan", str(digits), "--check", calm).stderr


def test_a_wrong_trace_leaves_the_plan(digits: Path) -> None:
    jellybean("plan", str(digits), "--check", "none.csv", status=2)
    assert not (digits / "plan.json").exists()


@pytest.mark.slow
def test_a_peak_would_break_and_the_hint_holds(digits: Path) -> None:
    path = trace(digits, 5, 40)
    done = jellybean("plan", str(digits), "--check", path, "--json", "--set", "slo.budget=null", status=6)
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "would_break"
    assert answer["breaks"][0]["start_s"] == 60
    command = answer["hint"]["command"]
    if command is None:  # the fleet has no room for it, whatever is planned
        assert answer["hint"]["reasons"]
        return
    words = shlex.split(command)
    assert words[:3] == ["jellybean", "plan", str(digits)]
    assert not (digits / "plan.json").exists()  # a check with --set plans in memory
    jellybean(*words[1:])
    assert json.loads((digits / "plan.json").read_text(encoding="utf-8"))["sources"][0]["rate_per_s"] == 40
    assert json.loads(jellybean("plan", str(digits), "--check", path, "--json").stdout)["verdict"] == "holds"


@pytest.mark.nightly
def test_the_example_of_a_day_breaks_in_the_morning_and_is_drawn(vqa: Path, tmp_path: Path) -> None:
    picture = tmp_path / "day.svg"
    day = str(vqa / "traces" / "day.csv")
    done = jellybean("plan", str(vqa), "--check", day, "--plot", str(picture), status=6)
    assert "misses a target at 420 s" in done.stdout
    assert "sources.image.rate=" in done.stdout
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_a_broken_trace_is_exit_2_with_both_lines(vqa: Path) -> None:
    text = jellybean("plan", str(vqa), "--check", trace(vqa, 40, 50, source="image"), status=2).stderr
    assert "trace.csv:3:" in text
    assert "speech has 40/s" in text
    assert "none.csv" in jellybean("plan", str(vqa), "--check", "none.csv", status=2).stderr


def test_options_that_do_not_fit_are_bad_input(digits: Path) -> None:
    path = trace(digits, 1)
    jellybean("plan", str(digits), "--plot", "x.svg", status=2)
    jellybean("plan", str(digits), "--check", path, "--gap", "0.1", status=2)
    assert ".svg" in jellybean("plan", str(digits), "--check", path, "--plot", "x.txt", status=2).stderr
    nowhere = jellybean("plan", str(digits), "--check", path, "--plot", str(digits / "no" / "x.svg"), status=2)
    assert "not found" in " ".join(nowhere.stderr.replace("│", " ").split())
    assert nowhere.stdout == ""


@pytest.mark.nightly
def test_diff_of_plans(vqa: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(vqa, other)
    jellybean("diff", str(vqa), str(other), status=2)
    jellybean("plan", str(vqa))
    jellybean("plan", str(other), "--set", "sources.image.rate=64/s", "--set", "sources.speech.rate=64/s")
    assert "no difference" in jellybean("diff", str(vqa), str(vqa / "plan.json")).stdout
    plan = json.loads((vqa / "plan.json").read_text(encoding="utf-8"))
    jellybean("plan", str(vqa), "--set", "slo.latency_p99=10s")
    before = tmp_path / "before.json"
    before.write_text(json.dumps(plan), encoding="utf-8")
    assert "slo.latency_p99_s: none -> 10" in jellybean("diff", str(before), str(vqa), status=1).stdout
    answer = json.loads(jellybean("diff", str(vqa), str(other), "--json", status=1).stdout)
    assert answer["same"] is False
    assert answer["cost_after"]["compute_usd_per_h"] > answer["cost_before"]["compute_usd_per_h"]
    assert any(change["before"] is None for change in answer["workers"])
    assert "start" in jellybean("diff", str(vqa), str(other), status=1).stdout
