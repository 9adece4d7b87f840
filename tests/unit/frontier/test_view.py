from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from PIL import Image
from rich.console import Console

from jellybean.cli.planning.frontier import parse_rates
from jellybean.errors import JellyBeanError
from jellybean.frontier import Frontier, frontier_text, save_plans, save_plot, to_json
from jellybean.frontier.changes import changes
from jellybean.frontier.find import Current, with_figures
from jellybean_solver import (
    Curve,
    EndToEnd,
    Figure,
    MovedTargets,
    Problem,
    Slo,
    cost_accuracy,
    cost_rate,
    from_document,
)
from tests.support.small_problems import box, gpu, operator, problem, variant
from tests.vqa_medium import vqa_problem


def found(case: Problem, *, scales: tuple[float, ...] = (), current: Current | None = None) -> Frontier:
    moved = MovedTargets.of(case)
    curve = with_figures(cost_accuracy(case), moved)
    rates = with_figures(cost_rate(case, scales), moved) if scales else None
    return Frontier(moved, curve, rates, current=current, wanted=case.slo.accuracy or 0.0, elapsed_s=0.5)


def many(levels: int, slo: Slo | None = None) -> Problem:
    """As many corners as levels: variant i needs i boxes and has accuracy i."""
    variants = [variant(f"v{i}", {"box": 0.1 * i}) for i in range(1, levels + 1)]
    table = {(f"v{i}",): float(i) for i in range(1, levels + 1)}
    pools = [box(levels), gpu()]
    return problem(operator("o", ["camera"], *variants), pools=pools, accuracy=EndToEnd(("o",), table), slo=slo)


def _printed(frontier: Frontier) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(frontier_text(frontier))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_table_says_what_changes_and_which_corner_is_chosen() -> None:
    text = _printed(found(many(3, Slo(accuracy=1.5, budget_usd_per_h=2.5)), scales=(1.0, 9.0)))

    assert "lowest cost by accuracy: 3 points, from 1.00 USD/h at 1.00 to 3.00 USD/h at 3.00; exact" in text
    assert "o: v1, on edge: box" in text
    assert "o: v1 → v2, now on edge: box x 2" in text
    assert text.count("the plan of `jellybean plan`") == 1
    assert text.count("misses a target: budget: 3.00 USD/h") == 2, "the last corner and the highest rate"
    assert "3 is the best that the profile knows" in text
    assert "no plan: capacity" in text
    assert "highest feasible rate" in text


def test_a_curve_without_proof_shows_gaps() -> None:
    frontier = found(many(2))
    points = tuple(replace(point, bound_usd_per_h=0.5) for point in frontier.curve.points)
    text = _printed(replace(frontier, curve=replace(frontier.curve, points=points)))

    assert "not proven optimal, gaps of at most 75.00%" in " ".join(text.split())
    assert "50.00%" in text
    assert "75.00%" in text


def test_json_has_plans_and_proofs() -> None:
    document = to_json(found(many(2, Slo(accuracy=2.0)), scales=(1.0, 9.0)))

    first, second = document["corners"]
    assert (first["accuracy"], first["cost_usd_per_h"]["total"], first["gap"]) == (1.0, 1.0, 0.0)
    assert (first["chosen"], second["chosen"]) == (False, True)
    assert second["selection"] == {"o": "v2"}
    assert second["placements"][0]["count"] == 2
    assert second["changes"][0]["variant_before"] == "v1"
    assert document["exact"]
    assert [point["feasible"] for point in document["rates"]["points"]] == [True, False]
    assert document["rates"]["points"][0]["highest"]
    assert document["rates"]["points"][0]["rate_per_s"] == {"camera": 10.0}


@pytest.mark.slow
def test_two_equal_plans_have_no_changes() -> None:
    plan = cost_accuracy(vqa_problem()).points[0].plan

    assert plan is not None
    assert changes(plan, plan) == ()
    assert len(changes(None, plan)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_picture_is_drawn(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"curve.{suffix}"
    current = Current(2.0, 2.4, 0.4)
    slo = Slo(accuracy=1.5, budget_usd_per_h=2.5)
    save_plot(found(many(3, slo), scales=(0.5, 1.0), current=current), path)

    if suffix == "png":
        with Image.open(path) as image:
            assert image.size[0] > 1000
    elif suffix == "svg":
        text = path.read_text(encoding="utf-8")
        for words in ("hand-made", "SLO 1.5", "budget", "2.50 USD/h", "current plan", "misses a target", "now 10.0/s"):
            assert words in text
        again = tmp_path / "again.svg"
        save_plot(found(many(3, slo), scales=(0.5, 1.0), current=current), again)
        assert again.read_text(encoding="utf-8") == text
    else:
        assert path.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("levels", [1, 34])
def test_few_and_many_corners_are_drawn(levels: int, tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    save_plot(found(many(levels, Slo(accuracy=levels - 0.5))), path)

    text = path.read_text(encoding="utf-8")
    assert "the plan of `jellybean plan`" in text
    assert text.count("o v") <= 20, "every second one of many"


def test_a_picture_of_another_format_or_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JellyBeanError, match="svg"):
        save_plot(found(many(1)), tmp_path / "curve.txt")
    empty = Frontier(MovedTargets.of(many(1)), Curve(Figure.ACCURACY, (), True, ("why",)))
    with pytest.raises(JellyBeanError, match="no plan"):
        save_plot(empty, tmp_path / "curve.svg")


def test_every_plan_is_written_under_a_name_of_its_own(tmp_path: Path) -> None:
    frontier = found(many(2), scales=(0.5, 9.0))
    paths = save_plans(frontier, tmp_path / "plans")

    assert [path.name for path in paths[:3]] == ["accuracy-1.json", "accuracy-2.json", "rate-5.json"]
    assert from_document(json.loads(paths[1].read_text(encoding="utf-8"))) == frontier.curve.points[1].plan
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("text", "scales"),
    [
        ("10,20, 40", [1.0, 2.0, 4.0]),
        ("20/s,600/min", [2.0, 1.0]),
        ("0.5x,2x", [0.5, 2.0]),
        ("10..80", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ("1x..8x,100", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0]),
    ],
)
def test_rates_are_absolute_or_multiples(text: str, scales: list[float]) -> None:
    assert parse_rates(text)(10.0) == pytest.approx(scales)


@pytest.mark.parametrize(
    "text",
    ["", ",", "ten", "0", "-5", "1e999", "nan", "5..", "1..2..3", "80..10", "1x..20", "5 USD/h", "x", "..", "1x,"],
)
def test_wrong_rates_are_bad_input(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--rates"):
        parse_rates(text)


def test_too_many_rates_are_bad_input() -> None:
    with pytest.raises(typer.BadParameter, match="the limit is 200"):
        parse_rates(",".join(["1..2"] * 50))
