"""A message below or far above the size of its tensor of fixed sizes is said; where sizes are open, nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from jellybean.documents import load_project, write_draft
from tests.support.exported_models import replace, tensor, write
from tests.support.paths import EXAMPLES


def notes(folder: Path, shape: list[Any], message: str) -> tuple[str, ...]:
    node = helper.make_node("Identity", ["strip"], ["y"])
    write(folder / "net.onnx", [node], {"strip": shape}, [tensor("y", TensorProto.FLOAT, shape)])
    write_draft(folder / "p", [folder / "net.onnx"])
    replace(folder / "p", "message: 1 KiB", f"message: {message}")
    return load_project(folder / "p", profiles=False).figure_notes


@pytest.mark.parametrize(
    ("shape", "message", "is_noted"),
    [
        (["n", 8, 32], "10 B", True),
        (["n", 8, 32], "0.97 KiB", False),
        (["n", 8, 32], "2 KiB", False),
        (["n", 8, 32], "2.1 KiB", True),
        (["n", 8, 32], "128 MiB", True),
        ([1, 8, 32], "900 B", True),
        (["n", 16, "w"], "10 B", False),
    ],
)
def test_a_message_that_is_smaller_or_far_larger_than_its_tensor(
    tmp_path: Path, shape: list[Any], message: str, is_noted: bool
) -> None:
    found = notes(tmp_path, shape, message)
    assert len(found) == is_noted
    for note in found:
        assert note.startswith(f"sources.strip.message is {message}, but net takes ")
        assert "a request (float32 [1, 8, 32])" in note and note.endswith("write message: 1024 B")


@pytest.mark.parametrize("name", ["digits", "split", "vqa"])
def test_the_examples_have_no_note(name: str) -> None:
    assert load_project(EXAMPLES / name, profiles=(EXAMPLES / name / "profiles.yaml").exists()).figure_notes == ()
