"""Random inputs of `init`: drawn so that the models take them, or still to be written, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from jellybean.documents import drawn_by_init, load_project, write_draft
from jellybean.documents.draft.models import read_model_file
from jellybean.errors import DocumentError, InputError
from tests.support.exported_forms import FLOAT, INT64, save_graph, save_voice_detector

BOOL, HALF, BFLOAT = TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.BFLOAT16
RELU = [helper.make_node("Relu", ["x"], ["y"])]
X, Y = {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}


def detector(path: Path) -> None:
    """Pictures whose sides are multiples of 32: halved five times and brought back to their size."""
    nodes = [
        helper.make_node("MaxPool", ["images"], ["small"], kernel_shape=[32, 32], strides=[32, 32]),
        helper.make_node("Resize", ["small", "", "scales"], ["again"], mode="nearest"),
        helper.make_node("Concat", ["images", "again"], ["y"], axis=1),
    ]
    sizes = ["N", 3, "H", "W"]
    scales = np.array([1, 1, 32, 32], np.float32)
    save_graph(path, nodes, {"images": (FLOAT, sizes)}, {"y": (FLOAT, ["N", 6, "H", "W"])}, {"scales": scales})


def pictures_last(path: Path) -> None:
    """As Keras has them: channels last, a batch without a name, and sides that are multiples of 24."""
    nodes = [
        helper.make_node("Transpose", ["input_1:0"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("MaxPool", ["first"], ["small"], kernel_shape=[24, 24], strides=[24, 24]),
        helper.make_node("Resize", ["small", "", "scales"], ["again"], mode="nearest"),
        helper.make_node("Sub", ["first", "again"], ["difference"]),
        helper.make_node("ReduceMean", ["difference"], ["y:0"], axes=[2, 3], keepdims=0),
    ]
    scales = np.array([1, 1, 24, 24], np.float32)
    inputs = {"input_1:0": (FLOAT, ["unk__7", None, None, 3])}
    save_graph(path, nodes, inputs, {"y:0": (FLOAT, ["unk__7", 3])}, {"scales": scales})


def words(path: Path) -> None:
    """Token ids of a table with 5 rows, and types of tokens of one with 2."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["a"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("ReduceMean", ["sum"], ["y"], axes=[1], keepdims=0),
    ]
    inputs = {"input_ids": (INT64, ["B", "L"]), "token_type_ids": (INT64, ["B", "L"])}
    tables = {"table": np.ones((5, 3), np.float32), "types": np.ones((2, 3), np.float32)}
    save_graph(path, nodes, inputs, {"y": (FLOAT, ["B", 3])}, tables)


