"""Inputs that no request brings: constants, and states whose rows are not first, compared with onnxruntime by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from jellybean_agent import Executor, InvalidInputError, ModelError, PortNames, state_inputs
from jellybean_agent.tensors.constants import constant_tensor
from jellybean_agent.tensors.ports import TensorPort, rows_axis, rows_first
from tests.support.exported_forms import FLOAT, save_graph, save_voice_detector, voice_by_hand

CHUNKS = np.random.default_rng(0).random((3, 4, 32), np.float32)  # of 3 streams, 4 each


def detector(path: Path, rows: int | str = "N", rate: int = 16000, batch: int = 1) -> Executor:
    names = PortNames(constants={"sr": str(rate)})
    sha256 = save_voice_detector(path, rows)
    order = {**names.input_by_upstream(["input"]), **state_inputs({"state": "stateN"})}
    return Executor(path, sha256, order, batch=batch)


def test_a_state_has_its_rows_first_whatever_the_model_has(tmp_path: Path) -> None:
    executor = detector(tmp_path / "m.onnx", batch=3)
    assert [port.shape for port in executor.inputs] == [(-1, -1), (-1, 2, 8)]
    assert {port.name: port.shape for port in executor.outputs}["stateN"] == (-1, 2, 8)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_streams_in_a_batch_answer_as_each_alone(tmp_path: Path, rate: int) -> None:
    executor, state = detector(tmp_path / "m.onnx", rate=rate, batch=3), np.zeros((3, 2, 8), np.float32)
    for number in range(CHUNKS.shape[1]):
        outputs = executor.run((CHUNKS[:, number], state), 3).outputs
        state = outputs["stateN"]
        assert state.flags.c_contiguous
        for stream, answer in enumerate(outputs["output"]):
            by_hand = voice_by_hand(tmp_path / "m.onnx", CHUNKS[stream, : number + 1], rate)
            np.testing.assert_allclose(answer[None], by_hand[-1], rtol=1e-6)  # sums of a batch round otherwise


def test_a_state_of_one_row_takes_one_request_at_a_time(tmp_path: Path) -> None:
    executor = detector(tmp_path / "m.onnx", rows=1)
    state = np.zeros((1, 2, 8), np.float32)
    outputs = executor.run((CHUNKS[0, :1], state)).outputs
    assert outputs["stateN"].shape == (1, 2, 8)
    with pytest.raises(InvalidInputError, match="state"):
        executor.run((CHUNKS[0, :1], np.zeros((2, 1, 8), np.float32)))
    with pytest.raises(ModelError, match="one request at a time"):
        detector(tmp_path / "b.onnx", rows=1, batch=2)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((None, 8), 0),
        ((1, 8), 0),
        ((1, 1, 8), 0),
        ((None, 1, 8), 0),
        ((2, None, 8), 1),
        ((2, 1, 8), 1),
        ((1, None, 8), 1),
        ((4, 8, None), 2),
        ((2, 2, 8), 0),  # no rows: refused elsewhere
        ((None, None, 8), 0),
        ((), 0),
    ],
)
def test_the_axis_of_the_rows_is_the_one_that_its_size_tells(shape: tuple[int | None, ...], axis: int) -> None:
    assert rows_axis(shape) == axis
    assert rows_axis([-1 if size is None else size for size in shape]) == axis


def test_a_shape_with_its_rows_first() -> None:
    assert rows_first((2, -1, 8), 1) == (-1, 2, 8)
    assert rows_first((4, 8, -1), 2) == (-1, 4, 8)


@pytest.mark.parametrize(
    ("text", "port", "expected"),
    [
        ("16000", ("int64", ()), np.array(16000, np.int64)),
        ("9223372036854775807", ("int64", ()), np.array(2**63 - 1)),
        ("18446744073709551615", ("uint64", ()), np.array(2**64 - 1, np.uint64)),
        ("0.1", ("float32", ()), np.array(0.1, np.float32)),
        ("3", ("float64", ()), np.array(3.0)),
        ("true", ("bool", ()), np.array(True)),
        ("[640,480]", ("int64", (2,)), np.array([640, 480])),
        ("[[1.5],[2]]", ("float32", (2, -1)), np.array([[1.5], [2]], np.float32)),
        ("-0.0", ("float32", ()), np.array(-0.0, np.float32)),
        ("[1.0,9007199254740993]", ("int64", (2,)), np.array([1, 2**53 + 1])),  # beside a fraction
        ("16777216", ("float32", ()), np.array(2.0**24, np.float32)),
        ("[]", ("float32", (0,)), np.zeros(0, np.float32)),
        ("[[],[]]", ("int64", (2, -1)), np.zeros((2, 0), np.int64)),
    ],
)
def test_a_constant_is_converted_exactly(text: str, port: tuple[str, tuple[int, ...]], expected: np.ndarray) -> None:
    found = constant_tensor(text, TensorPort("c", *port))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("text", "port", "reason"),
    [
        ("0.5", ("int64", ()), "0.5 is no int64"),
        ("300", ("uint8", ()), "300 is no uint8: its integers are 0 to 255"),
        ("-1", ("uint64", ()), "-1 is no uint64: its integers are 0 to 18446744073709551615"),
        ("[[1],[-129]]", ("int8", (2, 1)), "is no int8: its integers are -128 to 127"),
        ("9223372036854775808", ("int64", ()), "is no int64"),
        ("1e39", ("float32", ()), "is no float32, which would have inf"),
        ("70000", ("float16", ()), "is no float16"),
        ("16777217", ("float32", ()), "is no float32, which would have 16777216.0"),
        ("[9007199254740993,0.5]", ("float64", (2,)), "is no float64"),
        ("1e-50", ("float32", ()), "is no float32, which would have 0.0"),
        ("1" * 5000, ("int64", ()), "is no int64: Exceeds the limit"),
        ("1", ("bool", ()), "write true or false"),
        ("true", ("int64", ()), "write a number"),
        ("[1]", ("int64", ()), r"has shape \[1\], the model takes \[\]"),
        ("1", ("int64", (1,)), r"has shape \[\], the model takes \[1\]"),
        ("[1,2,3]", ("int64", (2,)), r"has shape \[3\], the model takes \[2\]"),
        ("[[1,2],[3]]", ("int64", (-1, -1)), "is no int64"),
    ],
)
def test_a_constant_that_the_input_cannot_have_is_refused(
    text: str, port: tuple[str, tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        constant_tensor(text, TensorPort("c", *port))


def test_constants_of_equal_values_feed_different_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "a"], ["scaled"]), helper.make_node("Add", ["scaled", "b"], ["y"])]
    inputs = {"a": (FLOAT, []), "x": (FLOAT, ["N", 2]), "b": (FLOAT, [])}
    sha256 = save_graph(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, ["N", 2])})
    order = PortNames(constants={"a": "2", "b": "2"}).input_by_upstream(["rows"])
    found = Executor(tmp_path / "m.onnx", sha256, order, batch=2).run((np.ones((2, 2), np.float32),), 2)
    assert found.outputs["y"].tolist() == [[4, 4], [4, 4]]
    with pytest.raises(ModelError, match="no input 'c'"):
        unknown = PortNames(constants={"a": "2", "c": "2"}).input_by_upstream(["rows"])
        Executor(tmp_path / "m.onnx", sha256, unknown)
