"""Ratios by variant, from documents to a plan, its simulation and its explanation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jellybean.cli import run
from jellybean.planning import PlanFile
from tests.support.simulated_queues import measured

WORKFLOW = """\
kind: Workflow
name: parcels
sources:
  camera: {tier: edge, rate: 12/s, message: 50 KiB}
operators:
  detect:
    inputs: [camera]
    variants: [small, large]
  read:
    inputs: [{from: detect, ratio: {small: 2, large: 4.5}}]
    variants: [cnn]
  label:
    inputs: [{from: read, gather: true}]
    variants: [rules]
slo: {accuracy: 90}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 6, price: 0.05 USD/h}
  gpu: {tier: cloud, count: 2, price: 0.50 USD/h}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB, bandwidth: 100 Mbit/s, latency: 20 ms}
"""
PROFILES = """\
kind: Profiles
operators:
  detect:
    small: {message: 10 KiB, latency: {box: 30 ms, gpu: 5 ms}, children: [0, 0, 100 %]}
    large: {message: 10 KiB, latency: {box: 60 ms, gpu: 9 ms}, children: [0, 0, 0, 0, 80 %, 20 %]}
  read:
    cnn: {message: 100 B, latency: {box: 20 ms, gpu: 4 ms}}
  label:
    rules: {latency: {box: 100 us, gpu: 50 us}}
accuracy:
  independent: {detect: {small: 91.5, large: 95}}
"""


@pytest.fixture
def parcels(tmp_path: Path) -> Path:
    for name, text in (("workflow", WORKFLOW), ("infrastructure", INFRASTRUCTURE), ("profiles", PROFILES)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def reading(directory: Path) -> tuple[float, float, float]:
    """Of plan.json: ratio into read, out of it, and its rate."""
    operators = {o["name"]: o for o in json.loads((directory / "plan.json").read_text(encoding="utf-8"))["operators"]}
    return (
        operators["read"]["inputs"][0]["ratio"],
        operators["label"]["inputs"][0]["ratio"],
        operators["read"]["rate_per_s"],
    )


@pytest.mark.parametrize(
    ("options", "variant", "ratio"),
    [
        ((), "small", 2.0),
        (("--set", "slo.accuracy=94"), "large", 4.5),
        (("--set", "slo.accuracy=94", "--set", "operators.read.inputs.0.ratio=measured"), "large", 4.2),
        (("--set", "slo.accuracy=94", "--set", "operators.read.inputs.0.ratio=3"), "large", 3.0),
    ],
)  # fmt: skip
def test_a_plan_and_its_simulation_count_the_rows_of_the_variant_chosen(
    parcels: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], variant: str, ratio: float
) -> None:
    plan = answered(capsys, "plan", str(parcels), *options)
    assert plan["status"] == "optimal"
    assert plan["selection"]["detect"] == variant
    assert reading(parcels) == pytest.approx((ratio, 1 / ratio, 12 * ratio))
    read = sum(place["rate_per_s"] for place in plan["placements"] if place["operator"] == "read")
    assert read == pytest.approx(12 * ratio)
    seen = measured(PlanFile(parcels).load().plan, duration_s=100.0).operators
    assert seen["read"].requests / seen["label"].requests == pytest.approx(ratio, rel=0.03)


def test_what_the_other_variant_costs_counts_its_rows(parcels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cheap = answered(capsys, "plan", str(parcels))
    dear = answered(capsys, "plan", str(parcels), "--set", "operators.detect.variants=[large]")
    explained = answered(capsys, "explain", str(parcels))
    (other,) = [choice for choice in explained["choices"] if choice["subject"] == "detect=large"]
    assert other["cost_usd_per_h"] == pytest.approx(dear["cost_usd_per_h"]["total"])
    assert other["delta_usd_per_h"] == pytest.approx(dear["cost_usd_per_h"]["total"] - cheap["cost_usd_per_h"]["total"])


def test_a_strange_variant_is_refused_at_its_line(parcels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (parcels / "workflow.yaml").write_text(WORKFLOW.replace("large: 4.5", "lerge: 4.5"), encoding="utf-8")
    assert run(["plan", str(parcels)]) == 2
    told = capsys.readouterr().err
    assert "workflow.yaml:10:" in told
    assert "operators.read.inputs.0.ratio.lerge: detect has no variant 'lerge'; did you mean 'large'?" in " ".join(
        told.split()
    )


def test_a_ratio_that_the_profiles_contradict_is_said_without_measuring(
    parcels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """large: 4.5 is written, and its children are 4.2 in the mean."""
    note = "read: workflow.yaml says ratio 4.5 from detect large, profiles.yaml has 4.2 children; rates and loads"
    for command in ("validate", "plan"):
        run([command, str(parcels)])
        printed = capsys.readouterr().err
        assert note in printed and "detect small" not in printed
        run([command, str(parcels), "--set", "operators.read.inputs.0.ratio=measured"])
        assert "says ratio" not in capsys.readouterr().err
