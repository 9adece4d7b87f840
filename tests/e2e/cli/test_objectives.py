"""`objective: rate` and `objective: latency`: what a fleet can do at most, as a plan that other commands know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean_solver import from_document
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_scales_project(tmp_path / "scales")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "per_s"),
    [
        # 1 ms a request on the box, and on the server, each busy at most 0.8 of the time
        pytest.param((), 800.0, marks=pytest.mark.nightly),
        (("--set", "slo.accuracy=90"), 0.8 / 0.003),  # 3 ms on the box
        pytest.param(("--set", "limits.utilisation=0.5"), 500.0, marks=pytest.mark.nightly),
    ],
)
def test_the_highest_rates_are_what_the_workers_can_do(project: Path, options: tuple[str, ...], per_s: float) -> None:
    told = json.loads(jellybean("plan", str(project), "--set", "objective=rate", *options, "--json").stdout)
    plan = from_document(json.loads((project / "plan.json").read_text(encoding="utf-8")))
    assert plan.sources[0].rate_per_s == pytest.approx(per_s, rel=0.01)
    assert plan.sources[0].rate_per_s <= per_s * (1 + 1e-6)
    assert told["best"].startswith("highest rates: x ")
    assert "objective=cost" in plan.overrides
    again = jellybean("plan", str(project), *(part for text in plan.overrides for part in ("--set", text)), "--json")
    assert json.loads(again.stdout)["hash"] == told["hash"]
    assert "plan.json did not exist" not in jellybean("simulate", str(project)).stderr


def test_rates_that_are_too_high_are_lowered(project: Path) -> None:
    options = ("--set", "sources.x.rate=5000/s", "--set", "objective=rate")
    text = jellybean("plan", str(project), *options, "--dry-run").stdout
    assert "highest rates: x 79" in text or "highest rates: x 800/s" in text
    assert "no plan was found" in text


def test_rates_without_any_limit_are_told(project: Path) -> None:
    """Workers that take a microsecond, for a thousandth of a request per second."""
    zero = (
        "sources.x.rate=0.001/s",
        "profiles.operators.first.two.latency.box=1 us",
        "profiles.operators.triple.three.latency.server=1 us",
    )
    options = [part for text in (*zero, "objective=rate") for part in ("--set", text)]
    text = " ".join(jellybean("plan", str(project), *options, "--dry-run").stdout.split())
    assert "no limit on the rates was found up to" in text


@pytest.mark.slow
def test_the_least_latency_is_a_target_that_a_plan_keeps(project: Path) -> None:
    told = json.loads(jellybean("plan", str(project), "--set", "objective=latency", "--json").stdout)
    plan = from_document(json.loads((project / "plan.json").read_text(encoding="utf-8")))
    assert told["best"].startswith("least p99 latency that a plan was found for: ")
    (reached,) = told["latency_p99"]["reached"]
    assert reached["simulated_s"] <= reached["target_s"] == plan.slo.latency_p99_s


def test_what_nothing_can_carry_stays_infeasible(project: Path) -> None:
    done = jellybean("plan", str(project), "--set", "objective=rate", "--set", "slo.accuracy=99", status=3)
    assert "the target is 99" in done.stderr
