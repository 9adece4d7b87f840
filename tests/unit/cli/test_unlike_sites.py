"""Sites that differ, from the command line: planned as workflows of their own, and shown in groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import build_problem, load_any_project
from jellybean.planning import PlanFile
from jellybean.report.plans.workflows_summary import groups
from tests.plan_check import complaints
from tests.support.unlike_sites import random_stores, write_shops

SITES = 30


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned project of many sites."""
    folder = write_shops(tmp_path_factory.mktemp("shops"), random_stores(SITES, seed=7))
    assert run(["plan", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_the_plan_keeps_all_limits_and_targets(shops: Path) -> None:
    problem, plan = build_problem(load_any_project(shops)), PlanFile(shops).load().plan
    assert complaints(problem, plan) == []
    assert len(plan.workflows) == SITES
    for workflow in plan.workflows:
        assert workflow.accuracy is not None
        assert workflow.slo.accuracy is not None
        assert workflow.accuracy >= workflow.slo.accuracy


def test_groups_are_all_sites_with_their_cost(shops: Path) -> None:
    plan = PlanFile(shops).load().plan
    found = groups(plan)
    assert sorted(w.name for group in found for w in group.workflows) == sorted(w.name for w in plan.workflows)
    assert sum(group.usd_per_h for group in found) == pytest.approx(plan.cost.total_usd_per_h)
    for group in found:
        for workflow in group.workflows:
            chosen = {(f"{workflow.name}/{name}", variant) for _, own in group.choices for name, variant in own}
            assert chosen == {
                (name, variant) for name, variant in plan.selection.items() if plan.workflow_of(name) == workflow.name
            }


@pytest.mark.slow
def test_the_text_is_a_summary_and_json_has_each_site(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(shops), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"{SITES} sites, accuracy" in text
    assert "planned alike" in text
    assert "dearest: shop-" in text
    assert len(text.splitlines()) < SITES
    assert run(["plan", str(shops), "--dry-run", "--json"]) == 0
    workflows = json.loads(capsys.readouterr().out)["workflows"]
    plan = PlanFile(shops).load().plan
    assert {name: own["accuracy"] for name, own in workflows.items()} == {w.name: w.accuracy for w in plan.workflows}
    assert {
        f"{name}/{operator}": variant
        for name, own in workflows.items()
        for operator, variant in own["selection"].items()
    } == plan.selection


def test_an_explanation_names_the_site_of_a_requirement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_shops(tmp_path)
    options = ["--set", "rome.slo.accuracy=85"]
    assert run(["explain", str(folder), "--json", *options]) == 0
    limits = [one for one in json.loads(capsys.readouterr().out)["limits"] if one["kind"] != "residency"]
    places = [place for limit in limits for place in limit["places"]]
    found = {place["path"]: (place["written"], place["file"].rpartition("/")[2]) for place in places}
    assert len(found) == len(places)
    assert found["paris.slo.accuracy"] == ("95", "stores.csv")
    assert found["rome.slo.accuracy"] == ("85", "--set rome.slo.accuracy=85")
    assert found["berlin.slo.accuracy"] == ("80", "workflow.yaml")
    assert found["paris.workers.box.count"] == ("4", "stores.csv")
    assert found["paris.links.cloud.bandwidth"] == ("50 Mbit/s", "stores.csv")
    assert found["workers.gpu.count"] == ("6", "infrastructure.yaml")


@pytest.mark.parametrize("path", ["pariss.sources.camera.rate", "pari.slo.accuracy"])
def test_a_site_that_is_misspelt_is_suggested(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(write_shops(tmp_path)), "--dry-run", "--set", f"{path}=3"]) == 2
    assert "did you mean 'paris'?" in " ".join(capsys.readouterr().err.split())


def test_a_few_sites_are_listed_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(write_shops(tmp_path)), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "paris/detect" in text
    assert "all in store" not in text  # no plan of several sites is in the lowest tier alone


def test_validate_counts_sites(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(shops)]) == 0
    out = capsys.readouterr().out
    assert f"shops, 2 operators, 1 source, {SITES} sites" in out
    assert "in 2 pools" in out


def test_validate_tells_wrong_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shops(tmp_path, "site,workers.box.count\na,x\n")
    assert run(["validate", str(tmp_path)]) == 2
    assert "stores.csv:2:3: workers.box.count: 'x' is not an integer" in capsys.readouterr().err


def test_rates_of_the_file_are_scaled(tmp_path: Path) -> None:
    write_shops(tmp_path, "site,sources.camera.rate\na,3/s\nb,\n")
    assert run(["plan", str(tmp_path), "--rate-scale", "2"]) == 0
    plan = PlanFile(tmp_path).load().plan
    assert [source.rate_per_s for source in plan.sources] == [6.0, 8.0]
    assert plan.overrides == ("sources.camera.rate=8/s", "a.sources.camera.rate=6/s")


def test_a_curve_is_of_all_sites_or_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shops(tmp_path)
    assert run(["frontier", str(tmp_path), "--json"]) == 0
    every = json.loads(capsys.readouterr().out)
    assert [corner["accuracy"] for corner in every["corners"]] == pytest.approx([89.10, 96.03])
    assert every["workflows"] == ["berlin", "paris", "rome"]
    assert run(["frontier", str(tmp_path), "--workflow", "berlin", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    costs = [corner["cost_usd_per_h"]["total"] for corner in one["corners"]]
    assert costs == sorted(costs)
    assert costs[-1] <= every["corners"][-1]["cost_usd_per_h"]["total"]
    assert run(["frontier", str(tmp_path), "--workflow", "berlin"]) == 0
    assert "accuracy of berlin" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", [["up"], ["apply"], ["render"], ["deploy"]])
def test_what_takes_one_workflow_says_what_to_do(
    shops: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, str(shops)]) == 2
    told = capsys.readouterr().err
    assert f"has {SITES} sites that differ (stores.csv)" in told
    assert "--set sites.store=2" in told


@pytest.mark.slow
def test_a_few_sites_are_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shops(tmp_path, "site,sources.camera.rate\na,2/s\nb,1/s\n")
    assert run(["plan", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run(["simulate", str(tmp_path), "--duration", "60", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["workflows"]) == {"a", "b"}
