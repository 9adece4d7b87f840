"""Every command that reads a folder or a file says in a sentence what is wrong with it, with status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.cli.command_table import PROGRAM, is_group, rows_of
from tests.support.command_line import jellybean

WITHOUT_FOLDER = {"init", "demo", "schema", "dashboard", "discover"}  # they make one, or read none
MORE = {
    "diff": ["{folder}/b.json"],
    "infer": ["--input", "x=[1]"],
    "calendar": ["{folder}/trace.csv"],
    "token": ["--worker", "w"],
    "gateway": ["--peers", "{folder}/peers.json"],
    "label": ["--id", "a", "--label", "1"],
}
COMMANDS = [name for name in rows_of(PROGRAM) if name not in WITHOUT_FOLDER and not is_group(name)]


def said(*arguments: str, status: int = 2) -> str:
    done = jellybean(*arguments, status=status)
    text = " ".join(done.stderr.replace("│", "").split())
    assert text and "Errno" not in text and "Error:" not in text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_not_there_or_is_a_file(command: str, tmp_path: Path) -> None:
    for name in ("trace.csv", "peers.json", "file"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    more = [part.format(folder=tmp_path) for part in MORE.get(command, [])]
    assert "folder not found" in said(command, str(tmp_path / "nowhere"), *more)
    assert "is a file; a project is a folder" in said(command, str(tmp_path / "file"), *more)


@pytest.mark.parametrize("content", [b"text\n", b"\x83\x01\xff", b"a: [1\n", b""])
def test_a_kubeconfig_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(content)
    told = said("discover", "--tiers", "edge", "--kubeconfig", str(tmp_path / "config"), status=1)
    assert told.startswith("no cluster to talk to: ")


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        assert "--kubeconfig" in said("discover", "--tiers", "edge", "--kubeconfig", str(place))


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07" + bytes(40)])
def test_a_model_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert "m.onnx is not an ONNX model: it is " in said("pipeline", "profile", str(tmp_path / "m.onnx"))


def test_a_choice_that_is_none_is_told_without_the_name_of_an_exception(tmp_path: Path) -> None:
    for command, option in (("cost", "--by"), ("accuracy", "--by"), ("up", "--log-format")):
        told = said(command, str(tmp_path), option, "bogus")
        assert "'bogus' is not one of" in told and "Value error" not in told


def test_labels_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(b"id,label\n\xff,1\n")
    told = said("label", str(tmp_path), str(tmp_path / "labels.csv"))
    assert told.endswith("labels.csv is not UTF-8 text: invalid start byte at byte 9")


@pytest.mark.parametrize("command", [("schema", "workflow"), ("schema",), ("operator", "crd")])
def test_what_a_machine_reads_is_json_with_the_option(command: tuple[str, ...]) -> None:
    assert json.loads(jellybean(*command, "--json").stdout)
    wrong = json.loads(jellybean(*command, "--json", "--nonsense", status=2).stdout)
    assert wrong["error"]["kind"] == "usage"
