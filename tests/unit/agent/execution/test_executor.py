"""The executor over real onnxruntime: what it refuses to load, how inputs are wired, how a slow device is emulated."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jellybean_agent import Executor, InvalidInputError, ModelError, PermanentError, file_sha256, hash_model
from jellybean_agent.errors import RefusedValuesError
from jellybean_agent.execution import model_files
from jellybean_agent.execution.emulation import EmulatedDevice
from jellybean_agent.execution.onnx_scan import scan_model
from tests.support.exported_models import keep_weights_outside, sklearn_classifier


def save(path: Path, nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, list], outputs: Sequence[str], **constants):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "g", values, results, kept)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)], ir_version=9
    )
    model = onnx.shape_inference.infer_shapes(model)
    path.write_bytes(model.SerializeToString())
    return path, file_sha256(path)


def floats(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_inputs_by_name_then_by_position(tmp_path: Path) -> None:
    node = helper.make_node("Sub", ["left", "right"], ["y"])
    model = save(tmp_path / "m.onnx", [node], {"right": [1, 2], "left": [1, 2]}, ["y"])
    by_name = Executor(*model, ("left", "right"))
    assert by_name.run((floats(5, 5), floats(1, 2))).outputs["y"].tolist() == [[4, 3]]
    audited = Executor(*model, ("audit.left", "audit.right"))
    assert audited.run((floats(5, 5), floats(1, 2))).outputs["y"].tolist() == [[4, 3]]
    of_several = Executor(*model, ("shop/left", "shop/right"))
    assert of_several.run((floats(5, 5), floats(1, 2))).outputs["y"].tolist() == [[4, 3]]
    by_position = Executor(*model, ("one", "two"))  # one -> right, two -> left
    assert by_position.run((floats(5, 5), floats(1, 2))).outputs["y"].tolist() == [[-4, -3]]
    with pytest.raises(ModelError, match="two edges feed one input"):
        Executor(*model, ("other", "right"))
    with pytest.raises(ModelError, match="has 2 inputs"):
        Executor(*model, ("left",))


def test_gather_concatenates_and_may_be_empty(tmp_path: Path) -> None:
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    model = save(tmp_path / "m.onnx", [node], {"x": ["n", 2]}, ["y"], axes=np.array([0], np.int64))
    executor = Executor(*model, ("children",))
    assert executor.run(((floats(1, 2), floats(3, 4)),)).outputs["y"].tolist() == [[4, 6]]
    assert executor.run(((),)).outputs["y"].tolist() == [[0, 0]]
    with pytest.raises(InvalidInputError, match="do not fit together"):
        executor.run(((floats(1, 2), floats(3)),))


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = save(tmp_path / "m.onnx", [node], {"x": [1, "m"]}, ["y"], shape=np.array([2, 2], np.int64))
    executor = Executor(*model, ("x",))
    assert executor.run((floats(1, 2, 3, 4),)).outputs["y"].shape == (2, 2)
    for wrong in (np.ones((1, 4)), np.ones((2, 4), np.float32), np.ones((4,), np.float32)):
        with pytest.raises(InvalidInputError, match="input from x: expected float32"):
            executor.run((wrong,))
    with pytest.raises(InvalidInputError, match="2 inputs for a model of 1"):
        executor.run((floats(1), floats(1)))
    with pytest.raises(PermanentError, match="onnxruntime") as caught:
        executor.run((floats(1, 2, 3),))
    assert not isinstance(caught.value, InvalidInputError)


def test_values_that_a_model_cannot_compute_with_are_told_from_other_failures(tmp_path: Path) -> None:
    """An index outside a table is due to the values. Shapes that do not fit, and a model that always fails, are not."""
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    cast = helper.make_node("Cast", ["x"], ["at"], to=TensorProto.INT64)
    look_up = helper.make_node("Gather", ["table", "at"], ["y"])
    found = Executor(*save(tmp_path / "a.onnx", [cast, look_up], {"x": ["n", "s"]}, ["y"], table=table), ("x",))
    with pytest.raises(RefusedValuesError, match=r"^Gather: indices element out of data bounds, idx=4"):
        found.run((floats(0, 4),))
    assert found.run((floats(0, 3),)).outputs["y"].shape == (1, 2, 2)
    in_rows = helper.make_node("GatherElements", ["x", "at"], ["y"], axis=1)  # reports FAIL, with a source position
    along = Executor(*save(tmp_path / "b.onnx", [cast, in_rows], {"x": ["n", "s"]}, ["y"]), ("x",))
    with pytest.raises(RefusedValuesError, match=r"^GatherElements: GatherElements op: Out of range value in index"):
        along.run((floats(0, 7),))
    add = helper.make_node("Add", ["x", "table"], ["y"])
    shaped = Executor(*save(tmp_path / "c.onnx", [add], {"x": ["n", "s"]}, ["y"], table=table), ("x",))
    broken = helper.make_node("Gather", ["table", "nine"], ["z"]), helper.make_node("Add", ["x", "z"], ["y"])
    constants = {"table": table, "nine": np.array([9], np.int64)}
    always = Executor(*save(tmp_path / "d.onnx", broken, {"x": ["n", 2]}, ["y"], **constants), ("x",))
    for executor, value in ((shaped, floats(1, 2, 3)), (always, floats(1, 2))):
        with pytest.raises(PermanentError, match="onnxruntime") as caught:
            executor.run((value,))
        assert not isinstance(caught.value, InvalidInputError)


def test_what_is_not_loaded(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    path, sha256 = save(tmp_path / "m.onnx", [node], {"x": [1, 2]}, ["y"])
    with pytest.raises(ModelError, match="there is no such file"):
        Executor(tmp_path / "none.onnx", sha256, ("x",))
    with pytest.raises(ModelError, match="altered"):
        Executor(path, sha256[::-1], ("x",))
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match="not an ONNX file"):
        Executor(path, file_sha256(path), ("x",))
    foreign = helper.make_node("Whatever", ["x"], ["y"], domain="com.example")
    with pytest.raises(ModelError, match=r"m\.onnx: operator com\.example\.Whatever is not of"):
        Executor(*save(path, [foreign], {"x": [1, 2]}, ["y"]), ("x",))


def test_a_model_of_one_request_at_a_time_is_refused_where_the_plan_has_batches(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "z"], ["y"])
    model = save(tmp_path / "m.onnx", [add], {"x": ["n", 2], "z": [1, 2]}, ["y"])
    Executor(*model, ("x", "z"))
    with pytest.raises(ModelError, match=r"input z has shape \[1, 2\].* but the plan has batches of 4"):
        Executor(*model, ("x", "z"), batch=4)


def test_weights_in_a_data_file_are_hashed_with_the_model_and_loaded(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["x", "c"], ["y"])
    path, alone = save(tmp_path / "m.onnx", [node], {"x": [1, 2000]}, ["y"], c=np.full((1, 2000), 2, np.float32))
    assert scan_model(path.read_bytes()).data_files == ()
    assert hash_model(path)[0] == alone
    sha256 = keep_weights_outside(path)
    assert scan_model(path.read_bytes()).data_files == ("m.onnx.data",)
    found, files = hash_model(path)
    assert found == sha256
    assert [(file.name, file.sha256) for file in files] == [
        ("", file_sha256(path)),
        ("m.onnx.data", file_sha256(tmp_path / "m.onnx.data")),
    ]
    assert Executor(path, sha256, ("x",)).run((np.ones((1, 2000), np.float32),)).outputs["y"].tolist() == [[3.0] * 2000]
    data = tmp_path / "m.onnx.data"
    content = data.read_bytes()
    data.write_bytes(b"\1" + content[1:])
    with pytest.raises(ModelError, match=r"m.onnx, with m.onnx.data, has sha256 .*: it was altered"):
        Executor(path, sha256, ("x",))
    data.unlink()
    with pytest.raises(
        ModelError, match=r"keeps weights in m.onnx.data: there is no such file.*; copy that file beside"
    ):
        Executor(path, sha256, ("x",))


def with_data_file(folder: Path) -> Path:
    node = helper.make_node("Add", ["x", "c"], ["y"])
    path, _ = save(folder / "m.onnx", [node], {"x": [1, 4]}, ["y"], c=np.ones((1, 4), np.float32))
    keep_weights_outside(path)
    return path


def test_an_unchanged_data_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_data_file(tmp_path)
    hashed: list[str] = []

    def count(file: Path) -> str:
        hashed.append(file.name)
        return file_sha256(file)

    monkeypatch.setattr(model_files, "file_sha256", count)
    assert hash_model(path) == hash_model(path)
    assert len(hashed) == 2  # it was written just now: a further write might not be seen in its times
    monkeypatch.setattr(model_files, "_SETTLED_NS", 0)
    before = hash_model(path)
    assert hash_model(path) == before
    assert len(hashed) == 3
    data = tmp_path / "m.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    os.utime(data, ns=(0, 0))
    assert hash_model(path)[0] != before[0]
    assert len(hashed) == 4


def test_data_files_larger_than_the_process_may_use_are_not_read(tmp_path: Path) -> None:
    path = with_data_file(tmp_path)
    os.truncate(tmp_path / "m.onnx.data", 2**31)  # sparse
    code = f"""
