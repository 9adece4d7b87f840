"""A state file that came with a project stops no process and removes no folder."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from jellybean.errors import InputError
from jellybean.serving import GATEWAY_NAME, NotRunningError, RunState, read_state, running_state
from jellybean.serving.local.processes import process_state, spawn
from jellybean.serving.local.running import down
from jellybean.serving.run_folder import _digest, claim_run_folder
from jellybean.serving.run_processes import program_of
from jellybean.serving.run_state import (
    ProcessState,
    clear_state,
    remove_run_folder,
    state_path,
    write_state,
)
from tests.support.run_processes import idle_command, idle_process

IDLE = (sys.executable, "-S", "-c", "import time; time.sleep(60)")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / ".jellybean").mkdir(parents=True)
    return directory


@pytest.fixture
def somebody(tmp_path: Path) -> Iterator[ProcessState]:
    """A process that belongs to no project, as a state file would list it."""
    child = spawn(IDLE, tmp_path, tmp_path / "log")
    while psutil.Process(child.pid).cmdline()[-1:] != [IDLE[-1]]:  # until then it may be any process
        time.sleep(0.01)
    yield process_state(GATEWAY_NAME, child, IDLE, "unix:none", Path("log"))
    child.kill()
    child.wait()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A private folder of the user, with a folder in it."""
    folder = tmp_path / "documents"
    (folder / "1").mkdir(parents=True)
    folder.chmod(0o700)
    return folder


def state_of(folder: Path, *processes: ProcessState, **fields: Any) -> RunState:
    return RunState("hash", "flow", str(folder), str(folder / "1"), "unix:none", processes=processes, **fields)


def forge(project: Path, state: RunState, **fields: Any) -> None:
    write_state(project, state)
    found = json.loads(state_path(project).read_text()) | fields
    state_path(project).write_text(json.dumps(found))


@pytest.mark.parametrize("command", [IDLE, (), "of this project"])
@pytest.mark.parametrize("role", ["processes", "others", "keeper"])
def test_no_other_process_is_stopped(
    project: Path, somebody: ProcessState, documents: Path, command: Any, role: str
) -> None:
    """Neither by its id and start alone, nor by a command line that only the file says it has."""
    entry = dataclasses.replace(somebody, command=idle_command(project) if command == "of this project" else command)
    forge(project, dataclasses.replace(state_of(documents), **{role: entry if role == "keeper" else (entry,)}))
    with pytest.raises(NotRunningError):
        running_state(project)
    if command == "of this project":
        down(project)  # what the file lists counts as ended
    else:
        with pytest.raises(NotRunningError):
            down(project)
    assert somebody.pid in _living(somebody) and documents.is_dir()


def _living(process: ProcessState) -> set[int]:
    status = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return set() if status == "Z" else {process.pid}


def test_a_process_of_another_project_is_not_stopped(project: Path, documents: Path) -> None:
    other = project.with_name("other")
    other.mkdir()
    with idle_process(other) as theirs:
        forge(project, state_of(documents, theirs))
        assert read_state(project) is None
        forge(project, state_of(documents, theirs), directory=str(other))
        assert read_state(project) is None
        forge(project, state_of(documents, dataclasses.replace(theirs, command=idle_command(project))))
        down(project)
        assert theirs.process() is not None


def test_a_run_of_an_earlier_format_stops_nothing_more(project: Path, somebody: ProcessState, documents: Path) -> None:
    keeper = dataclasses.replace(somebody, name="keeper", command=("python", str(project), "folder"))
    forge(project, state_of(documents, somebody, keeper=keeper), version=3)
    with pytest.raises(NotRunningError):
        down(project)
    assert _living(somebody) and documents.is_dir()


def test_no_folder_is_removed_that_was_not_made_for_a_run_of_the_project(project: Path, documents: Path) -> None:
    state = state_of(documents)
    for target in (documents, documents / "1", documents.parent, "", "/"):
        remove_run_folder(project, state, target)
    clear_state(project, state)
    assert (documents / "1").is_dir()
    other = project.with_name("other")
    other.mkdir()
    claim_run_folder(other, documents)  # of another project
    clear_state(project, state)
    assert (documents / "1").is_dir()


