"""`init` and `validate` as a new user calls them: from models, blank, and with what is missing or too much."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import resource
import shutil
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.cli.init import Example, make_example
from jellybean.errors import JellyBeanError
from jellybean_protos.extras import install_command
from tests.support.paths import EXAMPLES

DIGITS = EXAMPLES / "digits" / "models"
# Without the large ones: `init` answers with each, on many rows.
SMALL = ("find", "number", "read", "shape-cnn-small", "shape-mlp", "strokes-cnn-int8", "strokes-linear")
MODELS = [str(DIGITS / f"{name}.onnx") for name in SMALL]


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("form", ["folder first", "folder last", "a folder of models"])
def test_a_shells_list_of_files_is_taken_in_any_order(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, models = str(tmp_path / "mine"), tmp_path / "models"
    models.mkdir()
    for path in MODELS:
        shutil.copy(path, models)
    forms = {
        "folder first": [project, "--from", *MODELS],
        "folder last": ["--from", *MODELS, project],
        "a folder of models": [project, "--from", str(models)],
    }
    assert run(["init", *forms[form]]) == 0
    told = capsys.readouterr().out
    assert "7 models, operators find, shape (cnn-small, mlp), strokes (cnn-int8, linear), " in told
    assert f"jellybean infer {project} --input 'strip={project}/data/heldout.npz#strip[0]'" in told


def test_the_next_commands_are_not_padded_to_the_longest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "a project of a very long name"
    assert run(["init", str(project), "--from", *MODELS]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "  # " in line]
    assert len(lines) == 5
    assert all(line.rstrip() == line and "   " not in line.strip() for line in lines if len(line) > 100)
    assert run(["init", "digits", str(tmp_path / "d"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["next"][0] == {
        "command": f"jellybean profile {tmp_path}/d",
        "purpose": "measure its models on this machine",
    }


@pytest.mark.parametrize("exists", [False, True])
def test_an_example_that_cannot_be_copied_whole_leaves_nothing(
    exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "d"
    if exists:
        project.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # smaller than some of its models
    try:
        assert run(["init", "digits", str(project)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Errno" not in capsys.readouterr().err
    assert not list(tmp_path.rglob("*") if not exists else project.rglob("*"))
    assert run(["init", "digits", str(project)]) == 0


def test_a_draft_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "mine"), "--from", *MODELS, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["directory"] == str(tmp_path / "mine")
    assert sorted(answer["operators"]) == ["find", "number", "read", "shape", "strokes"]
    assert answer["operators"]["strokes"] == ["cnn-int8", "linear"]
    assert answer["sources"] == {"strip": "strip"}
    assert [one["command"].split()[1] for one in answer["next"]] == ["validate", "profile", "plan", "up", "infer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digitz", "DIR"], "'digitz' is not an example; did you mean 'digits'?"),
        (["digits"], "missing the folder to create: jellybean init digits my-digits"),
        (["DIR"], "write EXAMPLE DIR, DIR --from MODEL.onnx ..., or DIR --blank"),
        (["DIR", "other", "--blank"], "--blank takes one folder DIR; given: DIR, other"),
        (["--from", "a.onnx", "b.onnx"], "--from takes one folder DIR"),
        (["DIR", "--from", "a.onnx", "--blank"], "--from and --blank exclude each other"),
        (["DIR", "--data", "a.npz"], "--data needs --from MODEL.onnx"),
        (["DIR", "--from", "a.onnx"], "a.onnx cannot be read: there is no such file"),
    ],
)
def test_what_is_missing_or_too_much(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", *arguments]) == 2
    assert message in words(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_validate_lists_the_todos_after_the_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path), "--blank"]) == 0
    capsys.readouterr()
    assert run(["validate", str(tmp_path), "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert [problem["path"] for problem in answer["problems"]] == [
        "sources.input.inputs",
        "operators.detect.variants.small.model",
    ]
    assert [Path(todo["file"]).name for todo in answer["todos"]] == ["infrastructure.yaml"] * 2
    assert run(["validate", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.index("is still to be written (TODO)") < told.index(f"TODO {tmp_path}/infrastructure.yaml:")


def test_a_folder_of_models_is_told_how_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.onnx").touch()
    assert run(["validate", str(tmp_path)]) == 2
    assert f"jellybean init {tmp_path} --from {tmp_path}" in words(capsys.readouterr().err)


def test_what_an_example_needs_is_said_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "rapidocr" else find_spec(name))
    folder = tmp_path / "mine"
    assert run(["init", "ocr", str(folder)]) == 1
    assert install_command("ocr") in words(capsys.readouterr().err)
    assert not folder.exists()


def test_an_example_that_cannot_be_made_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "make.py").write_text(
        "import sys; print('half'); sys.exit('line one\\nrapidocr has no file models/x.onnx')",
        encoding="utf-8",
    )
    with pytest.raises(
        JellyBeanError, match=r"^the example ocr could not be made: rapidocr has no file models/x\.onnx$"
    ):
        make_example(Example.OCR, folder)
    assert not folder.exists()


def test_a_made_model_gets_its_hash(tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text(
        "operators: {read: {variants: {a: {model: models/a.onnx}}}}\n", encoding="utf-8"
    )
    make = "from pathlib import Path; Path('models').mkdir(); Path('models/a.onnx').touch()"
    (tmp_path / "make.py").write_text(make, encoding="utf-8")
    make_example(Example.OCR, tmp_path)
    empty = hashlib.sha256(b"").hexdigest()
    assert f"{{model: models/a.onnx, sha256: {empty}}}" in (tmp_path / "workflow.yaml").read_text(encoding="utf-8")


def test_all_files_that_are_no_models_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("no model\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    given = [str(tmp_path / name) for name in ("empty.onnx", "text.onnx", "nowhere.onnx", "folder")]
    assert run(["init", str(tmp_path / "p"), "--from", *given[:1], "--from", given[3], *given[1:3]]) == 2
    told = words(capsys.readouterr().err)
    for reason in (
        "empty.onnx is not an ONNX model with inputs and outputs: it is empty: copy or export it again",
        "text.onnx is not an ONNX model: it is text: give the file that the exporter wrote",
        "nowhere.onnx cannot be read: there is no such file or folder",
        "folder has no ONNX files (*.onnx)",
    ):
        assert reason in told
    assert not (tmp_path / "p").exists()
