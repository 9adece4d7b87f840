"""Curves of projects whose plans mix variants or bear losses, on two machines that are planned in a moment."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from jellybean.cli import run
from jellybean.documents import load_project
from jellybean.frontier import (
    Frontier,
    find_frontier,
    frontier_text,
    pair_curve,
    save_plans,
    save_plot,
    to_json,
)
from jellybean.frontier.pairs import with_better_plans
from jellybean.planning import plan_project, predicted_p99
from jellybean_solver import CurvePoint, Figure, Plan, from_document, limited_work, selection_shares
from tests.support.scales_project import make_scales_project

# A box computes `five` (95 %) for 8 of the 20 requests per second, and `two` (80 %) for all of them.
EXCLUSIVE = ("workers.box.count=4", "workers.box.sharing=exclusive", "operators.first.batch=1")
MEAN = (*EXCLUSIVE, "slo.accuracy={mean: 86}")


@pytest.fixture
def scales(tmp_path: Path) -> Path:
    folder = make_scales_project(tmp_path / "scales")
    profiles = (folder / "profiles.yaml").read_text(encoding="utf-8")
    assert "box: 3 ms" in profiles
    (folder / "profiles.yaml").write_text(profiles.replace("box: 3 ms", "box: 100 ms"), encoding="utf-8")
    return folder


def found(folder: Path, *options: str, scales: tuple[float, ...] = (), points: int | None = 8) -> Frontier:
    rates = (lambda problem: scales) if scales else None
    return find_frontier(load_project(folder, options), rates=rates, points=points)


def text_of(frontier: Frontier) -> str:
    file = io.StringIO()
    Console(file=file, width=140).print(frontier_text(frontier))
    return file.getvalue()


def test_the_curve_is_that_of_the_plans_of_plan(scales: Path) -> None:
    curve = found(scales, *MEAN)
    assert curve.chosen is curve.curve.at_least(86.0)
    assert [curve.curve.points[0].x, curve.curve.points[-1].x] == pytest.approx([80.0, 95.0])
    for point in curve.curve.points:
        option = f"slo.accuracy={{mean: {point.x - 1e-6:.10g}}}"
        planned = plan_project(load_project(scales, (*EXCLUSIVE, option)), compare=False).plan
        assert planned is not None
        assert point.cost_usd_per_h == pytest.approx(planned.cost.total_usd_per_h, rel=1e-4)
    assert curve.single is not None
    assert [corner.x for corner in curve.single.points] == [80.0, 95.0], "one selection for all, beside it"


def test_the_table_says_who_gets_what(scales: Path) -> None:
    text = " ".join(text_of(found(scales, *MEAN, scales=(1.0, 9.0))).split())
    assert "lowest cost by mean accuracy: " in text
    assert "from 0.30 USD/h at 80.00 to 0.50 USD/h at 95.00; each point proven optimal" in text
    assert "86.00 0.40 USD/h 0.50 USD/h the plan of `jellybean plan` first: 80 % two + 20 % five →" in text
    assert "→ 60 % two + 40 % five" in text
    assert "lowest cost by rate of x at accuracy 86" in text
    assert "first: 60 % two + 40 % five, on edge: box, box" in text
    assert "60.0/s 0.60 USD/h highest feasible rate" in text


def test_json_has_shares_bounds_and_the_curve_of_one_selection(scales: Path) -> None:
    document = json.loads(json.dumps(to_json(found(scales, *MEAN, scales=(1.0,)))))
    chosen = next(corner for corner in document["corners"] if corner["chosen"])
    shares = {part["selection"]["first"]: part["share"] for part in chosen["selections"]}
    assert shares == pytest.approx({"two": 0.6, "five": 0.4})
    assert chosen["target"] <= 86.0 <= chosen["accuracy"] + 1e-6
    assert all(one["bound_usd_per_h"] <= one["cost_usd_per_h"]["total"] + 1e-9 for one in document["corners"])
    assert [one["accuracy"] for one in document["one_selection"]] == [80.0, 95.0]
    assert document["highest_bound"] == pytest.approx(95.0, abs=0.02)
    assert (document["exact"], document["finished"]) == (False, True)
    assert document["rates"]["points"][0]["selections"] == chosen["selections"]


def test_the_step_is_told(scales: Path) -> None:
    told = to_json(find_frontier(load_project(scales, MEAN), step=2.0))
    assert told["step"] == 2.0
    assert to_json(found(scales, *MEAN))["step"] is None


@pytest.mark.slow
def test_no_point_is_chosen_where_plan_finds_none(scales: Path) -> None:
    unmet = ("slo.accuracy={mean: 84}", "slo.latency_p99=90 ms")  # `five` alone takes 100 ms
    for objective in ("cost", "mean_accuracy"):
        curve = found(scales, *EXCLUSIVE, f"objective={objective}", *unmet, points=3)
        assert curve.curve.points, "the plan without `five` is in time"
        assert curve.chosen is None
        assert not any(corner["chosen"] for corner in to_json(curve)["corners"])
        assert all(curve.curve.ended)
        assert curve.curve.ended


@pytest.mark.slow
def test_the_point_of_a_soft_target_and_of_an_objective_is_the_plan_of_plan(scales: Path) -> None:
    soft = found(scales, *EXCLUSIVE, "slo.accuracy={mean: 90, penalty: 0.02 USD/h}")
    best = found(scales, *EXCLUSIVE, "objective=mean_accuracy", "slo.budget=0.45 USD/h")
    for curve in (soft, best):
        planned = plan_project(load_project(scales, curve_options(curve)), compare=False).plan
        assert curve.chosen is not None
        assert planned is not None
        assert planned.accuracy == pytest.approx(curve.chosen.x, abs=1e-3) == pytest.approx(86.0, abs=1e-3)
        assert "the plan of `jellybean plan`" in text_of(curve)
    assert best.curve.points[-1].breaches, "dearer than the budget"


def curve_options(curve: Frontier) -> tuple[str, ...]:
    if curve.moved.problem.slo.penalty_usd_per_h is not None:
        return (*EXCLUSIVE, "slo.accuracy={mean: 90, penalty: 0.02 USD/h}")
    return (*EXCLUSIVE, "objective=mean_accuracy", "slo.budget=0.45 USD/h")


@pytest.mark.slow
def test_with_a_p99_target_each_plan_meets_it_in_simulation(scales: Path) -> None:
    curve = found(scales, *MEAN, "slo.latency_p99=300 ms", "sources.x.arrivals=poisson", points=3)
    assert len(curve.curve.points) >= 2
    for point in curve.curve.points:
        assert point.breaches == ()
        assert point.plan is not None
        assert max(one.p99_s for one in predicted_p99(point.plan).values()) <= 0.3
        assert point.bound_usd_per_h <= point.cost_usd_per_h
    without = found(scales, *MEAN)
    for point in curve.curve.points:
        free = without.curve.at_least(point.x - 1e-3)
        assert free is not None
        assert point.cost_usd_per_h >= free.bound_usd_per_h - 1e-6


@pytest.mark.slow
def test_losses_are_borne_at_each_point_of_either_curve(scales: Path) -> None:
    spare = ("workers.server.count=2", "workers.box.count=8", "slo.survive=1 worker")
    single = found(scales, *EXCLUSIVE, *spare, scales=(1.0,))
    assert [(corner.x, round(corner.cost_usd_per_h, 2)) for corner in single.curve.points] == [(80, 0.6), (95, 0.8)]
    assert single.rates is not None
    assert single.rates.highest is not None
    mixed = found(scales, *MEAN, *spare)
    assert mixed.chosen is not None
    planned = plan_project(load_project(scales, (*MEAN, *spare)), compare=False).plan
    assert planned is not None
    assert mixed.chosen.cost_usd_per_h == pytest.approx(planned.cost.total_usd_per_h, rel=1e-4)
    assert mixed.chosen.plan is not None
    assert mixed.chosen.plan.slo.survives


@pytest.mark.slow
def test_a_loss_that_makes_answers_late_is_marked(scales: Path) -> None:
    options = ("workers.server.count=2", "workers.box.count=4", "slo.survive=1 worker", "sources.x.arrivals=poisson")
    curve = found(scales, *EXCLUSIVE, *options, "slo.latency_p99=260 ms")
    late = [corner for corner in curve.curve.points if any("without" in breach for breach in corner.breaches)]
    assert [corner.x for corner in late] == [95.0]
    assert "p99 latency would be" in late[0].breaches[0]


def test_the_current_plan_lies_on_the_curve(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [part for option in (*EXCLUSIVE, "slo.accuracy={mean: 84.5}") for part in ("--set", option)]
    assert run(["plan", str(scales), *given]) == 0
    capsys.readouterr()
    curve = found(scales, *MEAN)
    assert curve.current is not None
    assert curve.current.accuracy == pytest.approx(84.5, abs=1e-3)
    assert curve.current.dearer_usd_per_h == pytest.approx(0.0, abs=1e-5)


@pytest.mark.slow
def test_plans_and_pictures_are_written(scales: Path, tmp_path: Path) -> None:
    curve = found(scales, *MEAN, scales=(1.0,))
    paths = save_plans(curve, tmp_path / "plans")
    assert len(paths) == len(set(paths)) > len(curve.curve.points)
    plan: Plan = from_document(json.loads((tmp_path / "plans/accuracy-86.json").read_text(encoding="utf-8")))
    assert plan.slo.mean_accuracy == pytest.approx(86.0)
    assert sorted(part.share for part in selection_shares(plan)) == pytest.approx([0.4, 0.6])
    save_plot(curve, tmp_path / "curve.svg")
    save_plot(curve, tmp_path / "narrow.png", narrow=True)
    text = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    for words in ("lowest cost by mean accuracy", "one selection for all requests", "60 % two + 40 % five", "SLO 86"):
        assert words in text


@pytest.mark.slow
def test_time_is_kept(scales: Path) -> None:
    project = load_project(scales, (*MEAN, "slo.latency_p99=300 ms", "sources.x.arrivals=poisson"))
    with limited_work(3.0, time.monotonic):
        curve = find_frontier(project, points=20)
    assert not curve.curve.finished
    assert any("--time-limit allows more" in sentence for sentence in curve.curve.ended)


def test_what_no_plan_serves_is_no_curve(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [part for option in (*MEAN, "sources.x.rate=5000/s") for part in ("--set", option)]
    assert run(["frontier", str(scales), *options]) == 3
    told = capsys.readouterr()
    assert "no plan was found" in told.out


def pairs(folder: Path, x: Figure, y: Figure, *options: str, points: int = 3) -> Frontier:
    return pair_curve(load_project(folder, options), x, y, points=points, limit_s=30.0)


def figures(curve: Frontier, figure: Figure) -> list[float]:
    return [point.figures[figure] for point in curve.curve.points if point.plan is not None]


@pytest.mark.slow
def test_a_pair_with_the_accuracy_is_of_the_mean(scales: Path) -> None:
    curve = pairs(scales, Figure.ACCURACY, Figure.COST, *EXCLUSIVE, "slo.accuracy={mean: 86, least: 80}")
    assert [point.x for point in curve.curve.points] == pytest.approx([80.0, 87.5, 95.0])
    assert figures(curve, Figure.COST) == pytest.approx([0.3, 0.5, 0.5], abs=0.01)
    for point in curve.curve.points:
        assert point.plan is not None
        again = plan_project(load_project(scales, point.options), compare=False).plan
        assert again is not None
        assert again.slo.accuracy == 80.0
        assert again.cost.total_usd_per_h == pytest.approx(point.plan.cost.total_usd_per_h, rel=1e-4)


@pytest.mark.slow
def test_a_mixture_serves_more_the_less_accurate_it_is(scales: Path) -> None:
    curve = pairs(scales, Figure.ACCURACY, Figure.RATE, *MEAN)
    rates = figures(curve, Figure.RATE)
    assert len(rates) == 3
    assert rates == sorted(rates, reverse=True)


@pytest.mark.slow
def test_the_least_latency_of_a_mixture_is_found_and_its_plan_meets_it(scales: Path) -> None:
    curve = pairs(scales, Figure.LATENCY, Figure.COST, *MEAN, "sources.x.arrivals=poisson")
    assert len(curve.curve.points) == 3
    costs = figures(curve, Figure.COST)
    assert costs == sorted(costs, reverse=True)
    for point in curve.curve.points:
        assert point.plan is not None
        assert point.plan.accuracy == pytest.approx(86.0, abs=1e-3)
        assert max(one.p99_s for one in predicted_p99(point.plan).values()) <= point.x * 1.001


def point(x: float, cost: float | None, bound: float = 0.0) -> CurvePoint:
    plan = None if cost is None else object()
    return CurvePoint(x, plan, bound, figures={} if cost is None else {Figure.COST: cost})  # type: ignore[arg-type]


def test_a_point_takes_a_better_plan_of_a_harder_value_and_the_bounds_of_easier_ones() -> None:
    searched = [point(80.0, 3.0, 1.0), point(85.0, None), point(90.0, 2.0, 1.5), point(95.0, 4.0), point(99.0, None)]
    best = with_better_plans(searched, Figure.ACCURACY, Figure.COST)
    assert [(one.x, one.figures.get(Figure.COST)) for one in best] == [
        (80.0, 2.0), (85.0, 2.0), (90.0, 2.0), (95.0, 4.0), (99.0, None),
    ]  # fmt: skip
    assert [one.bound_usd_per_h for one in best] == [1.0, 1.0, 1.5, 1.5, 1.5]
    by_latency = with_better_plans(searched, Figure.LATENCY, Figure.COST)
    assert [one.figures.get(Figure.COST) for one in by_latency] == [3.0, 3.0, 2.0, 2.0, 2.0]
    assert [one.bound_usd_per_h for one in by_latency] == [1.5, 1.5, 1.5, 0.0, 0.0]
    assert with_better_plans(searched, Figure.RATE, Figure.COST) == searched


@pytest.mark.slow
def test_a_latency_curve_of_plans_that_bear_losses_starts_below_what_they_reach(scales: Path) -> None:
    spare = ("workers.server.count=2", "slo.survive=1 worker", "slo.accuracy=90", "sources.x.arrivals=poisson")
    curve = pairs(scales, Figure.LATENCY, Figure.COST, *EXCLUSIVE, *spare)
    assert len(curve.curve.points) == 3
    assert curve.curve.points[-1].plan is not None
    assert curve.curve.points[-1].plan.slo.survives
    assert curve.curve.points[0].x == pytest.approx(curve.curve.points[-1].x / 4)
    costs = figures(curve, Figure.COST)
    assert costs == sorted(costs, reverse=True)


@pytest.mark.slow
def test_a_mixture_that_is_too_slow_names_the_nearest_target_and_the_objective_finds_it(scales: Path) -> None:
    options = (*MEAN, "sources.x.arrivals=poisson")
    refused = plan_project(load_project(scales, (*options, "slo.latency_p99=5 ms")), compare=False)
    assert refused.plan is None
    assert refused.nearest_p99_s is not None
    assert any("nearest found: slo.latency_p99=" in reason for reason in refused.reasons)
    nearest = f"slo.latency_p99={1e3 * refused.nearest_p99_s:.6g} ms"
    assert plan_project(load_project(scales, (*options, nearest)), compare=False).plan is not None
    best = plan_project(load_project(scales, (*options, "objective=latency")), compare=False)
    assert best.plan is not None
    assert best.plan.slo.latency_p99_s == pytest.approx(refused.nearest_p99_s, rel=0.01)


FIVE_IS_LATE = (*EXCLUSIVE, "workers.box.count=2", "objective=mean_accuracy")  # 86 % without a p99 target; 100 ms


@pytest.mark.slow
def test_the_most_accurate_plan_in_time_leaves_a_slow_variant_out(scales: Path) -> None:
    planned = plan_project(load_project(scales, (*FIVE_IS_LATE, "slo.latency_p99=90 ms")), compare=False).plan
    assert planned is not None
    assert planned.accuracy == 80.0
    assert planned.certificate.bound == pytest.approx(86.0, abs=0.02)
    assert max(one.p99_s for one in predicted_p99(planned).values()) <= 0.09
    curve = found(scales, *FIVE_IS_LATE, "slo.latency_p99=90 ms", points=3)
    assert curve.chosen is not None
    assert curve.chosen.x == 80.0
    assert "80 is the highest mean accuracy found; no plan exceeds 86" in curve.curve.ended[0]


@pytest.mark.slow
def test_the_nearest_target_of_the_most_accurate_plan_is_that_of_the_fastest_variants(scales: Path) -> None:
    refused = plan_project(load_project(scales, (*FIVE_IS_LATE, "slo.latency_p99=1.5 ms")), compare=False)
    assert refused.plan is None
    assert refused.nearest_p99_s == pytest.approx(0.002, abs=1e-4), "1 ms on the box, 1 ms on the server"
    assert "nearest found: slo.latency_p99=2.00" in refused.reasons[-1]
    nearest = f"slo.latency_p99={1e3 * refused.nearest_p99_s:.6g} ms"
    assert plan_project(load_project(scales, (*FIVE_IS_LATE, nearest)), compare=False).plan is not None
