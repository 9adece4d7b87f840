"""`jellybean explain` on both examples, from the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import jellybean


def explain(directory: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    return jellybean("explain", str(directory), *arguments, status=status)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects")
    for name in ("vqa", "digits"):
        jellybean("init", name, str(directory / name))
    return directory


@pytest.mark.slow
def test_the_published_plan_is_explained(projects: Path) -> None:
    questions = ("image_features=resnet50", "cloud", "answer@edge")
    options = [option for question in questions for option in ("--why-not", question)]
    found = json.loads(explain(projects / "vqa", "--json", *options).stdout)

    total = found["plan"]["cost_usd_per_h"]["total"]
    assert found["status"] == "optimal"
    assert total == pytest.approx(7.0115, abs=5e-5)
    assert [answer["question"] for answer in found["why_not"]] == list(questions)
    resnet50, cloud, answer = found["why_not"]
    assert resnet50["verdict"] == "dearer"
    assert resnet50["change"]["cost_usd_per_h"] - total == pytest.approx(resnet50["change"]["delta_usd_per_h"])
    assert cloud["used_per_s"]["answer"] == pytest.approx(40)
    assert answer["verdict"] == "no_plan"
    assert answer["conflict"]["requirements"]
    accuracy = next(limit for limit in found["limits"] if limit["kind"] == "accuracy")
    assert accuracy["binds"]
    assert accuracy["places"][0]["path"] == "slo.accuracy"
    assert accuracy["places"][0]["line"] > 0
    forced = {change["subject"]: change for change in found["choices"]}
    assert forced["speech_to_text=wav2vec2-base"]["status"] == "infeasible"
    assert forced["image_features=resnet34"]["delta_usd_per_h"] > 0
    assert all(change["gap"] in (0, None) for change in forced.values())
    assert not (projects / "vqa" / "plan.json").exists()


@pytest.mark.nightly
def test_people_read_it(projects: Path) -> None:
    text = explain(projects / "digits", "--why-not", "hub").stdout

    assert text.index("why not hub") < text.index("Binding requirements") < text.index("Effect of one unit")
    assert "slo.accuracy: 89" in text
    assert "p99 latency" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "path", "setting"),
    [
        (("slo.accuracy=58.9",), "slo.accuracy", "slo.accuracy=58.33"),
        (("sources.image.rate=150/s", "sources.speech.rate=150/s"), "workers.gpu-1.count", "workers.gpu-1.count=4"),
        (("slo.budget=6 USD/h",), "slo.budget", None),
    ],
)
def test_a_conflict_is_exit_3_and_what_it_proposes_gives_a_plan(
    projects: Path, overrides: tuple[str, ...], path: str, setting: str | None
) -> None:
    options = [option for override in overrides for option in ("--set", override)]
    found = json.loads(explain(projects / "vqa", "--json", *options, status=3).stdout)

    members = {item["requirement"]["places"][0]["path"]: item for item in found["conflict"]["requirements"]}
    assert found["plan"] is None
    assert members[path]["helps"]
    if setting is not None:
        assert members[path]["settings"] == [setting]
    eased = [option for value in members[path]["settings"] for option in ("--set", value)]
    planned = json.loads(jellybean("plan", str(projects / "vqa"), "--json", *options, *eased).stdout)
    assert planned["cost_usd_per_h"]["total"] == pytest.approx(members[path]["cost_usd_per_h"], abs=0.01)


@pytest.mark.nightly
def test_why_not_a_worker_speaks_of_the_budget_as_written(projects: Path) -> None:
    options = ("--set", "slo.budget=7.05 USD/h", "--why-not", "cpu-2")
    (answer,) = json.loads(explain(projects / "vqa", "--json", *options).stdout)["why_not"]

    assert answer["verdict"] == "no_plan"
    assert "no plan keeps the budget of 7.05 USD/h" in answer["sentence"]
    assert "6.858" not in answer["sentence"]
    settings = [setting for item in answer["conflict"]["requirements"] for setting in item["settings"]]
    (budget,) = [setting for setting in settings if setting.startswith("slo.budget=")]
    assert float(budget.partition("=")[2].split()[0]) > 7.05
    assert not any("one paid" in setting for setting in settings)


def test_a_conflict_is_told_in_the_users_words_and_lines(projects: Path) -> None:
    workflow = (projects / "vqa" / "workflow.yaml").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(workflow, 1) if text.strip().startswith("image: {"))
    text = explain(projects / "vqa", "--set", "slo.budget=3 USD/h", status=3).stdout

    assert f"workflow.yaml:{line}" in text
    assert "sources.image.rate: 40/s" in text
    assert "--set" in text
    assert "slo.budget: 3 USD/h" in text


def test_residency_is_a_requirement_like_any_other(projects: Path) -> None:
    options = ("--set", "operators.answer.tiers=[edge]", "--set", "sources.speech.stays_in=[edge]")
    found = json.loads(explain(projects / "vqa", "--json", *options, status=3).stdout)

    members = {place["path"] for item in found["conflict"]["requirements"] for place in item["requirement"]["places"]}
    assert "sources.speech.stays_in" in members or "operators.answer.tiers" in members


def test_bad_questions_are_bad_input(projects: Path) -> None:
    text = explain(projects / "vqa", "--why-not", "image_feature=resnet50", "--why-not", "clout", status=2).stderr
    assert "did you mean 'image_features'" in text
    assert "did you mean 'cloud'" in text
    explain(projects / "vqa", "--set", "slo.acuracy=3", status=2)