import resource
from pathlib import Path
from jellybean_agent.errors import ModelError
from jellybean_agent.execution import model_files
from jellybean_agent.execution.model_files import read_model
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
try:
    read_model(Path({str(path)!r}), "00")
except ModelError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.stdout.startswith("model m.onnx: m.onnx.data has 2,048 MiB; 1,024 MiB of this process's memory"), (
        process
    )


@pytest.mark.parametrize("name", ["../m.data", "/etc/m.data", "a\\b", ""])
def test_data_files_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    node = helper.make_node("Add", ["x", "c"], ["y"])
    path, _ = save(tmp_path / "m.onnx", [node], {"x": [1, 4]}, ["y"], c=np.ones((1, 4), np.float32))
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    if name:
        tensor.external_data.add(key="location", value=name)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"outside its folder|without naming it"):
        hash_model(path)
    with pytest.raises(ModelError, match=r"outside its folder|without naming it"):
        Executor(path, file_sha256(path), ("x",))


def test_a_data_file_of_another_export_that_is_too_short_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["x", "c"], ["y"])
    for size in (4, 4000):
        (tmp_path / str(size)).mkdir()
        constant = np.ones((1, size), np.float32)
        path, _ = save(tmp_path / f"{size}/m.onnx", [node], {"x": [1, size]}, ["y"], c=constant)
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
        hash_model(path)
    assert scan_model(path.read_bytes()).data_bytes == {"m.onnx.data": 16_000}
    (tmp_path / "4/m.onnx").write_bytes(path.read_bytes())
    with pytest.raises(
        ModelError, match=r"m.onnx.data: it has 16 bytes, the model reads 16000; copy the file m.onnx.data that was"
    ):
        hash_model(tmp_path / "4/m.onnx")


