"""The state file of a run belongs to one folder: a copy of a project that is up is not up."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jellybean.serving import (
    Client,
    NotRunningError,
    RequestError,
    RunState,
    read_state,
    run_state,
    running_state,
)
from jellybean.serving.errors import AlreadyRunningError, LaunchError, OtherVersionError
from jellybean.serving.local.launcher import _require_down
from jellybean.serving.local.replace_plan import apply
from jellybean.serving.local.running import down
from jellybean.serving.run_processes import KEEPER_MODULE, start_ticks
from jellybean.serving.run_state import ProcessState, state_path, write_state
from tests.support.run_processes import idle_command, idle_process
from tests.support.tiny_models import make_plan, scale


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project whose state file names an idle process as its gateway."""
    directory = tmp_path / "project"
    (directory / ".jellybean").mkdir(parents=True)
    with idle_process(directory) as gateway:
        write_state(directory, RunState("hash", "flow", "folder", "folder/1", "unix:none", processes=(gateway,)))
        yield directory


def test_a_copy_of_a_project_that_is_up_is_not_up(project: Path) -> None:
    copy = project.with_name("copy")
    shutil.copytree(project, copy)
    assert read_state(copy) is None
    with pytest.raises(NotRunningError, match="nothing is up"):
        running_state(copy)
    with pytest.raises(NotRunningError, match="nothing is up"):  # and does not stop the other project's processes
        down(copy)
    assert running_state(project).processes[0].process() is not None
    state_path(project).unlink()  # its own run ends
    assert read_state(copy) is None


def test_a_project_that_was_moved_while_it_is_up_is_up(project: Path) -> None:
    moved = project.rename(project.with_name("moved"))
    assert running_state(moved).plan == "hash"
    write_state(moved, running_state(moved))  # it states the new place
    copy = shutil.copytree(moved, project.with_name("copy"))
    assert read_state(copy) is None


def test_a_run_of_the_version_before_is_up_but_a_copy_of_it_is_not(project: Path) -> None:
    operators = {"times": (["x"], scale(project / "models/times.onnx", 2.0))}
    state = json.loads(state_path(project).read_text(encoding="utf-8"))
    state["processes"][0]["started"] = 1.7e9  # a date, by a clock that has been set since
    keeper = {**state["processes"][0], "name": "keeper"}
    keeper["command"] = ["python", "-m", KEEPER_MODULE, str(project), "folder"]
    for keeper_of_state in (None, keeper):  # before it is started, and then
        state_path(project).write_text(json.dumps({**state, "version": 3, "keeper": keeper_of_state}), encoding="utf-8")
        assert (running_state(project).plan, running_state(project).version) == ("hash", 3)
    with pytest.raises(AlreadyRunningError, match="is up already"):
        _require_down(project)
    with pytest.raises(LaunchError, match=f"`jellybean down {project}` stops it"):
        apply(project, make_plan(project, operators, [(1.0, {"times": "edge-1"})], sources={"x": "edge"}))
    copy = shutil.copytree(project, project.with_name("copy"))
    assert read_state(copy) is None


@pytest.mark.parametrize("change", [{"version": 5}, {"version": 2, "directory": None, "boot": None}])
def test_a_run_of_a_version_that_cannot_be_read_is_said_to_be_up(project: Path, change: dict[str, Any]) -> None:
    state = {**json.loads(state_path(project).read_text(encoding="utf-8")), "new": {}, **change}
    state_path(project).write_text(
        json.dumps({name: value for name, value in state.items() if value is not None}), encoding="utf-8"
    )
    message = rf"is up \(processes {state['processes'][0]['pid']}\), .* its `jellybean down {project}` stops it"
    for call in (running_state, _require_down, down):
        with pytest.raises(OtherVersionError, match=message):
            call(project)
    copy = shutil.copytree(project, project.with_name("copy"))
    if "directory" not in change:
        assert read_state(copy) is None
    state["processes"][0]["pid"] = os.getpid()  # it has ended, and another process has its id
    state_path(project).write_text(json.dumps(state), encoding="utf-8")
    assert read_state(project) is None


@pytest.mark.parametrize(
    "content",
    [
        {"version": 99},
        {"version": "2.1.0\x1b[31m", "processes": []},
        {"version": 7, "processes": [{"name": "a"}]},
        {"version": 7, "processes": {"1": "a"}, "keeper": "a"},
        {"version": 7, "processes": [{"pid": True}]},
    ],
)
def test_a_state_file_of_another_program_is_no_run_and_is_left_alone(project: Path, content: dict[str, Any]) -> None:
    state_path(project).write_text(json.dumps(content), encoding="utf-8")
    for call in (running_state, _require_down, down):
        with pytest.raises(OtherVersionError, match="is no state file of JellyBean") as refusal:
            call(project)
        assert "move it away, then run the command again" in str(refusal.value)
        assert "another version" not in str(refusal.value)
        assert "\x1b" not in str(refusal.value)
    assert json.loads(state_path(project).read_text(encoding="utf-8")) == content


def test_the_client_of_a_project_names_the_worker_that_cannot_restart(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_arguments: object) -> None:
        raise RequestError("UNAVAILABLE", "worker rack-1 is gone")

    state = running_state(project)
    now = start_ticks(os.getpid())
    rack = ProcessState(
        "rack-1",
        0,
        now,
        "unix:rack",
        "rack.log",
        idle_command(project, "rack-1"),
        restarts=11,
        death="status 2\nsha256: it was altered",
    )
    write_state(project, dataclasses.replace(state, processes=(*state.processes, rack)))
    monkeypatch.setattr(Client, "_call", gone)
    monkeypatch.chdir(project.parent)
    with Client.of(project.name) as client, pytest.raises(RequestError) as refusal:
        monkeypatch.chdir("/")
        client.infer({})
    assert str(refusal.value) == (
        "worker rack-1 is gone; rack-1 was started again 11 times and ended each time: sha256: it was altered "
        "(log: rack.log) (UNAVAILABLE)"
    )
    with Client("unix:none") as client, pytest.raises(RequestError, match=r"^worker rack-1 is gone \(UNAVAILABLE\)$"):
        client.infer({})


def test_the_commands_of_messages_can_be_typed(project: Path) -> None:
    spaced = project.rename(project.with_name("the project's"))
    typed = shlex.quote(str(spaced))
    with pytest.raises(AlreadyRunningError) as refusal:
        _require_down(spaced)
    assert f"`jellybean apply {typed}`" in str(refusal.value) and f"`jellybean down {typed}`" in str(refusal.value)
    write_state(spaced, dataclasses.replace(running_state(spaced), stopping=True))
    with pytest.raises(NotRunningError) as stopped:
        running_state(spaced)
    assert f"`jellybean down {typed}` ends it" in str(stopped.value)
    state_path(spaced).unlink()
    with pytest.raises(NotRunningError) as refused:
        running_state(spaced)
    assert f"`jellybean up {typed}`" in str(refused.value)


def test_one_folder_may_have_several_paths(project: Path) -> None:
    link = project.with_name("link")
    link.symlink_to(project)
    assert running_state(link).plan == "hash"


def test_a_state_of_an_earlier_boot_is_none(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boot_id").write_text("another\n", encoding="utf-8")
    monkeypatch.setattr(run_state, "_BOOT_ID", tmp_path / "boot_id")
    assert read_state(project) is None
