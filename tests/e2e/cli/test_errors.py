"""What the command line says when something is wrong: words and a way out, and JSON with --json."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import jellybean


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects") / "vqa"
    jellybean("init", "vqa", str(directory))
    return directory


def error(*arguments: str, status: int) -> dict[str, Any]:
    """The error object that a command prints with --json; people read its message on stderr."""
    done = jellybean(*arguments, "--json", status=status)
    found: dict[str, Any] = json.loads(done.stdout)["error"]
    assert set(found) == {"kind", "message", "problems"}
    assert found["message"].splitlines()[0] in done.stderr
    return found


@pytest.mark.parametrize(
    "command", ["validate", "plan", "explain", "frontier", "simulate", "bench", "report", "infer --input a=b.npy"]
)
def test_bad_input_is_json_with_file_line_and_path(vqa: Path, tmp_path: Path, command: str) -> None:
    name, *options = command.split()
    (missing,) = error(name, str(tmp_path / "nowhere"), *options, status=2)["problems"]
    assert missing["message"] == "folder not found"
    found = error(name, str(vqa), *options, "--set", "slo.acuracy=57", status=2)
    assert found["kind"] == "documents"
    assert found["problems"][0]["path"] == "slo.acuracy"
    broken = tmp_path / "broken"
    shutil.copytree(vqa, broken)
    (broken / "workflow.yaml").write_text(
        (vqa / "workflow.yaml").read_text(encoding="utf-8").replace("accuracy: 56", "accuracy: high"), encoding="utf-8"
    )
    if name in {"report", "infer"}:  # they do not read the documents
        return
    (problem,) = error(name, str(broken), status=2)["problems"]
    assert (Path(problem["file"]).name, problem["line"], problem["path"]) == ("workflow.yaml", 12, "slo.accuracy")


def test_a_wrong_command_line_is_json(vqa: Path) -> None:
    for arguments in ("plan", f"plan {vqa} --nonsense", f"plann {vqa}", f"plan {vqa} --gap x"):
        assert error(*arguments.split(), status=2)["kind"] == "usage"
    assert "there is no plan yet" in error("diff", str(vqa), str(vqa), status=2)["message"]


@pytest.mark.nightly
def test_errors_of_the_system_are_words(vqa: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    answers = [
        jellybean("init", "vqa", str(tmp_path / "file" / "x"), status=1).stderr,
        jellybean("infer", str(vqa), "--input", f"image={tmp_path}", status=2).stderr,
        jellybean("infer", str(vqa), "--input", "image=nowhere.png", status=2).stderr,
        jellybean("plan", str(vqa), "--check", str(tmp_path / "nowhere.csv"), status=2).stderr,
        jellybean("plan", str(vqa), "--check", str(tmp_path), status=2).stderr,
        jellybean("diff", str(tmp_path / "nowhere.json"), str(vqa), status=2).stderr,
    ]
    for wrong in (tmp_path, tmp_path / "nowhere" / "page.html"):  # before the report is made
        done = jellybean("report", str(vqa), "--html", str(wrong), status=2)
        assert done.stdout == ""
        answers.append("".join(done.stderr.replace("│", "").split()))
    for answer in answers:
        assert "Errno" not in answer
        assert str(tmp_path) in answer or "nowhere.png" in answer


def test_nothing_half_done_stands_above_an_error_in_a_log(vqa: Path) -> None:
    for arguments in (["frontier", str(vqa), "--set", "slo.budget=1 EUR/h"], ["plan", str(vqa), "--check", "no.csv"]):
        (line,) = jellybean(*arguments, status=2).stderr.splitlines()
        assert "no.csv" in line or "EUR/h" in line


def on_a_terminal(*arguments: str, columns: int = 120, shows_stdout: bool = False) -> str:
    """What a command writes on a terminal's stderr; with `shows_stdout`, stdout is the same terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "jellybean", *arguments]
    stdout = theirs if shows_stdout else subprocess.DEVNULL
    with subprocess.Popen(command, stdin=theirs, stdout=stdout, stderr=theirs, env=environment):
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # how Linux says that the other side has closed it
            while part := os.read(ours, 65536):
                written += part
    os.close(ours)
    return written.decode()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "explain", "frontier"])
def test_work_shows_progress_on_a_terminal_and_ends_whole(vqa: Path, command: str) -> None:
    written = on_a_terminal(command, str(vqa))
    # The steps of `explain` take unlike times: it shows how many are done, and no time left.
    assert ("left" in written) == (command != "explain")
    assert "elapsed" in written
    last = written.split("\x1b[2K")[-1]
    assert f"{command}: done" in last


def test_no_bar_stands_above_an_error_on_a_terminal(vqa: Path) -> None:
    *drawn, left = on_a_terminal("plan", str(vqa), "--check", "none.csv").split("\x1b[2K")
    assert any("━" in part for part in drawn)
    assert "none.csv" in left
    assert "━" not in left


def test_the_version_and_the_first_steps(tmp_path: Path) -> None:
    name, version = jellybean("--version").stdout.split()
    assert name == "jellybean"
    assert version[0].isdigit()
    steps = [line.split()[1] for line in jellybean("init", "digits", str(tmp_path / "d")).stdout.splitlines()[1:]]
    assert steps == ["profile", "plan", "simulate", "up", "bench", "report", "down"]
    assert "profile " not in jellybean("init", "vqa", str(tmp_path / "v")).stdout, "its models are not here"


NOTE = "profiles.yaml: the times were not measured on a machine like this one"


@pytest.fixture(scope="module")
def elsewhere(vqa: Path) -> Path:
    """A project whose times are of another machine, which is a long note."""
    folder = vqa.parent / "elsewhere"
    jellybean("init", "digits", str(folder))
    profiles = folder / "profiles.yaml"
    text = profiles.read_text(encoding="utf-8")
    profiles.write_text(re.sub(r"(onnxruntime:) \S+", r"\1 1.0.0", text), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 60])
def test_an_explanation_and_its_notes_wrap_to_the_terminals_width(elsewhere: Path, columns: int) -> None:
    options = ("--set", "slo.accuracy=99.9", "--why-not", "hub")
    written = on_a_terminal("explain", str(elsewhere), *options, columns=columns, shows_stdout=True)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain)]
    assert "no plan meets the targets" in plain and "Sufficient on its own" in plain
    # A path or a command to be copied is whole, and longer than the terminal only if it does not fit in any line.
    too_long = [line for line in lines if len(line) > columns]
    assert [line for line in too_long if " " in line.strip() and not line.startswith("jellybean ")] == []
    assert any(line.endswith(f"jellybean profile {elsewhere}") for line in lines)  # where depends on the CPU's name
    assert NOTE not in lines and NOTE.split(": ")[1].split(maxsplit=1)[0] in plain


@pytest.mark.slow
def test_a_piped_explanation_has_whole_lines(elsewhere: Path) -> None:
    answer = jellybean("explain", str(elsewhere), "--set", "slo.accuracy=99.9", status=3)
    (note,) = [line for line in answer.stderr.splitlines() if NOTE in line]
    assert note.endswith(f"jellybean profile {elsewhere}") and len(note) > 160
    (reason,) = [line for line in answer.stdout.splitlines() if line.startswith("accuracy: ")]
    assert "the best selection reaches" in reason