@pytest.mark.parametrize("stated", ["notes", "/nowhere", "the project"])
def test_a_file_that_names_a_project_makes_no_folder_one_of_a_run(project: Path, documents: Path, stated: str) -> None:
    text = str(project) if stated == "the project" else stated
    (documents / "project").write_text(text, encoding="utf-8")
    forge(project, state_of(documents))
    down(project)
    assert (documents / "1").is_dir() and not state_path(project).exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"folder": 5},
        {"folder": None},
        {"folder": "\0"},
        {"gateway_address": ["unix:x"]},
        {"peers": "a\0b"},
        {"stopping": "yes"},
        {"directory": None},
        {"boot": None},
    ],
)
def test_a_state_with_other_types_or_of_no_folder_is_none(project: Path, documents: Path, fields: Any) -> None:
    forge(project, state_of(documents))
    found = json.loads(state_path(project).read_text()) | fields
    missing = [name for name in ("directory", "boot") if found[name] is None]
    state_path(project).write_text(json.dumps({name: value for name, value in found.items() if name not in missing}))
    assert read_state(project) is None
    with pytest.raises(NotRunningError):
        down(project)


def test_a_runs_own_folder_is_removed_and_nothing_beside_it(project: Path, documents: Path) -> None:
    documents = documents.rename(documents.with_name(f"{_digest(project)}-run"))
    claim_run_folder(project, documents)
    state = state_of(documents)
    beside = project.with_name("beside")
    beside.mkdir()
    remove_run_folder(project, state, beside)
    remove_run_folder(project, state, documents / ".." / "beside")
    assert beside.is_dir()
    remove_run_folder(project, state, documents / "1")
    assert not (documents / "1").exists() and documents.is_dir()
    documents.chmod(0o755)  # others may have written into it
    clear_state(project, state)
    assert documents.is_dir()
    documents.chmod(0o700)
    clear_state(project, state)
    assert not documents.exists()


def test_the_end_of_a_run_leaves_the_state_of_a_later_one(project: Path, documents: Path) -> None:
    with idle_process(project) as later:
        ended = state_of(documents)
        write_state(project, state_of(documents.with_name("later"), later))
        clear_state(project, ended)
        assert running_state(project).processes[0].pid == later.pid
    clear_state(project, state_of(documents.with_name("later")))
    assert not state_path(project).exists()


def test_a_state_that_is_a_link_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text("{}")
    state_path(project).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(InputError, match=r"run\.json is a link"):
        down(project)


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("bash",),
        ("python", "-m"),
        ("python", "-m", "http.server", "--root=/x"),
        ("python", "-m", "jellybean_agent"),
        ("python", "-m", "jellybean_agent", "--root="),
        ("python", "-m", "jellybean.serving.local.keeper"),
    ],
)
def test_other_command_lines_are_of_no_run(command: tuple[str, ...]) -> None:
    assert program_of(command) is None


@contextmanager
def deep_folder(place: Path) -> Iterator[None]:
    """Make folders in `place`, deeper than Python recurses; `shutil.rmtree` and pytest could not remove them."""
    place.mkdir(parents=True, exist_ok=True)
    folder = os.open(place, os.O_RDONLY)
    try:
        for _ in range(sys.getrecursionlimit() + 200):
            os.mkdir("a", dir_fd=folder)
            inner = os.open("a", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield
    finally:
        os.close(folder)
        subprocess.run(["rm", "-rf", str(place)], check=True)


@pytest.mark.slow
def test_down_of_a_project_of_any_depth_ends_with_a_message(project: Path, documents: Path) -> None:
    documents = documents.rename(documents.with_name(f"{_digest(project)}-run"))
    claim_run_folder(project, documents)
    with deep_folder(documents / "1"):
        clear_state(project, state_of(documents))  # what no run has made may stay, and the state goes
        assert not state_path(project).exists()
    with deep_folder(project / ".jellybean" / "logs"), pytest.raises(InputError, match="folders in each other"):
        down(project)
