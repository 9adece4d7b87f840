"""Curves of two figures, on a shop that is planned in a moment."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from jellybean.cli import run
from jellybean.cli.planning.frontier import parse_pair
from jellybean.documents import load_any_project, load_project
from jellybean.frontier import Figure, ordered, pair_curve, pairs_json, save_pairs, save_pairs_plot
from jellybean.frontier.pairs import PairCurve
from jellybean.planning import plan_project, predicted_p99
from jellybean_solver import from_document, to_document
from tests.support.two_scales import make_two_scales
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = write_shops(tmp_path)
    text = INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", "")
    (folder / "infrastructure.yaml").write_text(text, encoding="utf-8")
    (folder / "stores.csv").unlink()
    return folder


def curve(shop: Path, x: Figure, y: Figure, *options: str, points: int = 3) -> PairCurve:
    found = pair_curve(load_project(shop, options), x, y, points=points)
    for point in found.points:
        if point.plan is not None:
            again = plan_project(load_project(shop, point.options), compare=False).plan
            assert again is not None
            assert again.cost.total_usd_per_h == pytest.approx(point.plan.cost.total_usd_per_h, rel=0.01)
    return found


def values(found: PairCurve, figure: Figure) -> list[float]:
    return [value for point in found.points if (value := point.figures.get(figure)) is not None]


@pytest.mark.slow
def test_more_accurate_plans_serve_lower_rates(shop: Path) -> None:
    found = curve(shop, Figure.ACCURACY, Figure.RATE, "slo.budget=1 USD/h")
    accuracies, rates = values(found, Figure.ACCURACY), values(found, Figure.RATE)
    assert len(rates) == len(found.points) >= 2
    assert accuracies == sorted(accuracies)
    assert all(one >= other * 0.99 for one, other in pairwise(rates))
    assert max(values(found, Figure.COST)) <= 1.0  # the other targets hold


@pytest.mark.slow
def test_higher_rates_cost_more_up_to_the_highest(shop: Path) -> None:
    found = curve(shop, Figure.RATE, Figure.COST, points=4)
    costs = values(found, Figure.COST)
    assert len(costs) == 4
    assert costs == sorted(costs)
    beyond = load_project(shop, (f"sources.camera.rate={found.points[-1].fixed * 1.02:g}/s",))
    assert plan_project(beyond, compare=False).plan is None


@pytest.mark.slow
def test_plans_of_a_latency_curve_keep_their_targets(shop: Path) -> None:
    found = curve(shop, Figure.LATENCY, Figure.COST)
    for point in found.points:
        if point.plan is not None:
            assert max(one.p99_s for one in predicted_p99(point.plan).values()) <= point.fixed * 1.001
    assert values(found, Figure.COST) == sorted(values(found, Figure.COST), reverse=True)


def test_a_point_without_a_plan_says_why(shop: Path) -> None:
    found = pair_curve(load_project(shop, ("slo.budget=0.01 USD/h",)), Figure.ACCURACY, Figure.LATENCY, points=2)
    assert all(point.plan is None and point.reasons for point in found.points)


@pytest.mark.slow
def test_json_plans_and_picture(shop: Path, tmp_path: Path) -> None:
    found = curve(shop, Figure.RATE, Figure.COST)
    document = json.loads(json.dumps(pairs_json(found)))
    assert (document["x"], document["y"]) == ("rate", "cost")
    assert [point["feasible"] for point in document["points"]] == [True] * 3
    assert save_pairs(found, tmp_path / "plans") == 3
    hashes = {
        to_document(from_document(json.loads(path.read_text(encoding="utf-8"))))["hash"]
        for path in (tmp_path / "plans").iterdir()
    }
    assert hashes == {point["hash"] for point in document["points"]}
    save_pairs_plot(found, tmp_path / "curve.svg")
    assert "lowest cost by rate" in (tmp_path / "curve.svg").read_text(encoding="utf-8")


def test_of_two_figures_one_is_fixed() -> None:
    assert parse_pair("cost, latency") == parse_pair("latency,cost") == (Figure.LATENCY, Figure.COST)
    assert ordered(Figure.RATE, Figure.ACCURACY) == (Figure.ACCURACY, Figure.RATE)
    for wrong in ("cost", "cost,cost", "cost,speed", "cost,latency,rate", ""):
        with pytest.raises(typer.BadParameter, match="write two of"):
            parse_pair(wrong)


def test_options_of_the_other_curves_are_refused(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frontier", str(shop), "--of", "rate,cost", "--rates", "1x"]) == 2
    assert "--of is a curve of its own" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_command_makes_a_curve_whatever_the_objective(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "objective=rate", "--points", "2", "--of", "rate,cost"]
    assert run(["frontier", str(shop), *options, "--json", "--plot", str(shop / "curve.png")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["cost"] for point in document["points"]] == sorted(point["cost"] for point in document["points"])
    assert (shop / "curve.png").stat().st_size > 0
    assert run(["frontier", str(shop), *options]) == 0
    assert "lowest cost by rate, 2 plans" in capsys.readouterr().out


@pytest.mark.slow
def test_several_workflows_have_a_curve_of_their_rates_together(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    found = pair_curve(load_any_project(folder, ("limits.budget=9 USD/h",)), Figure.RATE, Figure.COST, points=3)
    costs, rates = values(found, Figure.COST), values(found, Figure.RATE)
    assert len(costs) == 3
    assert costs == sorted(costs)
    plans = [point.plan for point in found.points if point.plan is not None]
    for plan, rate in zip(plans, rates, strict=True):
        assert [source.rate_per_s for source in plan.sources] == pytest.approx([rate, rate / 2], rel=1e-3)
    assert {option.partition("=")[0] for option in found.points[0].options} >= {
        "shop.sources.x.rate",
        "yard.sources.x.rate",
    }


@pytest.mark.slow
def test_one_workflow_is_moved_and_the_other_keeps_its_target(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    project = load_any_project(folder, ("yard.slo.accuracy=90",))
    found = pair_curve(project, Figure.ACCURACY, Figure.COST, points=3, workflows=("shop",))
    assert found.of == " of shop"
    assert values(found, Figure.ACCURACY) == pytest.approx([80, 95])
    plans = [point.plan for point in found.points if point.plan is not None]
    assert [one.accuracy for plan in plans for one in plan.workflows if one.name == "yard"] == [95, 95]
    assert values(found, Figure.COST) == sorted(values(found, Figure.COST))


@pytest.mark.slow
def test_several_workflows_have_curves_of_one_latency_for_all(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    found = pair_curve(load_any_project(folder), Figure.LATENCY, Figure.COST, points=2)
    for point in found.points:
        if point.plan is not None:
            assert max(one.p99_s for one in predicted_p99(point.plan).values()) <= point.fixed * 1.001
    assert values(found, Figure.COST) == sorted(values(found, Figure.COST), reverse=True)


@pytest.mark.slow
def test_time_that_ends_the_search_for_the_highest_rate_is_said(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    untimed = ("shop.slo.latency_p99=null", "yard.slo.latency_p99=null")
    found = pair_curve(load_any_project(folder, untimed), Figure.RATE, Figure.COST, points=2, limit_s=0.02)
    assert any("time ended" in note for note in found.notes)
    assert pairs_json(found)["notes"] == list(found.notes)


def test_an_unknown_workflow_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_two_scales(tmp_path / "two")
    assert run(["frontier", str(folder), "--of", "latency,cost", "--workflow", "shopp"]) == 2
    assert "no workflow is called shopp; did you mean 'shop'?" in " ".join(capsys.readouterr().err.split())
