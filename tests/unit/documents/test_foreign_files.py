"""Files that are no ONNX models are named by what they are, whatever their names end in."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents.checks.tensors import ModelFileError, read_model


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
