"""Curves of the least cost over limits of energy and carbon, against all numbers of workers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import typer

from jellybean.cli import run
from jellybean.cli.planning.frontier import parse_pair
from jellybean.documents import load_project
from jellybean.frontier import frontier_text, pair_curve, save_plot, to_json
from jellybean_solver import Figure

RATE_PER_S = 23.0
BOX, ECO, HUB = (5.0, 0.10, 100.0, 400.0), (4.0, 0.25, 30.0, 400.0), (6.0, 0.40, 60.0, 50.0)  # 1/s, USD/h, W, g/kWh
COUNTS = (6, 6, 2)

DOCUMENTS = {
    "workflow": """\
kind: Workflow
name: watch
sources: {camera: {tier: edge, rate: 23/s, message: 1 KiB}}
operators: {detect: {inputs: [camera], variants: [small]}}
""",
    "infrastructure": """\
kind: Infrastructure
tiers: [edge]
workers:
  box: {tier: edge, count: 6, price: 0.10 USD/h, power: 100 W}
  eco: {tier: edge, count: 6, price: 0.25 USD/h, power: 30 W}
  hub: {tier: edge, count: 2, price: 0.40 USD/h, power: 60 W, carbon: 50 g/kWh}
carbon: {intensity: 400 g/kWh}
limits: {utilisation: 1}
""",
    "profiles": """\
kind: Profiles
operators: {detect: {small: {latency: {box: 200 ms, eco: 250 ms, hub: 166.6666 ms}}}}
""",
}


@pytest.fixture
def watch(tmp_path: Path) -> Path:
    for name, text in DOCUMENTS.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def fleets() -> list[tuple[float, dict[Figure, float]]]:
    """The cost and the uses of all numbers of workers that are enough for the rate."""
    found = []
    for counts in itertools.product(*(range(most + 1) for most in COUNTS)):
        of = list(zip(counts, (BOX, ECO, HUB), strict=True))
        if sum(count * pool[0] for count, pool in of) >= RATE_PER_S - 1e-3:
            watts = sum(count * pool[2] for count, pool in of)
            grams = sum(count * pool[2] * pool[3] / 1000 for count, pool in of)
            cost = sum(count * pool[1] for count, pool in of)
            found.append((cost, {Figure.ENERGY: watts, Figure.CARBON: grams}))
    return found


@pytest.mark.parametrize("resource", [Figure.ENERGY, Figure.CARBON])
def test_each_point_costs_the_least_within_its_limit(watch: Path, tmp_path: Path, resource: Figure) -> None:
    result = pair_curve(load_project(watch, ()), Figure.COST, resource, points=5)
    points, known = result.curve.points, fleets()
    least, most = min(uses[resource] for _, uses in known), min(known, key=lambda one: one[0])[1][resource]
    assert [points[0].x, points[-1].x] == pytest.approx([least, most])
    assert len(points) == 5
    for point in points:
        assert point.plan is not None
        assert point.figures[resource] <= point.x * (1 + 1e-3)  # limits in options are rounded up
        limit = point.x * (1 + 1e-3)
        assert point.cost_usd_per_h == pytest.approx(min(cost for cost, uses in known if uses[resource] <= limit))
        assert point.gap == pytest.approx(0.0, abs=1e-4)
    costs = [point.cost_usd_per_h for point in points]
    assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]
    document = to_json(result)
    assert (document["x"], document["y"]) == (resource, "cost")
    assert document["points"][0][resource] == pytest.approx(points[0].figures[resource])
    save_plot(result, tmp_path / "curve.svg")
    assert f"lowest cost by {resource}" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert frontier_text(result)


def test_energy_and_carbon_have_curves_with_cost() -> None:
    assert parse_pair("cost,carbon") == (Figure.COST, Figure.CARBON)
    with pytest.raises(typer.BadParameter, match="curves with cost"):
        parse_pair("energy,latency")


def test_a_project_that_uses_no_energy_says_what_is_missing(watch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = watch / "infrastructure.yaml"
    lines = path.read_text(encoding="utf-8").replace(", power: 100 W", "").replace(", power: 30 W", "")
    path.write_text(lines.replace(", power: 60 W, carbon: 50 g/kWh", ""), encoding="utf-8")
    assert run(["frontier", str(watch), "--of", "energy,cost"]) != 0
    assert "energy" in " ".join(capsys.readouterr().err.split())
