"""Workflows that may be left out: who is served, by worth and priority, from the documents to the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import build_problem, load_any_project
from jellybean.planning import PlanFile, plan_project
from jellybean_solver import evaluate
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops

WIDE = INFRASTRUCTURE.replace("20 Mbit/s", "100 Mbit/s")
ONE_GPU = WIDE.replace("tier: cloud, count: 6", "tier: cloud, count: 1")
HEADER = "site,sources.camera.rate,workers.box.count,slo.accuracy,admission.worth,admission.priority,admission.owner"


def write(folder: Path, *rows: str) -> Path:
    """Sites without boxes of their own, and a single worker in the cloud, which takes 133 requests a second."""
    write_shops(folder, "\n".join([HEADER, *rows]) + "\n")
    (folder / "infrastructure.yaml").write_text(ONE_GPU, encoding="utf-8")
    return folder


def served(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> set[str]:
    """The names of the workflows that a plan serves; the plan is checked."""
    assert run(["plan", str(folder), "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    if not options:
        problem, plan = build_problem(load_any_project(folder)), PlanFile(folder).load().plan
        assert evaluate(problem, plan).complaints == ()
        assert {one["name"] for one in found.get("left_out", [])} == {one.name for one in plan.left_out}
    return set(found["workflows"])


def test_those_of_the_highest_worth_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,80/s,0,,5 USD/h,,", "b,80/s,0,,9 USD/h,,", "c,80/s,0,,7 USD/h,,")
    assert served(folder, capsys) == {"b"}
    assert run(["plan", str(folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "left out: 2 sites worth 12.00 USD/h: c (7.00), a (5.00)" in text
    assert "with what is left out" in text


def test_rules_that_a_plan_is_compared_with_serve_what_it_serves(tmp_path: Path) -> None:
    folder = write(tmp_path, "a,30/s,0,,0.1 USD/h,,", "b,30/s,0,,9 USD/h,,", "c,80/s,0,,7 USD/h,,")
    planned = plan_project(load_any_project(folder))
    assert planned.plan is not None and planned.plan.left_out
    kept = {workflow.name for workflow in planned.plan.workflows}
    compared = [rule for rule in planned.baselines if rule.selection is not None]
    assert compared
    for rule in compared:
        assert rule.selection is not None
        assert {name.partition("/")[0] for name in rule.selection} == kept, rule.name


def test_what_is_left_out_counts_before_and_after_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change after which the same workflows are left out costs what its workers cost, not their worth less."""
    folder = write(tmp_path, "a,80/s,0,,5 USD/h,,", "b,80/s,0,,9 USD/h,,")
    assert run(["explain", str(folder), "--json"]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    asked = [one["without"] for one in limits if one["without"] and one["without"]["delta_usd_per_h"] is not None]
    alike = [one for one in asked if not any("leaves out" in text or "serves" in text for text in one["differences"])]
    assert alike
    assert all(abs(one["delta_usd_per_h"]) < 4.0 for one in alike)  # a is worth 5


def test_what_is_explained_is_of_those_that_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,80/s,0,,5 USD/h,,", "b,80/s,0,,9 USD/h,,")
    operator, variant = next(
        (one.name, one.variants[0].name)
        for one in build_problem(load_any_project(folder)).operators
        if one.name.startswith("a/")
    )
    assert run(["explain", str(folder), "--json", "--why-not", f"{operator}={variant}", "--why-not", "cloud"]) == 0
    found = json.loads(capsys.readouterr().out)
    asked, cloud = found["why_not"]
    assert asked["verdict"] == "left_out"
    assert asked["sentence"] == "a is left out of this plan, as serving it costs more than it is worth"
    assert cloud["verdict"] == "used"
    assert not any("a/" in one["subject"] for one in found["choices"])
    assert not any(one["subjects"][:1] == ["a"] for one in found["limits"])


def test_two_smaller_ones_go_before_a_larger_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,60/s,0,,5 USD/h,,", "b,120/s,0,,9 USD/h,,", "c,60/s,0,,5 USD/h,,")
    assert served(folder, capsys) == {"a", "c"}


def test_what_must_be_served_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,80/s,0,,,,", "b,80/s,0,,9 USD/h,,")
    assert served(folder, capsys) == {"a"}


def test_no_one_is_left_out_for_a_lower_priority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,80/s,0,,5 USD/h,2,", "b,80/s,0,,900 USD/h,1,", "c,40/s,0,,1 USD/h,,")
    assert served(folder, capsys) == {"a", "c"}
    plan = PlanFile(folder).load().plan
    assert [(one.name, one.worth_usd_per_h) for one in plan.left_out] == [("b", 900.0)]
    assert {one.name: one.worth_usd_per_h for one in plan.workflows} == {"a": 5.0, "c": 1.0}
    proof = plan.certificate
    assert proof.objective == pytest.approx(plan.cost.total_usd_per_h + 900.0)


def test_who_is_worth_less_than_serving_costs_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,10/s,0,,0.15 USD/h,,", "b,10/s,0,,9 USD/h,,")
    assert served(folder, capsys) == {"a", "b"}  # a worker is paid for b anyway
    folder = write(tmp_path, "a,10/s,0,,0.15 USD/h,,", "b,10/s,0,,0.20 USD/h,,")
    assert run(["plan", str(folder)]) == 3
    assert "no workflow is worth what serving it costs" in " ".join(capsys.readouterr().err.split())


def test_a_budget_decides_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,4/s,1,,5 USD/h,,", "b,30/s,0,,5 USD/h,,")
    assert served(folder, capsys) == {"a", "b"}
    assert served(folder, capsys, "--set", "slo.budget=0.4 USD/h", "--dry-run") == {"a"}


def test_costs_by_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,10/s,0,,,,retail", "b,10/s,0,,,,retail", "c,10/s,0,,,,")
    assert run(["plan", str(folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "by owner: retail" in text
    assert "(2 sites), nobody" in text
    plan = PlanFile(folder).load().plan
    assert {one.name: one.owner for one in plan.workflows} == {"a": "retail", "b": "retail", "c": ""}


def test_wrong_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,10/s,0,,much,first,", "b,10/s,0,,-1 USD/h,,")
    assert run(["plan", str(folder)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("stores.csv:2") == 2
    assert told.count("stores.csv:3") == 1


def test_who_is_served_is_weighed_against_a_running_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,80/s,0,,5 USD/h,,", "b,80/s,0,,9 USD/h,,")
    assert served(folder, capsys) == {"b"}
    assert run(["plan", str(folder), "--from", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replan"]["verdict"] == "keep"
    sites = folder / "stores.csv"
    sites.write_text(sites.read_text(encoding="utf-8").replace("5 USD/h", "90 USD/h"), encoding="utf-8")
    assert run(["plan", str(folder), "--from", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replan"]["verdict"] == "replace"
    assert [one["name"] for one in found["left_out"]] == ["b"]


def test_who_was_left_out_is_added_when_there_is_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, "a,80/s,0,,5 USD/h,,", "b,80/s,0,,9 USD/h,,")
    assert served(folder, capsys) == {"b"}
    (folder / "infrastructure.yaml").write_text(WIDE, encoding="utf-8")
    assert run(["plan", str(folder), "--add", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["added"]["new"], found["added"]["kept"]) == (["a"], 1)
    assert set(found["workflows"]) == {"a", "b"}
    assert "left_out" not in found
