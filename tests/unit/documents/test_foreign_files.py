"""Files that are no ONNX models are named by what they are, whatever their names end in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from jellybean.documents.checks.tensors import ModelFileError, read_model
from tests.support.exported_forms import FLOAT, save_graph


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
        (b"PK\x03\x04" + bytes(30), "torch.onnx.export, or unpack it"),
        (b"\x80\x02}q\x00.", "a pickle: export the model"),
        (bytes(4) + b"ORTM" + bytes(40), "give the ONNX file that it was made from"),
        (b"\xef\xbb\xbf <html></html>", "download the file itself"),
        (b'{"graph": {"node": []}}', "it is text"),
        (b"\xff" * 40, "damaged or cut off: copy or export it again"),
    ],
)
@pytest.mark.parametrize("ending", ["onnx", "json", "onnxtxt", "textproto"])
def test_a_file_of_another_format_is_named(tmp_path: Path, content: bytes, reason: str, ending: str) -> None:
    (tmp_path / f"m.{ending}").write_bytes(content)
    with pytest.raises(ModelFileError, match=f"m.{ending} is not an ONNX model.*{reason}"):
        read_model(tmp_path / f"m.{ending}")


@pytest.mark.parametrize("place", ["input", "output", "weight"])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, place: str) -> None:
    names = {"input": "x", "output": "y", "weight": "w"} | {place: "NAME"}
    node = helper.make_node("Add", [names["input"], names["weight"]], [names["output"]])
    inputs, outputs = ({names[side]: (FLOAT, ["N", 4])} for side in ("input", "output"))
    save_graph(tmp_path / "m.onnx", [node], inputs, outputs, {names["weight"]: np.ones(4, np.float32)})
    content = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(content.replace(b"NAME", b"NA\xffE"))
    with pytest.raises(ModelFileError, match=r"the name b'NA.xffE' is no UTF-8: export it with another one"):
        read_model(tmp_path / "m.onnx")


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    """onnxruntime takes it for shorter, and requests for it are never answered."""
    ports = {"x\0y": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}
    save_graph(tmp_path / "m.onnx", [helper.make_node("Relu", ["x\0y"], ["y"])], *ports)
    with pytest.raises(ModelFileError, match="has a NUL: export it with another one"):
        read_model(tmp_path / "m.onnx")
