"""Every command shows the same predicted p99 latency of a plan, with its interval; `explain` prints part by part."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jellybean.cli import run
from jellybean.display import formats
from jellybean.planning import Explained
from jellybean.report.explanation import view
from jellybean_solver import CLOSED_FORM_RATIO, Part

TARGET = ("--set", "slo.latency_p99=5 s", "--set", "limits.utilisation=0.7")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects") / "vqa"
    assert run(["init", "vqa", str(folder)]) == 0
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints, with single spaces: a narrow terminal breaks lines anywhere."""
    capsys.readouterr()
    assert run(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_all_commands_show_one_p99(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(planned)

    def answer(command: str, *options: str) -> Any:
        return json.loads(printed(capsys, command, folder, *options, "--json"))

    (reached,) = answer("plan", *TARGET)["latency_p99"]["reached"]
    figures = tuple(reached[f"simulated_{end}s"] for end in ("", "low_", "high_"))
    assert figures[1] < figures[0] < figures[2] and reached["simulations"] == 5

    (kept,) = answer("plan", *TARGET, "--from", folder)["latency_p99"]["reached"]
    assert kept == reached, "the running plan is kept"

    (explained,) = (found := answer("explain", *TARGET))["latency_p99"]
    assert explained == reached
    assert next(limit["used"] for limit in found["limits"] if limit["kind"] == "latency_p99") == figures[0]
    reports = [answer("report")]  # before `simulate` and after it
    simulated = answer("simulate", *TARGET)
    reports.append(answer("report"))
    assert tuple(simulated[f"latency_p99_{end}s"] for end in ("", "low_", "high_")) == figures
    for report in reports:
        compared = next(item for item in report["comparisons"] if item["metric"] == "latency_p99_s")
        assert (compared["predicted"], *compared["predicted_between"]) == figures

    stated, closed = formats.interval(*figures), formats.duration(reached["closed_form_s"])
    texts = {name: printed(capsys, name, folder, *TARGET) for name in ("plan", "explain", "simulate")}
    texts["plan --from"] = printed(capsys, "plan", folder, *TARGET, "--from", folder)
    texts["report"] = printed(capsys, "report", folder)
    assert {name: stated in text for name, text in texts.items()} == dict.fromkeys(texts, True)
    error = "{:g} to {:g} times the simulated in benchmarks".format(*CLOSED_FORM_RATIO)
    for name in ("plan", "plan --from", "explain"):
        assert f"closed form {closed}, {error}" in texts[name]


@pytest.mark.slow
def test_a_simulation_with_other_seeds_is_not_reported_as_the_prediction(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(planned)
    before = printed(capsys, "report", folder, "--json")
    other = json.loads(printed(capsys, "simulate", folder, *TARGET, "--seed", "7", "--json"))
    after = printed(capsys, "report", folder, "--json")
    assert json.loads(before)["comparisons"] == json.loads(after)["comparisons"]
    assert other["latency_p99_s"] != json.loads(printed(capsys, "simulate", folder, *TARGET, "--json"))["latency_p99_s"]


@pytest.mark.slow
def test_an_interrupted_explanation_keeps_what_it_printed(
    planned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> list[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setitem(view._PARTS, Part.VALUES, interrupt)
    capsys.readouterr()
    status = run(["explain", str(planned), *TARGET])
    shown = capsys.readouterr()
    assert (status, shown.err.splitlines()[-1]) == (130, "interrupted")
    assert shown.out.index("p99 latency") < shown.out.index("Binding requirements")
    assert "Without one tier" not in shown.out


@pytest.mark.usefixtures("default_sigterm")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_explanation_without_a_plan_keeps_what_it_printed(
    number: int, status: int, planned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = view._PARTS[Part.CONFLICT]

    def interrupt(explained: Explained) -> Any:
        os.kill(os.getpid(), number)
        return members(explained)

    monkeypatch.setitem(view._PARTS, Part.RELAXATION, interrupt)
    capsys.readouterr()
    assert run(["explain", str(planned), "--set", "slo.accuracy=58.9"]) == status
    shown = capsys.readouterr()
    title, reason, introduction, header, member = shown.out.splitlines()
    assert "no plan meets the targets" in title and reason.startswith("accuracy: the target is 58.9")
    assert "cannot be met" in introduction and header.split() == ["where", "as", "written"]
    assert member.split() == ["--set", "slo.accuracy:", "58.9"]
    assert "explain: interrupted at" in shown.err and "how far to ease the accuracy target of 58.9" in shown.err
