"""Curves of two figures, on a shop that is planned in a moment."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from jellybean.cli import run
from jellybean.cli.planning.frontier import parse_pair
from jellybean.documents import Project, build_problem, load_any_project, load_project
from jellybean.frontier import Frontier, find_frontier, frontier_text, pair_curve, pairs, save_plans, save_plot, to_json
from jellybean.frontier.find import figures_of
from jellybean.planning import plan_project, predicted_p99
from jellybean.planning.planned import Planned
from jellybean.planning.searched_objectives import TINY_S
from jellybean_solver import Curve, CurvePoint, Figure, MovedTargets, OutOfTimeError, from_document, to_document
from tests.support.two_scales import make_two_scales
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = write_shops(tmp_path)
    text = INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", "")
    (folder / "infrastructure.yaml").write_text(text, encoding="utf-8")
    (folder / "stores.csv").unlink()
    return folder


def curve(shop: Path, x: Figure, y: Figure, *options: str, points: int = 3) -> Frontier:
    found = pair_curve(load_project(shop, options), x, y, points=points)
    for point in found.curve.points:
        if point.plan is not None:
            again = plan_project(load_project(shop, point.options), compare=False).plan
            assert again is not None
            assert again.cost.total_usd_per_h == pytest.approx(point.plan.cost.total_usd_per_h, rel=0.01)
    return found


def values(found: Frontier, figure: Figure) -> list[float]:
    return [point.figures[figure] for point in found.curve.points if point.plan is not None]


@pytest.mark.slow
def test_more_accurate_plans_serve_lower_rates(shop: Path) -> None:
    found = curve(shop, Figure.ACCURACY, Figure.RATE, "slo.budget=1 USD/h")
    accuracies, rates = values(found, Figure.ACCURACY), values(found, Figure.RATE)
    assert len(rates) == len(found.curve.points) >= 2
    assert accuracies == sorted(accuracies)
    assert all(one >= other * 0.99 for one, other in pairwise(rates))
    assert max(values(found, Figure.COST)) <= 1.0  # the other targets hold


@pytest.mark.slow
def test_higher_rates_cost_more_up_to_the_highest(shop: Path) -> None:
    found = curve(shop, Figure.RATE, Figure.COST, points=4)
    costs = values(found, Figure.COST)
    assert len(costs) == 4
    assert costs == sorted(costs)
    beyond = load_project(shop, (f"sources.camera.rate={found.curve.points[-1].x * 1.02:g}/s",))
    assert plan_project(beyond, compare=False).plan is None


@pytest.mark.slow
def test_plans_of_a_latency_curve_keep_their_targets(shop: Path) -> None:
    found = curve(shop, Figure.LATENCY, Figure.COST)
    for point in found.curve.points:
        if point.plan is not None:
            assert max(one.p99_s for one in predicted_p99(point.plan).values()) <= point.x * 1.001
    assert values(found, Figure.COST) == sorted(values(found, Figure.COST), reverse=True)


def test_a_point_without_a_plan_says_why(shop: Path) -> None:
    found = pair_curve(load_project(shop, ("slo.budget=0.01 USD/h",)), Figure.ACCURACY, Figure.LATENCY, points=2)
    assert all(point.plan is None and point.reasons for point in found.curve.points)


@pytest.mark.slow
def test_json_plans_and_picture(shop: Path, tmp_path: Path) -> None:
    found = curve(shop, Figure.RATE, Figure.COST)
    document = json.loads(json.dumps(to_json(found)))
    assert (document["x"], document["y"]) == ("rate", "cost")
    assert [point["feasible"] for point in document["points"]] == [True] * 3
    assert len(save_plans(found, tmp_path / "plans")) == 3
    hashes = {
        to_document(from_document(json.loads(path.read_text(encoding="utf-8"))))["hash"]
        for path in (tmp_path / "plans").iterdir()
    }
    assert hashes == {point["hash"] for point in document["points"]}
    save_plot(found, tmp_path / "curve.svg")
    assert "lowest cost by rate of camera" in (tmp_path / "curve.svg").read_text(encoding="utf-8")


def test_two_figures_are_named() -> None:
    assert parse_pair("cost, latency") == (Figure.COST, Figure.LATENCY)
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
    assert "lowest cost by rate of camera at accuracy 80: 2 points" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_several_workflows_have_a_curve_of_their_rates_together(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    found = pair_curve(load_any_project(folder, ("limits.budget=9 USD/h",)), Figure.RATE, Figure.COST, points=3)
    costs, rates = values(found, Figure.COST), values(found, Figure.RATE)
    assert len(costs) == 3
    assert costs == sorted(costs)
    plans = [point.plan for point in found.curve.points if point.plan is not None]
    for plan, rate in zip(plans, rates, strict=True):
        assert [source.rate_per_s for source in plan.sources] == pytest.approx([rate, rate / 2], rel=1e-3)
    assert {option.partition("=")[0] for option in found.curve.points[0].options} >= {
        "shop.sources.x.rate",
        "yard.sources.x.rate",
    }


@pytest.mark.slow
def test_one_workflow_is_moved_and_the_other_keeps_its_target(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    project = load_any_project(folder, ("yard.slo.accuracy=90",))
    found = pair_curve(project, Figure.ACCURACY, Figure.COST, points=3, workflows=("shop",))
    assert found.moved.label == " of shop"
    assert values(found, Figure.ACCURACY) == pytest.approx([80, 95])
    plans = [point.plan for point in found.curve.points if point.plan is not None]
    assert [one.accuracy for plan in plans for one in plan.workflows if one.name == "yard"] == [95, 95]
    assert values(found, Figure.COST) == sorted(values(found, Figure.COST))


@pytest.mark.slow
def test_several_workflows_have_curves_of_one_latency_for_all(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    found = pair_curve(load_any_project(folder), Figure.LATENCY, Figure.COST, points=2)
    for point in found.curve.points:
        if point.plan is not None:
            assert max(one.p99_s for one in predicted_p99(point.plan).values()) <= point.x * 1.001
    assert values(found, Figure.COST) == sorted(values(found, Figure.COST), reverse=True)


@pytest.mark.slow
def test_time_that_ends_the_search_for_the_highest_rate_is_said(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    untimed = ("shop.slo.latency_p99=null", "yard.slo.latency_p99=null")
    found = pair_curve(load_any_project(folder, untimed), Figure.RATE, Figure.COST, points=2, limit_s=0.02)
    assert any("time ended" in note for note in found.notes)
    assert to_json(found)["notes"] == list(found.notes)


def test_an_unknown_workflow_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_two_scales(tmp_path / "two")
    assert run(["frontier", str(folder), "--of", "latency,cost", "--workflow", "shopp"]) == 2
    assert "no workflow is called shopp; did you mean 'shop'?" in " ".join(capsys.readouterr().err.split())


def words(curve: Frontier) -> str:
    file = io.StringIO()
    Console(file=file, width=140).print(frontier_text(curve))
    return " ".join(file.getvalue().split())


@pytest.mark.parametrize("y", [Figure.COST, Figure.RATE])
def test_a_point_far_from_its_optimum_says_so(shop: Path, tmp_path: Path, y: Figure) -> None:
    plan = plan_project(load_project(shop), compare=False).plan
    assert plan is not None
    moved = MovedTargets.of(build_problem(load_project(shop)))
    point = CurvePoint(80.0, plan, plan.cost.total_usd_per_h / 4, figures=figures_of(plan, moved))
    found = Frontier(moved, Curve(Figure.ACCURACY, (point,), True, (), y=y))
    assert "gap changes" in words(found)
    assert "75.00%" in words(found)
    assert to_json(found)["points"][0]["gap"] == pytest.approx(0.75)
    save_plot(found, tmp_path / "curve.svg")
    assert "75.00%" in (tmp_path / "curve.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_rates_of_one_workflow_leave_those_of_the_others(tmp_path: Path) -> None:
    project = load_any_project(
        make_two_scales(tmp_path / "two"), ("shop.slo.latency_p99=null", "yard.slo.latency_p99=null")
    )
    found = find_frontier(project, rates=lambda first: (6.0 / first, 12.0 / first, 2000.0), workflows=("yard",))
    assert found.rates is not None
    rates = [{one.name: one.rate_per_s for one in point.plan.sources} for point in found.rates.points if point.plan]
    assert [one["yard/x"] for one in rates[:2]] == pytest.approx([6.0, 12.0])
    assert {one["shop/x"] for one in rates} == {12.0}
    assert [point["rate_per_s"]["shop/x"] for point in to_json(found)["rates"]["points"]] == [12.0] * len(
        found.rates.points
    )
    assert found.rates.highest is not None
    save_plot(found, tmp_path / "curve.svg")
    picture = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "rate of yard/x" in picture
    assert "shop/x" not in picture
    assert not re.search(r"(no plan|end of the curve): *(?=$|\n)", words(found))


def test_plans_of_the_ends_are_points_where_time_ended_the_searches_between(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_ends_only(asked: Project, **limits: Any) -> Planned:
        p99_s = asked.workflow.slo.latency_p99_s
        if p99_s is not None and p99_s > TINY_S:
            raise OutOfTimeError("no time")
        return plan_project(asked, **limits)

    monkeypatch.setattr(pairs, "plan_project", plan_ends_only)
    found = pair_curve(load_project(shop, ()), Figure.LATENCY, Figure.COST, points=3).curve.points
    cheapest = plan_project(load_project(shop, ()), compare=False).plan
    assert cheapest is not None and found[-1].plan is not None
    assert found[-1].plan.cost == cheapest.cost
    assert all(point.plan is not None or not point.finished for point in found)
