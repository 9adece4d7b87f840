"""A plan that mixes variants, from the documents to the answers of real agents."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.serving import Client
from jellybean_solver import from_document
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project

# A box computes `five` for 8 of the 20 requests per second, and `two` for all of them.
MIXED = (
    *("--set", "workers.box.count=2", "--set", "workers.box.sharing=exclusive"),
    *("--set", "slo.accuracy={mean: 86}", "--set", "operators.first.batch=1"),
)
REQUESTS = 50


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = make_scales_project(tmp_path / "scales")
    profiles = (folder / "profiles.yaml").read_text(encoding="utf-8")
    assert "box: 3 ms" in profiles
    (folder / "profiles.yaml").write_text(profiles.replace("box: 3 ms", "box: 100 ms"), encoding="utf-8")
    return folder


def test_each_request_gets_the_variants_of_its_route(project: Path) -> None:
    planned = json.loads(jellybean("plan", str(project), "--json", *MIXED).stdout)
    assert planned["accuracy"] == pytest.approx(86.0)
    shares = {part["selection"]["first"]: part["share"] for part in planned["selections"]}
    assert shares == pytest.approx({"two": 0.6, "five": 0.4})
    plan = from_document(json.loads((project / "plan.json").read_text(encoding="utf-8")))
    assert sorted(worker.variants["first"] for worker in plan.workers if worker.pool == "box") == ["five", "two"]
    jellybean("up", str(project), "--detach")
    try:
        value = np.ones((1, 4), np.float32)
        with Client.of(project) as client:
            answers = [float(client.infer({"x": value})["triple"][0, 0]) for _ in range(REQUESTS)]
        told = jellybean("top", str(project), "--once", "--json").stdout
    finally:
        jellybean("down", str(project))
    assert Counter(answers) == {6.0: 0.6 * REQUESTS, 15.0: 0.4 * REQUESTS}  # two x three, five x three
    assert [row["variant"] for row in json.loads(told)["operators"] if row["operator"] == "first"] == ["five + two"]


def test_the_plan_says_who_gets_what_and_what_one_variant_for_all_would_cost(project: Path) -> None:
    text = jellybean("plan", str(project), "--dry-run", *MIXED).stdout
    assert "mean accuracy 86" in text
    assert "60 % of the requests get first two" in text
    assert "40 % of the requests get first five" in text
    assert "one variant for all requests: infeasible" in text


@pytest.mark.slow
def test_the_most_accurate_plan_is_told_with_how_far_it_may_be_from_the_best(project: Path) -> None:
    options = (*MIXED[:4], "--set", "objective=mean_accuracy", "--set", "slo.latency_p99=2 s")
    told = json.loads(jellybean("plan", str(project), "--dry-run", "--json", *options).stdout)
    assert told["certificate"]["of"] == "mean_accuracy"
    assert told["accuracy"] == pytest.approx(86.0, abs=0.01)
    assert told["certificate"]["bound"] == pytest.approx(86.0, abs=0.01)


def test_explain_says_what_the_mean_accuracy_costs_and_who_gets_a_variant(project: Path) -> None:
    told = json.loads(jellybean("explain", str(project), "--json", *MIXED, "--why-not", "first=two").stdout)
    assert {part["selection"]["first"]: part["share"] for part in told["plan"]["selections"]} == pytest.approx(
        {"two": 0.6, "five": 0.4}
    )
    mean = next(limit for limit in told["limits"] if limit["kind"] == "mean_accuracy")
    assert (mean["binds"], mean["used"], mean["places"][0]["path"]) == (True, pytest.approx(86.0), "slo.accuracy.mean")
    assert mean["without"]["delta_usd_per_h"] == pytest.approx(-0.1, abs=0.001)  # one box less
    (answer,) = told["why_not"]
    assert answer["verdict"] == "no_plan"
    assert answer["sentence"].startswith("60 % of the requests of first get two in this plan")
    assert answer["conflict"]["requirements"][0]["settings"] == ["slo.accuracy.mean=80"]


def test_explain_of_the_most_accurate_plan_is_in_points(project: Path) -> None:
    options = (*MIXED[:4], "--set", "objective=mean_accuracy")
    told = json.loads(jellybean("explain", str(project), "--json", *options).stdout)
    boxes = next(limit for limit in told["limits"] if limit["subjects"] == ["box"] and limit["kind"] == "count")
    assert boxes["one_more"]["delta_points"] == pytest.approx(9.0, abs=0.02)  # five for all
    text = jellybean("explain", str(project), *options).stdout
    assert "change of the mean accuracy in points without it" in text


def test_explain_tells_which_loss_asks_for_spare_workers(project: Path) -> None:
    losses = ("--set", "slo.survive=[1 worker, 1 link]", "--set", "workers.server.count=2")
    told = json.loads(jellybean("explain", str(project), "--json", *MIXED[:2], *losses, status=3).stdout)
    (item,) = told["conflict"]["requirements"]
    assert item["requirement"]["subjects"] == ["link"]
    assert item["settings"] == ["slo.survive=[1 worker]"]
    alone = ("--set", "slo.survive=1 worker", *losses[2:])
    told = json.loads(jellybean("explain", str(project), "--json", *MIXED[:2], *alone).stdout)
    spare = next(limit for limit in told["limits"] if limit["kind"] == "survive")
    assert spare["binds"]
    assert spare["without"]["delta_usd_per_h"] == pytest.approx(-0.3, abs=0.001)  # a box and a server


@pytest.mark.slow
def test_the_curve_of_mixtures_goes_through_the_plan(project: Path) -> None:
    planned = json.loads(jellybean("plan", str(project), "--json", *MIXED).stdout)
    files = ("--plot", str(project / "curve.svg"), "--plans", str(project / "plans"))
    options = (*files, "--points", "6", "--rates", "1x")
    told = json.loads(jellybean("frontier", str(project), *MIXED, "--json", *options).stdout)
    chosen = next(corner for corner in told["corners"] if corner["chosen"])
    assert chosen["cost_usd_per_h"]["total"] == pytest.approx(planned["cost_usd_per_h"]["total"], rel=1e-4)
    assert sorted(part["share"] for part in chosen["selections"]) == pytest.approx([0.4, 0.6])
    assert [corner["accuracy"] for corner in told["corners"]] == sorted(one["accuracy"] for one in told["corners"])
    assert told["current"]["accuracy"] == pytest.approx(86.0)
    assert told["rates"]["points"][0]["feasible"]
    assert "lowest cost by mean accuracy" in (project / "curve.svg").read_text(encoding="utf-8")
    for path in (project / "plans").iterdir():
        from_document(json.loads(path.read_text(encoding="utf-8")))
    text = " ".join(jellybean("frontier", str(project), *MIXED, "--plot", str(project / "curve.png")).stdout.split())
    assert "the plan of `jellybean plan` first: " in text
    assert "→ 60 % two + 40 % five" in text
    pairs = json.loads(jellybean("frontier", str(project), *MIXED, "--json", "--of", "accuracy,cost").stdout)
    assert [point["feasible"] for point in pairs["points"]] == [True] * len(pairs["points"])


@pytest.mark.slow
def test_a_calendar_of_mixtures(project: Path) -> None:
    (project / "day.csv").write_text("time_s,source,rate_per_s\n0,x,5\n36000,x,20\n72000,x,20\n", encoding="utf-8")
    arguments = (str(project), str(project / "day.csv"), *MIXED)
    options = ("--plot", str(project / "day.svg"), "--plans", str(project / "plans"))
    told = json.loads(jellybean("calendar", *arguments, "--json", *options).stdout)
    low, high = told["periods"]
    assert low["cost_usd_per_h"] < high["cost_usd_per_h"]
    assert sorted(part["share"] for part in high["selections"]) == pytest.approx([0.4, 0.6])
    assert "<svg" in (project / "day.svg").read_text(encoding="utf-8")
    assert len([*(project / "plans").iterdir()]) == 2
    assert "60 % of the requests get first two" in " ".join(jellybean("calendar", *arguments).stdout.split())


def replanned(project: Path, *options: str, start: str = "running.json") -> dict[str, Any]:
    """The decision as JSON."""
    told = jellybean("plan", str(project), "--from", str(project / start), "--json", "--dry-run", *options).stdout
    decision: dict[str, Any] = json.loads(told)["replan"]
    return decision


def words(text: str) -> str:
    """Without the ends of lines."""
    return " ".join(text.split())


BOXES = ("--set", "workers.box.count=4", "--set", "workers.box.sharing=exclusive", "--set", "operators.first.batch=1")
START = ("--set", "migration.start=0.05 USD")


def test_a_mixture_is_planned_again_from_the_running_one(project: Path) -> None:
    jellybean("plan", str(project), *BOXES, "--set", "slo.accuracy={mean: 86}")
    (project / "plan.json").rename(project / "running.json")
    same = replanned(project, *BOXES, *START, "--set", "slo.accuracy={mean: 86}")
    assert (same["verdict"], same["migration"]["loads"]) == ("keep", [])
    higher = replanned(project, *BOXES, *START, "--set", "slo.accuracy={mean: 92}")
    assert higher["verdict"] == "replace"
    assert higher["running"]["broken"] == ["mean accuracy 86 is below the target of 92"]
    assert [(load["variant"], load["replicas"]) for load in higher["migration"]["loads"]] == [("five", 1)]
    shares = {part["selection"]["first"]: part["share"] for part in higher["best"]["selections"]}
    assert shares == pytest.approx({"two": 0.2, "five": 0.8})
    assert higher["bound_usd"] == pytest.approx(higher["best"]["total_usd"], rel=1e-4)
    soft = replanned(project, *BOXES, *START, "--set", "slo.accuracy={mean: 92, penalty: 0.03 USD/h}")
    assert soft["running"]["penalty_usd_per_h"] == pytest.approx(0.18)
    assert soft["running"]["total_usd"] == pytest.approx(24 * (soft["running"]["cost_usd_per_h"]["total"] + 0.18))
    assert soft["best"]["penalty_usd_per_h"] == 0


def test_the_text_of_a_change_between_mixtures(project: Path) -> None:
    jellybean("plan", str(project), *BOXES, "--set", "slo.accuracy={mean: 86}")
    (project / "plan.json").rename(project / "running.json")
    start = ("--from", str(project / "running.json"), *BOXES, *START)
    kept = words(jellybean("plan", str(project), *start, "--set", "slo.accuracy={mean: 86}").stdout)
    assert "keep the running plan: no change was found that reduces the cost" in kept
    assert "60 % of the requests get first two" in kept
    soft = ("--set", "slo.accuracy={mean: 92, penalty: 0.03 USD/h}")
    changed = words(jellybean("plan", str(project), *start, *soft).stdout)
    assert "replace the running plan: this saves 13 % over 24 h" in changed
    assert "penalty USD/h" in changed
    assert "first, share of the requests: five 40 % -> 80 %, two 60 % -> 20 %" in changed
    assert "first five in box: 1 -> 2 workers, 8.00/s -> 16.0/s" in changed
    best = words(jellybean("plan", str(project), *start, "--set", "objective=mean_accuracy").stdout)
    assert "this removes 64 % of the errors (mean accuracy 86.00 -> 95.00) for 0.10 USD of migration" in best
    few = ("--set", "objective=mean_accuracy", "--set", "migration.at_least=80 %")
    assert "for 0.10 USD of migration, below 80 %" in words(jellybean("plan", str(project), *start, *few).stdout)
