"""What a failed run costs: a kind of failure is diagnosed a few times, then known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from jellybean_agent import Array, PermanentError
from jellybean_agent.errors import RefusedValuesError
from jellybean_agent.execution.onnx_session import OnnxSession
from jellybean_agent.execution.value_faults import _MAX_DIAGNOSES
from tests.support.tiny_models import save


class Counting(ort.InferenceSession):
    """onnxruntime's session, which counts its runs."""

    runs = 0

    def run(self, names: list[str], feed: Mapping[str, Array]) -> list[Array]:  # type: ignore[override]
        self.runs += 1
        return super().run(names, feed)


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    """Looks up two positions in a table of four, and adds the rows to the positions, which are 2 or any number."""
    nodes = [
        helper.make_node("Cast", ["x"], ["at"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "at"], ["rows"]),
        helper.make_node("Add", ["rows", "x"], ["y"]),
    ]
    save(tmp_path / "m.onnx", nodes, {"x": ["n", "s"]}, ("y", ["n", "s", "t"]), table=np.ones((4, 2), np.float32))
    return Counting(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])


def test_values_that_were_refused_once_cost_one_run(counting: Counting, tmp_path: Path) -> None:
    """Whatever the values, shapes and numbers of requests in a batch."""
    session = OnnxSession(counting, tmp_path)
    costs = []
    for values in ([[0, 4]], [[0, 5]], [[-7, 0]], [[9e9, 0]], [[4, 0], [4, 0]], [[4, 0], [0, 5]]):
        before = counting.runs
        with pytest.raises(RefusedValuesError, match="indices element out of data bounds"):
            session.run({"x": np.float32(values)})
        costs.append(counting.runs - before)
    assert costs == [3, 1, 1, 1, 1, 1]
    assert session.run({"x": np.float32([[0, 3]])})[0].shape == (1, 2, 2)


def test_failures_that_are_not_due_to_values_are_diagnosed_a_few_times(counting: Counting, tmp_path: Path) -> None:
    """Five positions do not fit the rows of two, whatever their values: zeros fail, too."""
    session = OnnxSession(counting, tmp_path)
    costs = []
    for size in range(3, 3 + 2 * _MAX_DIAGNOSES):
        before = counting.runs
        with pytest.raises(PermanentError, match="onnxruntime") as caught:
            session.run({"x": np.zeros((1, size), np.float32)})
        assert not isinstance(caught.value, RefusedValuesError)
        costs.append(counting.runs - before)
    assert costs == [2] * _MAX_DIAGNOSES + [1] * _MAX_DIAGNOSES