def test_external_data_in_a_nested_graph_is_found() -> None:
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "c")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="inner.bin")
    inner = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "inner", [], [])
    outer = helper.make_graph(
        [helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)], "outer", [], []
    )
    assert scan_model(helper.make_model(outer).SerializeToString()).data_files == ("inner.bin",)


def test_an_emulated_device_is_busy_as_long_as_its_profile_says(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": ["n", 2]}, ["y"])
    slow = Executor(*model, ("x",), batch=4, emulated=EmulatedDevice({1: 0.2, 4: 0.5}))
    for _ in range(5):  # again if this machine stood still for so long that the model itself was late
        one = slow.run((floats(1, 2),))
        if not one.late_s:
            break
    two = slow.run((np.ones((2, 2), np.float32),), 2)
    assert one.busy_s == pytest.approx(0.2, abs=1e-9)  # however late the sleep ends
    assert one.outputs["y"].tolist() == [[-1, -2]]
    assert two.busy_s - two.late_s == pytest.approx(0.3, abs=1e-9)
    assert one.late_s == 0.0
    slow.since_s = slow.due_s  # it waited for the run before it
    assert slow.due_s is not None
    until_s = slow.due_s + 0.2
    last = slow.run((floats(1, 2),))
    assert last.busy_s - last.late_s == pytest.approx(0.2, abs=1e-9)
    assert slow.due_s == pytest.approx(until_s + last.late_s, abs=1e-9)


def test_a_run_that_takes_longer_than_on_the_device_is_late(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": ["n", 2]}, ["y"])
    late = Executor(*model, ("x",), emulated=EmulatedDevice({1: 1e-9})).run((floats(1, 2),))
    assert 0 < late.late_s <= late.busy_s
    assert Executor(*model, ("x",)).run((floats(1, 2),)).late_s == 0.0


@pytest.mark.parametrize(
    ("requests", "seconds"), [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (6, 5.0), (8, 6.0), (16, 12.0)]
)
def test_sizes_between_profiled_ones_take_what_lies_between(requests: int, seconds: float) -> None:
    assert EmulatedDevice({8: 6.0, 1: 1.0, 4: 4.0}).run_s(requests) == pytest.approx(seconds)


def test_hash_is_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert file_sha256(path) == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize(
    ("how", "served", "name", "why"),
    [
        ({"zipmap": True}, ["label"], "probabilities", "list of maps .ZipMap., .*options={'zipmap': False}"),
        ({"labels": ["a", "b", "c"]}, ["probabilities"], None, "output label is text, and text .BYTES. is not served"),
        ({}, ["label", "probabilities"], "scores", "no output scores; the model has label, probabilities"),
    ],
)
def test_outputs_that_are_no_numbers_stand_in_the_way_only_where_they_are_sent(
    tmp_path: Path, how: dict[str, Any], served: list[str], name: str | None, why: str
) -> None:
    sha256 = sklearn_classifier(tmp_path / "m.onnx", **how)
    executor = Executor(tmp_path / "m.onnx", sha256, ("X",))
    assert [port.name for port in executor.outputs] == served
    assert [*executor.run((floats(3, 0, 0, 0),)).outputs] == served
    for one in served:
        executor.check_output(one)
    with pytest.raises(ModelError, match=why):
        executor.check_output(name)


def test_a_model_without_an_output_of_numbers_is_refused(tmp_path: Path) -> None:
    sha256 = sklearn_classifier(tmp_path / "m.onnx", labels=["a", "b", "c"], zipmap=True)
    with pytest.raises(ModelError, match=r"m\.onnx: output label is text.*; output probabilities .*'zipmap': False"):
        Executor(tmp_path / "m.onnx", sha256, ("X",))


def test_an_input_of_text_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"input x is text, and text .BYTES. is not served: use numbers"):
        Executor(tmp_path / "m.onnx", file_sha256(tmp_path / "m.onnx"), ("x",))
