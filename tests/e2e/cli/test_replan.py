"""`jellybean plan --from` on the published figures, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import jellybean


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a plan for 40 requests a second; not to be changed."""
    directory = tmp_path_factory.mktemp("planned") / "vqa"
    jellybean("init", "vqa", str(directory))
    jellybean("plan", str(directory))
    return directory


@pytest.fixture
def vqa(planned: Path, tmp_path: Path) -> Path:
    """A copy of the planned example."""
    return shutil.copytree(planned, tmp_path / "vqa")


def rate(per_s: float) -> list[str]:
    return [part for name in ("image", "speech") for part in ("--set", f"sources.{name}.rate={per_s:g}/s")]


def words(text: str) -> str:
    """Without the ends of lines."""
    return " ".join(text.split())


def replanned(directory: Path, *options: str, start: str | None = None, status: int = 0) -> dict[str, Any]:
    """The JSON answer, as one dictionary."""
    done = jellybean("plan", str(directory), "--from", start or str(directory), "--json", *options, status=status)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_nothing_changed_nothing_changes(vqa: Path) -> None:
    before = (vqa / "plan.json").read_text(encoding="utf-8")
    answer = replanned(vqa)
    assert answer["replan"]["verdict"] == "keep"
    assert answer["replan"]["migration"]["total_usd"] == 0
    assert answer["replan"]["migration"]["loads"] == []
    assert answer["hash"] == answer["replan"]["running"]["hash"] == json.loads(before)["hash"]
    assert json.loads((vqa / "plan.json").read_text(encoding="utf-8")) == json.loads(before)
    said = jellybean("plan", str(vqa), "--from", str(vqa / "plan.json"))
    assert "keep the running plan: no change was found that reduces the cost over 24 h" in words(said.stdout)
    assert "plan.json is unchanged" in said.stderr
    (vqa / "running.json").write_text(before, encoding="utf-8")
    for other, had in (({**json.loads(before), "hash": "5" * 64}, "; it had another one, 555555555555"), (None, "")):
        (vqa / "plan.json").write_text(json.dumps(other) if other is not None else before[:99], encoding="utf-8")
        said = jellybean("plan", str(vqa), "--from", str(vqa / "running.json"))
        assert words(said.stderr).endswith(f"plan.json: the plan that is kept, {answer['hash'][:12]}{had}")
    assert json.loads((vqa / "plan.json").read_text(encoding="utf-8"))["hash"] == answer["hash"]


@pytest.mark.nightly
def test_hysteresis_keeps_what_a_small_saving_would_change(vqa: Path) -> None:
    """A migration costs nearly what the best change saves. The saving depends on the GPU that runs: one is cheaper."""
    infrastructure = vqa / "infrastructure.yaml"
    equal = infrastructure.read_text(encoding="utf-8")
    infrastructure.write_text(
        equal.replace("gpu-1: {tier: cloud, count: 1, price: 2.497", "gpu-1: {tier: cloud, count: 1, price: 2.49"),
        encoding="utf-8",
    )
    assert infrastructure.read_text(encoding="utf-8") != equal
    jellybean("plan", str(vqa))
    before = json.loads((vqa / "plan.json").read_text(encoding="utf-8"))
    terms = [*rate(39.5), "--horizon", "2h", "--set", "migration.start=0.77 USD"]
    answer = replanned(vqa, *terms)
    decision = answer["replan"]
    assert decision["verdict"] == "keep"
    assert 0 < decision["best"]["saved_share"] < decision["at_least"] == 0.02
    assert decision["best"]["saved_usd"] == pytest.approx(
        decision["running"]["total_usd"] - decision["best"]["total_usd"]
    )
    hourly = decision["best"]["cost_usd_per_h"]["total"]
    moved = decision["migration"]
    assert decision["best"]["total_usd"] == pytest.approx(2 * hourly + moved["total_usd"])
    assert moved["start_usd"] == pytest.approx(0.77 * sum(load["replicas"] for load in moved["loads"])) == 3.08
    assert json.loads((vqa / "plan.json").read_text(encoding="utf-8")) == before
    said = jellybean("plan", str(vqa), "--from", str(vqa), *terms)
    assert "after 3.08 USD of migration, below 2 %" in words(said.stdout)
    assert "plan.json has the rates that it was made for (image 40/s, speech 40/s)" in said.stderr
    # The kept plan is the current plan now: nothing plans anew behind one's back.
    assert "planned again" not in jellybean("simulate", str(vqa), *terms[:4], *terms[6:]).stderr

    asked_for_less = replanned(vqa, *terms, "--set", "migration.at_least=0.4 %")
    assert asked_for_less["replan"]["verdict"] == "replace"
    after = json.loads((vqa / "plan.json").read_text(encoding="utf-8"))
    assert after["hash"] == asked_for_less["hash"] != before["hash"]


