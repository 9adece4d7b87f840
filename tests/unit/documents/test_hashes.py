"""`validate --fix` writes missing and changed hashes, and leaves every other byte of the file alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from jellybean.documents import write_hashes, wrong_hashes
from jellybean.errors import InputError

TEXT = """\
# models of ours\r
kind: Workflow
operators:
  detect:   # two ways
    inputs: [image]
    variants:
      small:
        model: "models/a.onnx"   # the first
        cuts: 2
      large: { model: models/b.onnx , cuts: 1 }   # flow
      stale: {model: models/a.onnx, sha256: 00aa}
      right: {sha256: A_HASH, model: models/a.onnx}
      gone: {model: models/gone.onnx}
      rule: {python: "hashed_steps:crop"}
      pinned: {python: "hashed_steps:crop", sha256: '00bb'}
  names: {inputs: [detect], variants: [one, two]}
  last:
    variants:
      only:
        model: models/b.onnx"""


def model(path: Path) -> bytes:
    """Write a small model; returns its bytes."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy")
    content: bytes = helper.make_model(
        helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    ).SerializeToString()
    path.write_bytes(content)
    return content


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_only_hashes_change(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    content = model(tmp_path / "models/a.onnx")
    (tmp_path / "models/b.onnx").write_bytes(b"b")
    (tmp_path / "hashed_steps.py").write_bytes(b"# step\n")
    a, b, steps = sha256(content), sha256(b"b"), sha256(b"# step\n")
    text = TEXT.replace("A_HASH", a.upper())
    (tmp_path / "workflow.yaml").write_bytes(text.encode())
    fixes = wrong_hashes(tmp_path)
    assert [(fix.operator, fix.variant, fix.before, fix.after, fix.line) for fix in fixes] == [
        ("detect", "small", "", a, 8),
        ("detect", "large", "", b, 10),
        ("detect", "stale", "00aa", a, 11),
        ("detect", "pinned", "00bb", steps, 15),
        ("last", "only", "", b, 20),
    ]
    assert (tmp_path / "workflow.yaml").read_bytes() == text.encode()  # nothing is written yet
    write_hashes(fixes)
    wanted = text.replace("# the first", f"# the first\n        sha256: {a}")
    wanted = wanted.replace("models/b.onnx ,", f"models/b.onnx, sha256: {b} ,").replace("00aa", a)
    wanted = f"{wanted.replace(chr(39) + '00bb' + chr(39), steps)}\n        sha256: {b}\n"
    assert (tmp_path / "workflow.yaml").read_bytes() == wanted.encode()
    assert wrong_hashes(tmp_path) == ()


def test_each_workflow_of_several(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / "workflows" / name
        folder.mkdir(parents=True)
        (folder / "m.onnx").write_text(name, encoding="utf-8")
        (folder / "workflow.yaml").write_text("operators: {o: {variants: {v: {model: m.onnx}}}}\n", encoding="utf-8")
    write_hashes(wrong_hashes(tmp_path))
    for name in ("one", "two"):
        assert sha256(name.encode()) in (tmp_path / "workflows" / name / "workflow.yaml").read_text(encoding="utf-8")


def test_a_mode_stays_the_mode_and_no_link_is_written_through(tmp_path: Path) -> None:
    shared, folder = tmp_path / "shared.yaml", tmp_path / "project"
    folder.mkdir()
    (folder / "m.onnx").write_text("m", encoding="utf-8")
    text = "operators: {o: {variants: {v: {model: m.onnx}}}}\n"
    shared.write_text(text, encoding="utf-8")
    (folder / "workflow.yaml").symlink_to(shared)
    with pytest.raises(InputError, match=r"workflow\.yaml is a link to"):
        write_hashes(wrong_hashes(folder))
    assert shared.read_text(encoding="utf-8") == text
    (folder / "workflow.yaml").unlink()
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "workflow.yaml").chmod(0o640)
    write_hashes(wrong_hashes(folder))
    assert sha256(b"m") in (folder / "workflow.yaml").read_text(encoding="utf-8")
    assert (folder / "workflow.yaml").stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_read_is_left_to_validate(tmp_path: Path) -> None:
    for text in (b"operators: [", b"\xff", b"", b"operators: {o: {variants: {v: 3}}}", b"operators: 3"):
        (tmp_path / "workflow.yaml").write_bytes(text)
        assert wrong_hashes(tmp_path) == ()
    (tmp_path / "workflow.yaml").unlink()
    assert wrong_hashes(tmp_path) == ()


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\n", None], ids=["empty", "lfs", "cut"]
)
def test_the_hash_of_a_model_that_was_damaged_stays(tmp_path: Path, content: bytes | None) -> None:
    """It is the only proof of what the file should be."""
    (tmp_path / "models").mkdir()
    path = tmp_path / "models/a.onnx"
    whole = model(path)
    path.write_bytes(whole[:40] if content is None else content)
    text = "operators:\n  a:\n    variants:\n      b: {model: models/a.onnx, sha256: 00aa}\n"
    (tmp_path / "workflow.yaml").write_text(text, encoding="utf-8")
    assert wrong_hashes(tmp_path) == ()
