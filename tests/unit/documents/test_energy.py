"""Energy and carbon in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import build_problem, load_project
from jellybean_solver import Objective
from tests.unit.documents.conftest import Break

POWER = """\
  box: {tier: edge, count: 4, price: 0.05 USD/h, memory: 4 GiB, power: 15 W}
  gpu: {tier: cloud, count: 2, price: 0.50 USD/h, type: t4, power: 0.25 kW, carbon: 40 g/kWh}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB, bandwidth: 100 Mbit/s, latency: 20 ms, energy: 0.02 kWh/GiB}
carbon: {intensity: 400 g/kWh}
"""


@pytest.fixture
def powered(folder: Path) -> Path:
    path = folder / "infrastructure.yaml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:3], POWER, lines[-1]]), encoding="utf-8")
    return folder


def test_workers_and_links_use_energy_and_carbon(powered: Path) -> None:
    problem = build_problem(load_project(powered))
    assert problem.pool_by_name["box"].uses == {"energy": 15.0, "carbon": pytest.approx(6.0)}
    assert problem.pool_by_name["gpu"].uses == {"energy": 250.0, "carbon": pytest.approx(10.0)}
    assert problem.links[0].uses == {"energy": pytest.approx(20.0), "carbon": pytest.approx(8.0)}
    assert problem.pool_by_name["box"].price_usd_per_h == 0.05


def test_their_prices_are_part_of_the_price(powered: Path) -> None:
    problem = build_problem(load_project(powered, ("energy.price=0.2 USD/kWh", "carbon.price=100 USD/t")))
    assert problem.pool_by_name["box"].price_usd_per_h == pytest.approx(0.05 + 0.003 + 0.0006)
    assert problem.links[0].price_usd_per_gib == pytest.approx(0.10 + 0.004 + 0.0008)


def test_limits_are_of_all_workflows(powered: Path) -> None:
    assert build_problem(load_project(powered, ("energy.limit=1 kW", "carbon.limit=200 g/h"))).most == {
        "energy": 1000.0,
        "carbon": 200.0,
    }


def test_the_objective_counts_the_use_at_its_price(powered: Path) -> None:
    plain, priced = (
        build_problem(load_project(powered, ("objective=energy", *options)))
        for options in ((), ("energy.price=0.2 USD/kWh",))
    )
    assert plain.counts is priced.counts is Objective.ENERGY
    assert plain.pool_by_name["box"].price_usd_per_h == pytest.approx(0.015)  # 1 USD/kWh
    assert priced.pool_by_name["box"].price_usd_per_h == pytest.approx(0.003)


@pytest.mark.parametrize("override", ["objective=energy", "energy.limit=1 kW", "energy.price=0.1 USD/kWh"])
def test_what_counts_energy_needs_the_power_of_all_workers(breaking: Break, override: str) -> None:
    problems = breaking("infrastructure.yaml", "memory: 4 GiB}", "memory: 4 GiB, power: 15 W}", overrides=(override,))
    (problem,) = problems
    assert problem.path == "workers.gpu"
    assert problem.message.startswith("plans count energy, which these workers do not state")
    assert problem.hint == "write {power: 120 W, carbon: 350 g/kWh}, or 0 W"


def test_what_counts_carbon_needs_an_intensity(breaking: Break) -> None:
    problems = breaking("infrastructure.yaml", "memory: 4 GiB}", "memory: 4 GiB, power: 15 W}", ("objective=carbon",))
    assert problems[0].path == "workers.box"
    assert problems[0].message.startswith("plans count carbon")


def test_power_has_a_unit(breaking: Break) -> None:
    (problem,) = breaking("infrastructure.yaml", "memory: 4 GiB}", "power: 15}")
    assert problem.path == "workers.box.power"
    assert problem.hint == "give a unit: 15 W or 15 kW"
