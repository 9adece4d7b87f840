"""`objective: rate` and `objective: latency`: what a fleet can do at most, as a plan that other commands know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.quantities import DURATION, parse_quantity
from jellybean_solver import from_document
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project
from tests.support.two_scales import make_two_scales


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


TWO_STEPS = {
    "workflow.yaml": """\
kind: Workflow
name: steps
sources:
  camera: {tier: edge, rate: 4/s, message: 50 KiB}
operators:
  detect: {inputs: [camera], variants: [small, large]}
  read: {inputs: [detect], variants: [net, big]}
objective: latency
slo: {accuracy: {mean: 87, least: 80}}
""",
    "infrastructure.yaml": """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 4, price: 0.05 USD/h}
  gpu: {tier: cloud, count: 4, price: 0.50 USD/h}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB, bandwidth: 100 Mbit/s, latency: 10 ms}
""",
    "profiles.yaml": """\
kind: Profiles
hop: 1 ms
operators:
  detect:
    small: {message: 4 KiB, latency: {box: 60 ms, gpu: 8 ms}}
    large: {message: 4 KiB, latency: {box: 150 ms, gpu: 15 ms}}
  read:
    net: {latency: {box: 50 ms, gpu: 6 ms}}
    big: {latency: {box: 120 ms, gpu: 12 ms}}
accuracy:
  end_to_end:
    - {selection: {detect: small, read: net}, accuracy: 82}
    - {selection: {detect: small, read: big}, accuracy: 86}
    - {selection: {detect: large, read: net}, accuracy: 88}
    - {selection: {detect: large, read: big}, accuracy: 93}
""",
}


@pytest.mark.slow
def test_the_least_latency_of_mixtures_is_near_that_of_one_variant_for_all(tmp_path: Path) -> None:
    """The cheapest mixture waits on slow boxes, and changing it step by step ends at 368 ms."""
    for name, text in TWO_STEPS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = {}
    for accuracy in ("slo.accuracy={mean: 87}", "slo.accuracy=87"):
        told = json.loads(jellybean("plan", str(tmp_path), "--set", accuracy, "--dry-run", "--json").stdout)
        (target,) = (one for one in told["overrides"] if one.startswith("slo.latency_p99="))
        found[accuracy] = parse_quantity(DURATION, target.partition("=")[2])
    mixed, single = found.values()
    assert mixed <= 1.2 * single


def test_the_highest_rates_of_several_workflows_are_found_by_one_factor(tmp_path: Path) -> None:
    """A server takes 10 ms for each request of both, two of them 160/s at 0.8: 8.9 times the 12/s and 6/s."""
    folder = make_two_scales(tmp_path / "two")
    options = [part for name in ("shop", "yard") for part in ("--set", f"{name}.objective=rate")]
    options += [part for name in ("shop", "yard") for part in ("--set", f"{name}.slo.latency_p99=null")]
    told = json.loads(jellybean("plan", str(folder), *options, "--set", "workers.box.count=9", "--json").stdout)
    plan = from_document(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    rates = {source.name: source.rate_per_s for source in plan.sources}
    assert rates == pytest.approx({"shop/x": 12 * 160 / 18, "yard/x": 6 * 160 / 18}, rel=0.01)
    assert told["best"].startswith("highest rates: shop/x 10")
    again = jellybean("plan", str(folder), *(part for text in plan.overrides for part in ("--set", text)), "--json")
    assert json.loads(again.stdout)["hash"] == told["hash"]


def test_workflows_of_unlike_objectives_are_refused(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    text = jellybean("plan", str(folder), "--set", "shop.objective=rate", status=2).stderr
    assert "one objective, not several (shop rate, yard cost)" in " ".join(text.split())


def test_the_highest_mean_over_workflows_upgrades_the_one_with_fewer_requests(tmp_path: Path) -> None:
    """A box takes 16 ms for a request, or 24 ms for a better answer: 0.8 s of each second are too few for all 39.6."""
    folder = make_two_scales(tmp_path / "two")
    options = ["workers.box.count=1", "shop.sources.x.rate=26.4/s", "yard.sources.x.rate=13.2/s"]
    for name in ("shop", "yard"):
        options += [f"{name}.slo.latency_p99=null", f"{name}.objective=mean_accuracy"]
    given = [part for option in options for part in ("--set", option)]
    told = json.loads(jellybean("plan", str(folder), *given, "--json").stdout)
    assert {name: one["accuracy"] for name, one in told["workflows"].items()} == {"shop": 80.0, "yard": 95.0}
    assert told["certificate"]["of"] == "mean_accuracy"
    assert told["certificate"]["objective"] == pytest.approx(87.5)
    text = " ".join(jellybean("plan", str(folder), *given, "--dry-run").stdout.split())
    assert "87.50 in the mean of the workflows" in text
    explained = json.loads(jellybean("explain", str(folder), *given, "--json").stdout)
    assert explained["status"] == "optimal"
    again = json.loads(jellybean("plan", str(folder), *given, "--from", str(folder / "plan.json"), "--json").stdout)
    assert again["replan"]["verdict"] == "keep", again["replan"]["why"]


@pytest.mark.slow
def test_the_largest_latency_of_several_workflows_is_the_least(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    same = ("--set", "shop.objective=latency", "--set", "yard.objective=latency")
    told = json.loads(jellybean("plan", str(folder), *same, "--dry-run", "--json").stdout)
    targets = {one.partition("=")[2] for one in told["overrides"] if ".slo.latency_p99=" in one}
    assert len(targets) == 1
    least_s = parse_quantity(DURATION, targets.pop())
    lower = [part for name in ("shop", "yard") for part in ("--set", f"{name}.slo.latency_p99={0.9 * least_s:.4f} s")]
    jellybean("plan", str(folder), *lower, "--dry-run", status=3)
