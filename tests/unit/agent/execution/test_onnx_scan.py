"""Scanning of ONNX files without onnx: data files, operators that are not run, and what is no ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jellybean_agent import ModelError, data_path, file_sha256, hash_model
from jellybean_agent.execution.model_files import ModelContent, combined_sha256
from jellybean_agent.execution.onnx_scan import ModelScan, scan_model


def external(name: str, **entries: str) -> onnx.TensorProto:
    """A tensor whose data is in another file."""
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model(
    *nodes: onnx.NodeProto, tensors: tuple[onnx.TensorProto, ...] = (), functions: tuple[onnx.FunctionProto, ...] = ()
) -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph(list(nodes), "graph", [value], [value], list(tensors))
    found = helper.make_model(graph, functions=list(functions))
    return bytes(found.SerializeToString())


def node(kind: str = "Add", domain: str = "", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, ["x"], ["y"], domain=domain, **attributes)


def test_data_files_are_found_wherever_tensors_are() -> None:
    inner = helper.make_graph([], "inner", [], [], [external("c", location="c.bin")])
    attributes = {
        "tensor": external("b", location="b.bin"),
        "graph": inner,
        "tensors": [external("d", location="d.bin")],
        "graphs": [helper.make_graph([node(value=external("e", location="e.bin"))], "g", [], [])],
    }
    tensors = (external("a", location="a.bin", offset="4096", length="8"), external("z", location="a.bin", length="40"))
    found = scan_model(model(node(**attributes), tensors=tensors))
    assert found.data_files == ("a.bin", "b.bin", "c.bin", "d.bin", "e.bin")
    assert found.data_bytes == {"a.bin": 4104}
    assert found.unknown_operator == ""


def test_a_model_with_all_its_data_has_no_data_files() -> None:
    tensors = (numpy_helper.from_array(np.arange(1000, dtype=np.float32), "a"),)
    assert scan_model(model(node(), tensors=tensors)) == ModelScan((), "", {})


def test_data_that_is_elsewhere_without_a_name() -> None:
    assert scan_model(model(node(), tensors=(external("a"),))).data_files == ("",)
    named = (external("a", location="a.bin"), external("b"))
    assert scan_model(model(node(), tensors=named)).data_files == ("", "a.bin")


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        ({"length": "8"}, {"a.bin": 8}),
        ({"offset": "16"}, {}),
        ({"offset": "x", "length": "8"}, {}),
        ({"offset": "8", "length": "-1"}, {}),
        ({"offset": "1" * 19, "length": "8"}, {}),
    ],
)
def test_the_end_of_a_data_file_is_that_of_tensors_that_state_it(entries: dict[str, str], end: dict[str, int]) -> None:
    assert scan_model(model(tensors=(external("a", location="a.bin", **entries),))).data_bytes == end


@pytest.mark.parametrize(
    ("kind", "domain", "unknown"),
    [
        ("Add", "", ""),
        ("Add", "ai.onnx", ""),
        ("Scaler", "ai.onnx.ml", ""),
        ("Gelu", "com.microsoft", ""),
        ("Steal", "evil.com", "evil.com.Steal"),
        ("x" * 200, "evil.com", ("evil.com." + "x" * 200)[:120]),
    ],
)
def test_operators_of_other_domains_are_unknown(kind: str, domain: str, unknown: str) -> None:
    assert scan_model(model(node(kind, domain))).unknown_operator == unknown


def test_functions_of_the_model_are_known_and_what_they_use_is_looked_at() -> None:
    opset = [helper.make_opsetid("", 17)]
    own = helper.make_function("own", "F", ["x"], ["y"], [node("Steal", "evil.com")], opset)
    assert scan_model(model(node("F", "own"), functions=(own,))).unknown_operator == "evil.com.Steal"
    harmless = helper.make_function("own", "F", ["x"], ["y"], [node()], opset)
    assert scan_model(model(node("F", "own"), functions=(harmless,))).unknown_operator == ""
    assert scan_model(model(node("G", "own"), functions=(harmless,))).unknown_operator == "own.G"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff" * 20, "a number has no end"),
        (b"\x08", "a number has no end"),
        (b"\x0b", "wire type 3"),
        (b"\x3a\x05ab", "a field runs past its end"),
        (b"\x3a\x02\x0a\x05", "a field runs past its end"),
    ],
)
def test_what_is_no_onnx_file(data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=f"not an ONNX file: {reason}"):
        scan_model(data)


def test_other_fields_are_skipped_by_their_length() -> None:
    fields = b"\x09" + bytes(8) + b"\x0d" + bytes(4) + b"\x08\x96\x01" + b"\x12\x03abc"
    assert scan_model(fields + model(node("Steal", "evil.com"))).unknown_operator == "evil.com.Steal"


def test_a_model_is_known_by_all_its_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(tensors=(external("a", location="d/a.bin", length="4"), external("b", location="b.bin"))))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.bin").write_bytes(b"aaaa")
    (tmp_path / "b.bin").write_bytes(b"bb")
    sha256, files = hash_model(path)
    assert [(file.name, file.size_bytes) for file in files] == [("", path.stat().st_size), ("b.bin", 2), ("d/a.bin", 4)]
    assert sha256 == combined_sha256(file_sha256(path), {"d/a.bin": files[2].sha256, "b.bin": files[1].sha256})
    content = ModelContent(path.read_bytes(), {"d/a.bin": b"aaaa", "b.bin": b"bb"})
    assert content.sha256 == sha256
    assert ModelContent(path.read_bytes(), {}).sha256 == file_sha256(path) == combined_sha256(file_sha256(path), {})
    (tmp_path / "d/a.bin").write_bytes(b"aaa")
    with pytest.raises(ModelError, match=r"keeps weights in d/a.bin: it has 3 bytes, the model reads 4"):
        hash_model(path)
    (tmp_path / "d/a.bin").unlink()
    with pytest.raises(ModelError, match=r"keeps weights in d/a.bin: .*; copy that file beside the model"):
        hash_model(path)


@pytest.mark.parametrize("name", ["", "../a", "/a", "a\\b", "a\0b", "a/../../b", "."])
def test_data_files_outside_the_models_folder(name: str) -> None:
    with pytest.raises(ModelError, match="outside its folder: export it again"):
        data_path(Path("/models/m.onnx"), name)
    assert data_path(Path("/models/m.onnx"), "d/a.bin") == Path("/models/d/a.bin")
