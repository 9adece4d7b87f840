"""A plan of every kind of edge that is up for the tests of a module, and a process for tritonclient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jellybean.serving import Running
from jellybean.serving.local import launcher
from tests.integration.serving.inference.triton_remote import Remote, triton_process
from tests.support.tiny_models import difference, fan_out, gather, make_plan, positives, scale, total


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with triton_process() as found:
        yield found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A join, and a fan-out that is gathered and answers by itself too."""
    root = tmp_path_factory.mktemp("tiny")
    models = root / "models"
    operators = {
        "left": (["x"], scale(models / "left.onnx", 2.0)),
        "right": (["x"], scale(models / "right.onnx", 5.0)),
        "join": (["right", "left"], difference(models / "join.onnx", "left", "right")),
        "split": (["y"], positives(models / "split.onnx")),
        "each": ([fan_out("split", "each")], scale(models / "each.onnx", 10.0, 1)),
        "sum": ([gather("each", "sum")], total(models / "sum.onnx")),
        "tenth": ([fan_out("split", "tenth")], scale(models / "tenth.onnx", 0.1, 1)),
    }
    route = dict.fromkeys(operators, "edge-1") | {"right": "cloud-1", "each": "cloud-1"}
    running = launcher.up(root, make_plan(root, operators, [(1.0, route)], sources={"x": "edge", "y": "edge"}))
    yield running
    running.down()