def fixed_length(path: Path) -> None:
    """Sequences that must have 30 steps, though the file leaves their number open."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    shape = np.array([0, 30], np.int64)
    save_graph(path, nodes, {"x": (FLOAT, ["N", "T"])}, {"y": (FLOAT, ["N", 30])}, {"shape": shape})


def two_sizes(path: Path) -> None:
    """Two inputs whose sizes are open, one of which must be twice the other."""
    nodes = [
        helper.make_node("Concat", ["a", "a"], ["twice"], axis=1),
        helper.make_node("Add", ["twice", "b"], ["sum"]),
        helper.make_node("ReduceMean", ["sum"], ["y"], axes=[1], keepdims=1),
    ]
    inputs = {"a": (FLOAT, ["N", "S"]), "b": (FLOAT, ["N", "T"])}
    save_graph(path, nodes, inputs, {"y": (FLOAT, ["N", 1])})


@pytest.mark.parametrize("make", [detector, pictures_last, words, fixed_length, two_sizes, save_voice_detector])
def test_the_random_inputs_of_a_draft_are_taken_by_its_model(tmp_path: Path, make: Callable[[Path], None]) -> None:
    file = tmp_path / "model.onnx"
    make(file)
    drafted = write_draft(tmp_path / "p", [file])
    assert not drafted.refusals
    project = load_project(tmp_path / "p", profiles=False)
    assert set(project.workflow.sources) == set(drafted.array_of)
    with np.load(tmp_path / "p" / "data" / "heldout.npz") as arrays:
        model = read_model_file("m", file)
        (operator,) = drafted.draft.operators
        edges = drafted.draft.edges[operator.name]
        feed = {
            port.name: arrays[drafted.array_of[edge.upstream]][:1]
            for port, edge in zip(model.signature.inputs, edges, strict=True)
        }
        assert all(drawn_by_init(name, arrays[name]) for name in drafted.array_of.values())
    if not model.constants:
        ort.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, feed)


def test_a_draft_of_a_voice_detector_has_its_state_its_constant_and_streams(tmp_path: Path) -> None:
    save_voice_detector(tmp_path / "vad.onnx")
    write_draft(tmp_path / "p", [tmp_path / "vad.onnx"])
    (operator,) = load_project(tmp_path / "p", profiles=False).workflow.operators.values()
    assert operator.state is not None
    assert dict(operator.state.tensors) == {"state": "stateN"}
    assert [dict(variant.constants) for variant in operator.variants.values()] == [{"sr": 16000}]
    with np.load(tmp_path / "p" / "data" / "heldout.npz") as arrays:
        assert len(arrays["streams"]) == len(arrays["input"])


def test_inputs_that_no_trial_finds_are_still_to_be_written_with_the_reason(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    shape = np.array([0, 1777], np.int64)
    save_graph(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["N", "T"])}, {"y": (FLOAT, ["N", 1777])}, {"shape": shape})
    drafted = write_draft(tmp_path / "p", [tmp_path / "m.onnx"])
    assert "Reshape" in drafted.refusals["input"] or "Reshape" in next(iter(drafted.refusals.values()))
    with pytest.raises(
        DocumentError, match=r"no random inputs that are taken for .*Reshape.*Give real ones, or --data"
    ):
        load_project(tmp_path / "p", profiles=False)


@pytest.mark.parametrize(
    ("inputs", "more", "reason"),
    [
        (X, {"ir_version": 99}, "Unsupported model IR version: 99.*install a newer onnxruntime"),
        (X, {"opset": 99}, "onnxruntime .* does not load the model"),
        ({}, {}, "has no inputs, and so nothing that a request would bring"),
        ({"x": (FLOAT, [])}, {}, "each input .x. is a single number"),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_before_anything_is_written(
    tmp_path: Path, inputs: dict, more: dict, reason: str
) -> None:
    nodes = RELU if inputs else [helper.make_node("Constant", [], ["y"], value_floats=[1.0])]
    save_graph(tmp_path / "m.onnx", nodes, inputs, Y, **more)
    with pytest.raises(InputError, match=reason):
        write_draft(tmp_path / "p", [tmp_path / "m.onnx"])
    assert not (tmp_path / "p").exists()


def test_all_models_that_do_not_load_are_named_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_graph(tmp_path / f"{name}.onnx", RELU, X, Y, ir_version=99)
    with pytest.raises(InputError) as error:
        write_draft(tmp_path / "p", [tmp_path / "a.onnx", tmp_path / "b.onnx"])
    lines = str(error.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]
    assert all("Unsupported model IR version" in line for line in lines)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([helper.make_node("NoSuchOp", ["x"], ["y"])], "No Op registered for NoSuchOp"),
        ([helper.make_node("Mine", ["x"], ["y"], domain="my.ops")], "operator my.ops.Mine is not of ai.onnx"),
        ([helper.make_node("Add", ["x", "gone"], ["y"])], "Node input 'gone' is not a graph input"),
    ],
)
def test_a_graph_that_onnxruntime_refuses_is_refused(tmp_path: Path, nodes: list[onnx.NodeProto], reason: str) -> None:
    save_graph(tmp_path / "m.onnx", nodes, X, Y, opsets={"my.ops": 1})
    with pytest.raises(InputError, match=reason):
        write_draft(tmp_path / "p", [tmp_path / "m.onnx"])
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        (FLOAT, None, "does not state its number of dimensions"),
        (FLOAT, ["N", 10**9], r"one has 3.73 GiB, and a tensor at most 64 MiB"),
        (BFLOAT, ["N", 4], r"tensor\(bfloat16\), which is not served"),
        (TensorProto.STRING, ["N", 4], "is text"),
    ],
)
def test_inputs_that_cannot_be_drawn_are_named(tmp_path: Path, kind: int, shape: list | None, reason: str) -> None:
    save_graph(
        tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, shape)}, {"y": (kind, shape)}
    )
    write_draft(tmp_path / "p", [tmp_path / "m.onnx"])
    with pytest.raises(DocumentError, match=reason):
        load_project(tmp_path / "p", profiles=False)


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        ([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], {}, r"output y is a single number \(shape \[\]\)"),
        (
            [helper.make_node("Expand", ["x", "size"], ["y"])],
            {"size": np.array([1, 2**22 + 2**16, 4])},
            r"output y has 65 MiB, and a tensor at most 64 MiB",
        ),
        (
            [helper.make_node("Reshape", ["x", "size"], ["y"])],
            {"size": np.array([0, *[1] * 15, 4])},
            "a tensor of 17 dimensions; 16 are the limit",
        ),
    ],
)
def test_answers_that_cannot_be_sent_are_found_though_the_file_states_no_shape(
    tmp_path: Path, nodes: list[onnx.NodeProto], constants: dict, reason: str
) -> None:
    save_graph(tmp_path / "m.onnx", nodes, X, {"y": (FLOAT, None)}, constants)
    write_draft(tmp_path / "p", [tmp_path / "m.onnx"])
    with pytest.raises(DocumentError, match=reason):
        load_project(tmp_path / "p", profiles=False)


def test_a_single_number_that_nobody_reads_is_no_fault(tmp_path: Path) -> None:
    """As a loss beside the scores, of which the edge names the scores."""
    nodes = [helper.make_node("ReduceSum", ["x"], ["loss"], keepdims=0), helper.make_node("Relu", ["x"], ["scores"])]
    save_graph(tmp_path / "a.onnx", nodes, X, {"loss": (FLOAT, None), "scores": (FLOAT, ["N", 4])})
    nodes = [helper.make_node("Relu", ["scores"], ["y"])]
    save_graph(tmp_path / "b.onnx", nodes, {"scores": (FLOAT, ["N", 4])}, Y)
    drafted = write_draft(tmp_path / "p", [tmp_path / "a.onnx", tmp_path / "b.onnx"])
    assert drafted.draft.edges["b"][0].output == "scores"
    assert not drafted.refusals


def test_an_input_of_too_many_dimensions_is_refused(tmp_path: Path) -> None:
    sizes = {"x": (FLOAT, ["N", *[1] * 16])}
    save_graph(tmp_path / "m.onnx", RELU, sizes, {"y": sizes["x"]})
    with pytest.raises(InputError, match="input x has 17 dimensions, and a tensor at most 16"):
        write_draft(tmp_path / "p", [tmp_path / "m.onnx"])


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 18, 21, 23])
@pytest.mark.parametrize("kind", [FLOAT, HALF])
def test_models_of_each_opset_are_drafted(tmp_path: Path, opset: int, kind: int) -> None:
    inputs, outputs = {"x": (kind, ["batch*2", 4])}, {"y": (kind, ["batch*2", 4])}
    ir_version = 3 if opset == 7 else 8
    save_graph(tmp_path / "m.onnx", RELU, inputs, outputs, opset=opset, ir_version=ir_version)
    assert not write_draft(tmp_path / "p", [tmp_path / "m.onnx"]).refusals


def test_initializers_among_the_inputs_are_no_inputs(tmp_path: Path) -> None:
    """As files of IR version 3 have them: each weight is an input too."""
    inputs = {"x": (FLOAT, ["N", 4]), "weights": (FLOAT, [4])}
    nodes = [helper.make_node("Add", ["x", "weights"], ["y"])]
    weights = {"weights": np.ones(4, np.float32)}
    save_graph(tmp_path / "m.onnx", nodes, inputs, Y, weights, opset=7, ir_version=3)
    drafted = write_draft(tmp_path / "p", [tmp_path / "m.onnx"])
    assert [len(edges) for edges in drafted.draft.edges.values()] == [1]


def test_a_condition_is_a_constant(tmp_path: Path) -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node(kind, ["x"], ["z"])], name, [], [helper.make_tensor_value_info("z", FLOAT, None)]
        )
        for name, kind in (("then_branch", "Neg"), ("else_branch", "Identity"))
    }
    nodes = [helper.make_node("If", ["flag"], ["y"], **branches)]
    save_graph(tmp_path / "m.onnx", nodes, {**X, "flag": (BOOL, [])}, Y)
    (operator,) = write_draft(tmp_path / "p", [tmp_path / "m.onnx"]).draft.operators
    assert dict(operator.first.constants) == {"flag": True}


@pytest.mark.parametrize(
    ("array", "name", "is_drawn"),
    [
        (np.zeros((3, 2), np.float32), "x", False),
        (np.arange(6).reshape(3, 2), "x", False),
        (np.array(1.0), "x", False),
        (np.array([["a"]]), "x", False),
        (np.zeros((0, 2), np.float32), "x", False),
    ],
)
def test_what_init_did_not_draw_is_not_called_so(array: np.ndarray, name: str, is_drawn: bool) -> None:
    assert drawn_by_init(name, array) is is_drawn
