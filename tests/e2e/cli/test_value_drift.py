"""Inputs that are unlike the held-out ones are named, and answers unlike those before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jellybean.ledger import Figure, Port, opened_ledger
from jellybean.ledger.queries.questions import last_plan
from jellybean.ledger.value_figures import value_lines
from jellybean.serving import Client
from tests.support.command_line import jellybean
from tests.support.tiny_models import scale

pytestmark = pytest.mark.slow

WORKFLOW = """\
kind: Workflow
name: double
sources:
  x: {tier: edge, rate: 20/s, message: 16 B, inputs: data/heldout.npz#x}
operators:
  double: {inputs: [x], variants: {only: {model: models/double.onnx, sha256: DOUBLE}}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 1, price: 0.1 USD/h, speed: 1}}
"""
RNG = np.random.default_rng(0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "double"
    digest = scale(folder / "models/double.onnx", 2.0)
    (folder / "data").mkdir()
    np.savez(folder / "data/heldout.npz", x=values(400))
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("DOUBLE", digest), encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    jellybean("profile", str(folder), "--seconds", "0.05")
    jellybean("plan", str(folder))
    return folder


def values(rows: int, shift: float = 0.0, factor: float = 1.0) -> np.ndarray:
    return (RNG.normal(0.0, factor, (rows, 4)) + shift).astype(np.float32)


def serve(project: Path, seconds: float, request: Callable[[], np.ndarray]) -> list[dict[str, float | str]]:
    """Serve requests for some seconds; then what `report --drift` says of inputs."""
    jellybean("up", str(project), "--detach")
    try:
        with Client.of(project) as client:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                client.infer({"x": request()})
                time.sleep(0.01)  # many more than planned, which is named too
    finally:
        jellybean("down", str(project))
    told = json.loads(jellybean("report", str(project), "--drift", "--json", status=5).stdout)
    return [one for one in told["drifted"] if str(one["name"]).endswith(" of x")]


def test_shifted_inputs_are_named(project: Path) -> None:
    assert serve(project, 5.0, lambda: values(1)) == []
    (shifted,) = serve(project, 5.0, lambda: values(1, shift=2.0))
    assert shifted["name"] == "mean of x"
    assert shifted["standard_deviations"] == pytest.approx(4.0, rel=0.2)  # the mean of four values varies by a half
    with opened_ledger(project, None) as ledger:
        assert ledger is not None
        lines = value_lines(ledger, last_plan(ledger) or "")
    assert {(line.port, line.name) for line in lines} == {(Port.SOURCE, "x"), (Port.ANSWER, "double")}
    double = [line for line in lines if line.name == "double" and line.figure is Figure.MEAN][-1]
    assert double.mean == pytest.approx(4.0, abs=0.8)  # twice the shift
    text = " ".join(jellybean("report", str(project), "--drift", status=5).stdout.split())
    assert "mean of x" in text and "std. dev." in text


def test_inputs_of_more_contrast_are_named(project: Path) -> None:
    changed = serve(project, 5.0, lambda: values(1, factor=4.0))[0]  # the surest; their means vary more, too
    assert changed["name"] == "spread of x"
    assert changed["standard_deviations"] > 3.0
