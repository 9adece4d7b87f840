"""Where a run's folder lies, and when a folder that was left behind goes."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jellybean.serving.errors import LaunchError
from jellybean.serving.local.run_files import RunFiles
from jellybean.serving.run_folder import (
    hold,
    is_held,
    is_named_for,
    make_run_folder,
    project_of,
    remove_left_behind,
)
from jellybean.serving.run_state import RunState

VARIABLES = ("RUNTIME_DIRECTORY", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # not pytest's folder, whose path may be too long
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(prefix="jb-") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOME": "home", "XDG_RUNTIME_DIR": "run"}, "home/.local/state/jellybean"),
        ({"HOME": "home", "XDG_STATE_HOME": "state"}, "state/jellybean"),
        ({"HOME": "home", "RUNTIME_DIRECTORY": "service"}, "service"),
        ({"XDG_RUNTIME_DIR": "run"}, "p/.jellybean/run"),
        ({}, "p/.jellybean/run"),
        ({"HOME": "x" * 90}, "p/.jellybean/run"),
        ({"HOME": "h#%41?"}, "h#%41?/.local/state/jellybean"),
        ({"HOME": "h\udcff"}, "p/.jellybean/run"),  # no UTF-8: no message can name it
    ],
)
def test_a_run_lies_where_no_cleaner_of_temporary_files_comes(
    place: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(place / folder))
    project = place / "p"
    folder = make_run_folder(project)
    assert folder.parent == place / expected
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert is_named_for(folder, project) and project_of(folder) == str(project)
    assert not list(folder.glob("*.sock"))


def test_a_place_that_cannot_be_used_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "home").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    project = place / ("p" * 90)
    assert make_run_folder(project).name.startswith("jellybean-")
    assert make_run_folder(project).parent == place
    monkeypatch.setattr(tempfile, "mkdtemp", _refused)
    with pytest.raises(LaunchError, match=r"no folder for the sockets: .*home.*; .*\.jellybean/run \(") as error:
        make_run_folder(project)
    assert " is full (" in str(error.value) and "XDG_STATE_HOME" in str(error.value)


def _refused(**_: object) -> str:
    raise OSError(28, "no space")


def test_a_folder_left_behind_goes_unless_it_is_held(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place / "home"))
    project, other = place / "p", place / "q"
    left, held, beside = make_run_folder(project), make_run_folder(project), make_run_folder(other)
    lock = hold(held)
    remove_left_behind(project)
    assert [folder.exists() for folder in (left, held, beside)] == [False, True, True]
    os.close(lock)
    remove_left_behind(project)
    assert not held.exists()


def test_who_looks_whether_a_run_lives_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookers = [os.open(tmp_path, os.O_RDONLY)]
    fcntl.flock(lookers[0], fcntl.LOCK_EX)
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", lambda _: os.close(lookers.pop()))
        assert not is_held(tmp_path)
    lock = hold(tmp_path)
    assert is_held(tmp_path)
    os.close(lock)
    assert not is_held(tmp_path)


@pytest.mark.parametrize("made", ["a link", "writable by all", "a file"])
def test_nothing_is_written_where_others_may_have_made_the_runs_folder(tmp_path: Path, made: str) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    plan = folder / "1"
    plan.mkdir(parents=True)
    folder.chmod(0o700)
    (plan / "plan.json").write_text("{}", encoding="utf-8")
    files, state = RunFiles(folder), RunState("hash", "flow", str(folder), str(plan))
    shutil.rmtree(folder)
    elsewhere.mkdir()
    match made:
        case "a link":
            folder.symlink_to(elsewhere)
        case "a file":
            folder.touch()
        case _:
            folder.mkdir()
            folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write in the run's folder"):
        files.restore(state)
    with pytest.raises(PermissionError):
        files.require_safe()
    assert not plan.exists() and not list(elsewhere.iterdir())
    folder.rmdir() if made == "writable by all" else folder.unlink()
    assert files.restore(state) == [plan / "plan.json"]
    assert (plan / "plan.json").read_text(encoding="utf-8") == "{}" and is_held(folder)
