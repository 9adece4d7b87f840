"""`jellybean frontier` on the published figures, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean_solver import from_document
from tests.support.command_line import jellybean


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects") / "vqa"
    jellybean("init", "vqa", str(directory))
    jellybean("plan", str(directory))
    return directory


@pytest.mark.slow
def test_the_published_curve(vqa: Path) -> None:
    done = jellybean("frontier", str(vqa))

    assert "7 points, from 4.68 USD/h" in done.stdout
    assert "the plan of `jellybean plan`" in done.stdout
    assert "current plan: accuracy 56.59, 7.01 USD/h, on the curve" in done.stdout
    picture = (vqa / "frontier.svg").read_text(encoding="utf-8")
    assert "SLO 56" in picture
    assert "wav2vec2-large" in picture


def test_json_with_rates_and_plans(vqa: Path, tmp_path: Path) -> None:
    plans, picture = tmp_path / "plans", tmp_path / "curve.png"
    options = ("--json", "--rates", "20,40,1000", "--plans", str(plans), "--plot", str(picture))
    answer = json.loads(jellybean("frontier", str(vqa), *options).stdout)

    assert set(answer) == {
        "name", "slo", "x", "y", "corners", "exact", "finished", "step", "ended", "highest_bound", "one_selection",
        "workflows", "rates", "current", "notes", "elapsed_s",
    }  # fmt: skip
    assert [corner["accuracy"] for corner in answer["corners"]] == [54.02, 54.37, 56.59, 56.85, 57.94, 58.19, 58.33]
    chosen = next(corner for corner in answer["corners"] if corner["chosen"])
    assert chosen["cost_usd_per_h"]["total"] == pytest.approx(7.0115, abs=5e-5)
    assert all(corner["gap"] == 0 for corner in answer["corners"])
    assert answer["exact"]
    assert answer["current"]["dearer_usd_per_h"] == pytest.approx(0, abs=1e-6)
    rates = answer["rates"]
    assert [point["feasible"] for point in rates["points"]] == [True, True, True, False]
    assert rates["points"][1]["cost_usd_per_h"]["total"] == chosen["cost_usd_per_h"]["total"]
    assert rates["points"][2]["highest"]
    assert rates["highest_scale"] == pytest.approx(2.4466, abs=1e-3)
    assert picture.stat().st_size > 10_000
    written = sorted(path.name for path in plans.iterdir())
    assert len(written) == 7 + 3
    assert "accuracy-56.59.json" in written
    plan = from_document(json.loads((plans / "accuracy-56.59.json").read_text(encoding="utf-8")))
    assert plan.accuracy == plan.slo.accuracy == 56.59


@pytest.mark.slow
def test_what_breaks_a_limit_is_marked(vqa: Path) -> None:
    answer = json.loads(
        jellybean("frontier", str(vqa), "--json", "--set", "slo.budget=8USD/h", "--set", "slo.latency_p99=2ms").stdout
    )
    broken = {corner["accuracy"]: " ".join(corner["breaches"]) for corner in answer["corners"]}
    assert len(broken) == 7
    assert all("p99 latency" in text for text in broken.values())
    assert [accuracy for accuracy, text in broken.items() if "budget" in text] == [57.94, 58.19, 58.33]


def test_no_plan_at_all_is_exit_3_with_the_figures(vqa: Path, tmp_path: Path) -> None:
    overrides = ("--set", "sources.image.rate=4000/s", "--set", "sources.speech.rate=4000/s")
    done = jellybean("frontier", str(vqa), *overrides, "--plot", str(tmp_path / "no.svg"), status=3)
    assert "capacity: at most" in done.stderr
    assert not (tmp_path / "no.svg").exists()
    answer = json.loads(jellybean("frontier", str(vqa), *overrides, "--json", status=3).stdout)
    assert answer["corners"] == []
    assert any("capacity" in sentence for sentence in answer["ended"])


def test_a_target_out_of_reach_still_has_a_curve(vqa: Path) -> None:
    answer = json.loads(jellybean("frontier", str(vqa), "--json", "--set", "slo.accuracy=58.9", "--rates", "1x").stdout)
    assert len(answer["corners"]) == 7
    assert not any(corner["chosen"] for corner in answer["corners"])
    assert answer["rates"]["points"][0]["feasible"] is False
    assert any("58.33" in sentence for sentence in answer["rates"]["ended"])


def test_a_step_skips_corners_but_not_the_last(vqa: Path) -> None:
    answer = json.loads(jellybean("frontier", str(vqa), "--json", "--step", "3").stdout)
    assert [corner["accuracy"] for corner in answer["corners"]] == [54.02, 57.94, 58.33]
    assert (answer["exact"], answer["finished"], answer["step"]) == (False, True, 3.0)


def test_a_time_limit_is_passed_on(vqa: Path) -> None:
    answer = json.loads(jellybean("frontier", str(vqa), "--json", "--time-limit", "30").stdout)
    assert answer["exact"]


@pytest.mark.nightly
def test_another_plan_in_the_folder_is_left_out_with_the_reason(tmp_path: Path) -> None:
    directory = tmp_path / "vqa"
    jellybean("init", "vqa", str(directory))
    jellybean("plan", str(directory), "--set", "sources.image.rate=20/s", "--set", "sources.speech.rate=20/s")
    assert "does not match these documents" in jellybean("frontier", str(directory)).stdout
    (directory / "plan.json").write_text("{broken", encoding="utf-8")
    assert "cannot be read as a plan" in jellybean("frontier", str(directory)).stdout


def test_bad_input_is_exit_2(vqa: Path, tmp_path: Path) -> None:
    assert "slo.acuracy" in jellybean("frontier", str(vqa), "--set", "slo.acuracy=57", status=2).stderr
    assert "10..80" in jellybean("frontier", str(vqa), "--rates", "fast", status=2).stderr
    assert ".svg" in jellybean("frontier", str(vqa), "--plot", "curve.txt", status=2).stderr
    nowhere = jellybean("frontier", str(vqa), "--plot", str(tmp_path / "no" / "c.svg"), status=2).stderr
    assert "not found" in " ".join(nowhere.replace("│", " ").split())
    jellybean("frontier", str(vqa), "--time-limit", "0", status=2)
    assert "finite" in jellybean("frontier", str(vqa), "--step", "inf", status=2).stderr
    assert "folder not found" in jellybean("frontier", str(tmp_path / "nowhere"), status=2).stderr
    broken = tmp_path / "broken"
    jellybean("init", "vqa", str(broken))
    (broken / "workflow.yaml").write_text("kind: Workflow\noperators: [", encoding="utf-8")
    assert "workflow.yaml:" in jellybean("frontier", str(broken), status=2).stderr


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(vqa: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    for folder in (file, file / "plans"):
        done = jellybean("frontier", str(vqa), "--json", "--plans", str(folder), status=2)
        assert "not a folder" in " ".join(done.stderr.replace("│", " ").split())
        assert list(json.loads(done.stdout)) == ["error"]