def test_a_longer_horizon_pays_for_more_and_all_is_told(vqa: Path) -> None:
    (vqa / "before.json").write_text((vqa / "plan.json").read_text(encoding="utf-8"), encoding="utf-8")
    start = str(vqa / "before.json")
    dear = [*rate(39.5), "--set", "migration.start=60 USD"]
    assert replanned(vqa, *dear, "--horizon", "1h", start=start)["replan"]["verdict"] == "keep"
    said = words(jellybean("plan", str(vqa), "--from", start, *dear, "--horizon", "30d").stdout)
    assert "replace the running plan: this saves " in said
    assert "over 720 h (" in said
    assert " to start " in said
    assert "the running plan -> the new plan" in said
    assert "proven optimal" in said
    difference = json.loads(jellybean("diff", start, str(vqa), "--json", status=1).stdout)
    assert any(change["load"] for change in difference["workers"])


def test_a_running_plan_that_breaks_a_target_is_replaced(vqa: Path) -> None:
    answer = replanned(vqa, *rate(44), "--horizon", "1h", "--set", "migration.start=1000 USD")
    assert answer["replan"]["verdict"] == "replace"
    assert "would be busy" in answer["replan"]["running"]["broken"][0]
    assert answer["replan"]["best"]["saved_usd"] < -900


@pytest.mark.slow
def test_a_plan_of_another_workflow_is_replaced(vqa: Path, tmp_path: Path) -> None:
    jellybean("init", "digits", str(tmp_path / "digits"))
    said = words(jellybean("plan", str(tmp_path / "digits"), "--from", str(vqa)).stdout)
    assert "replace the running plan: it no longer meets the targets" in said
    assert "the plan has no operator find" in said


def test_no_plan_at_all_is_exit_3_and_writes_nothing(vqa: Path) -> None:
    before = (vqa / "plan.json").read_bytes()
    answer = replanned(vqa, "--set", "slo.accuracy=58.9", status=3)
    assert answer["replan"]["verdict"] == "none"
    assert any(reason.startswith("the running plan: accuracy 56.59") for reason in answer["reasons"])
    assert (vqa / "plan.json").read_bytes() == before


def test_what_cannot_be_done_is_said_in_one_message(vqa: Path) -> None:
    jellybean("plan", str(vqa), "--from", str(vqa), "--horizon", "3", status=2)
    jellybean("plan", str(vqa), "--from", str(vqa), "--horizon", "0h", status=2)
    jellybean("plan", str(vqa), "--horizon", "3h", status=2)
    jellybean("plan", str(vqa), "--from", str(vqa), "--check", "trace.csv", status=2)
    assert "jellybean up" in jellybean("plan", str(vqa), "--from", "running", status=1).stderr
    assert "nowhere.json" in jellybean("plan", str(vqa), "--from", "nowhere.json", status=2).stderr
    assert "migration.start" in jellybean("plan", str(vqa), "--set", "migration.start=1 USD/h", status=2).stderr
