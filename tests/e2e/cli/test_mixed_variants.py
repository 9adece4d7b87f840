"""A plan that mixes variants, from the documents to the answers of real agents."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving.client import Client
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


def test_the_most_accurate_plan_is_told_with_how_far_it_may_be_from_the_best(project: Path) -> None:
    options = (*MIXED[:4], "--set", "objective=mean_accuracy", "--set", "slo.latency_p99=2 s")
    told = json.loads(jellybean("plan", str(project), "--dry-run", "--json", *options).stdout)
    assert told["certificate"]["of"] == "mean_accuracy"
    assert told["accuracy"] == pytest.approx(86.0, abs=0.01)
    assert told["certificate"]["bound"] == pytest.approx(86.0, abs=0.01)


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
    assert "minimum cost by mean accuracy" in (project / "curve.svg").read_text(encoding="utf-8")
    for path in (project / "plans").iterdir():
        from_document(json.loads(path.read_text(encoding="utf-8")))
    text = " ".join(jellybean("frontier", str(project), *MIXED, "--plot", str(project / "curve.png")).stdout.split())
    assert "cheapest for a mean of 86 60 %: first two 40 %: first five" in text
    pairs = json.loads(jellybean("frontier", str(project), *MIXED, "--json", "--of", "accuracy,cost").stdout)
    assert [point["feasible"] for point in pairs["points"]] == [True] * len(pairs["points"])


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


def test_explain_knows_one_selection_only_and_says_so(project: Path) -> None:
    done = jellybean("explain", str(project), *MIXED, status=2)
    assert "does not know plans that mix variants, which slo.accuracy.mean asks for" in " ".join(done.stderr.split())
