"""A run is known, and ended, whatever is missing around it: clock, state file, disk, rights."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from jellybean.folders import state_folder
from jellybean.ledger.value_figures import Port
from jellybean.serving import GATEWAY_NAME, NotRunningError, RunState, running_state
from jellybean.serving.enrolment import enrolment
from jellybean.serving.errors import AlreadyRunningError, NoAccessError, RequestError
from jellybean.serving.gateway.accounting.value_log import ValueLog
from jellybean.serving.local import running
from jellybean.serving.local.keeper import Keeper
from jellybean.serving.local.launcher import _require_down
from jellybean.serving.local.running import StopLimits, down
from jellybean.serving.run_folder import _digest, hold
from jellybean.serving.run_processes import KEEPER_NAME, age_s, processes_of_project, start_ticks
from jellybean.serving.run_state import failing, naming_failing, read_state, run_of, state_path, write_state
from jellybean.serving.spool.spool import Spool
from jellybean_agent import Identity, Role, StatusError
from tests.support.command_line import jellybean
from tests.support.run_processes import idle_command, idle_process
from tests.support.scripted_workers import scale_view, tensor
from tests.support.waiting import wait_until

QUICKLY = StopLimits(status_s=0.1, terminate_s=10.0)


@dataclasses.dataclass(frozen=True)
class Idle:
    """A project with a run of idle processes."""

    project: Path
    folder: Path
    state: RunState

    @property
    def living(self) -> set[str]:
        return {entry.name for entry, _ in self.state.alive()}


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Idle]:
    project = tmp_path / "project"
    project.mkdir()
    state_folder(project)
    folder = tmp_path / f"{_digest(project)}-run"
    (folder / "1").mkdir(mode=0o700, parents=True)
    names = (GATEWAY_NAME, "edge-1", KEEPER_NAME)
    with ExitStack() as stack:
        entries = {name: stack.enter_context(idle_process(project, name, folder=folder)) for name in names}
        keeper = entries.pop(KEEPER_NAME)
        state = RunState("hash", "flow", str(folder), str(folder / "1"), "unix:none", keeper=keeper)
        state = dataclasses.replace(state, processes=tuple(entries.values()))
        write_state(project, state)
        yield Idle(project, folder, state)


@pytest.mark.parametrize("step_s", [-3600.0, -1.0, 5.0, 3600.0])
def test_a_process_lives_however_the_clock_is_set(idle: Idle, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """The date of the machine's start, from which dates of processes are computed, moves with the clock."""
    wall, start = time.time, psutil.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: start + step_s)
    monkeypatch.setattr(psutil._pslinux, "BOOT_TIME", None, raising=False)  # where older psutil keeps it
    monkeypatch.setattr(time, "time", lambda: wall() + step_s)
    assert abs(psutil.Process(idle.state.processes[0].pid).create_time() - wall() - step_s) < 60.0
    state = read_state(idle.project)
    assert state is not None
    assert {entry.name for entry, _ in state.alive()} == {GATEWAY_NAME, "edge-1", KEEPER_NAME}
    assert 0.0 <= age_s(start_ticks(state.processes[0].pid)) < 60.0


@pytest.mark.parametrize("lost", ["removed", "damaged", "of another boot"])
def test_a_run_without_its_state_file_is_up_and_can_be_ended(idle: Idle, lost: str) -> None:
    """The keeper, which would write the file again, has ended too."""
    assert idle.state.keeper is not None
    (keeper := idle.state.keeper.process()).kill()  # type: ignore[union-attr]
    keeper.wait(10)
    text = state_path(idle.project).read_text(encoding="utf-8")
    match lost:
        case "removed":
            state_path(idle.project).unlink()
        case "damaged":
            state_path(idle.project).write_text(text[: len(text) // 2], encoding="utf-8")
        case _:
            state_path(idle.project).write_text(text.replace('"boot": "', '"boot": "0'), encoding="utf-8")
    state = run_of(idle.project)
    assert state is not None
    assert (state.version, state.folder, state.gateway_address) == (0, str(idle.folder), f"unix:{idle.folder}/g.sock")
    assert {entry.name: entry.pid for entry in state.processes} == {e.name: e.pid for e in idle.state.processes}
    with pytest.raises(AlreadyRunningError, match="is up already"):
        _require_down(idle.project)
    _make_socket(idle)
    with pytest.raises(running.ServingError, match="did not say how many"):
        down(idle.project, limits=QUICKLY)
    assert not idle.living


def _make_socket(idle: Idle) -> None:
    """A file where the gateway would listen, for which a command would wait; nobody answers there."""
    (idle.folder / "g.sock").touch()


def test_up_says_what_top_says_of_a_run_that_has_only_agents_left(idle: Idle) -> None:
    gateway, _ = idle.state.processes
    for entry in (gateway, idle.state.keeper):
        assert entry is not None
        (process := entry.process()).kill()  # type: ignore[union-attr]
        process.wait(10)
    with pytest.raises(AlreadyRunningError, match="have died, and not yet edge-1: `jellybean down"):
        _require_down(idle.project)
    with pytest.raises(NotRunningError, match="has died; `jellybean down"):
        running_state(idle.project)


def test_a_run_whose_state_cannot_be_written_is_ended(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(running, "write_state", full)
    monkeypatch.setattr(running, "clear_state", full)
    with pytest.raises(running.ServingError, match="did not say how many"):
        down(idle.project, limits=QUICKLY)
    assert not idle.living
    with pytest.raises(NotRunningError, match="nothing is up"):  # what the file says misleads nobody
        running_state(idle.project)


def test_down_ends_processes_that_the_state_file_does_not_list(idle: Idle) -> None:
    """The keeper has started the agent again while the disk was full."""
    gateway, agent = idle.state.processes
    write_state(idle.project, dataclasses.replace(idle.state, processes=(gateway,), gateway_address=""))
    assert down(idle.project, limits=QUICKLY) == 0
    assert agent.process() is None and not idle.living


def test_a_tool_that_was_given_the_command_line_of_a_run_is_not_stopped(idle: Idle) -> None:
    words = idle_command(idle.project, KEEPER_NAME, idle.folder)
    with subprocess.Popen(("watch", *words[1:]), executable=words[0]) as tool:
        assert {live.pid for live in processes_of_project(idle.project)} == {
            entry.pid for entry, _ in idle.state.alive()
        }
        tool.kill()


def test_who_may_not_read_the_state_is_told_whose_it_is(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)  # root, as which tests may run, may read all
    for call in (running_state, down, _require_down):
        with pytest.raises(NoAccessError, match=r"permission denied: user \w+ may not read .*, which belongs to user"):
            call(idle.project)


def test_a_run_in_another_container_is_up(idle: Idle) -> None:
    """Its processes have other ids there, if any here: its keeper holds the run's folder."""
    unseen = tuple(dataclasses.replace(process, pid=os.getpid()) for process in idle.state.processes)
    for entry, process in idle.state.alive():
        process.kill()
        process.wait(10)
        assert entry.process() is None
    write_state(idle.project, dataclasses.replace(idle.state, processes=unseen, keeper=None))
    lock = hold(idle.folder)
    for call, error in (
        (running_state, NotRunningError),
        (down, NotRunningError),
        (_require_down, AlreadyRunningError),
    ):
        with pytest.raises(error, match="in another container"):
            call(idle.project)
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
    _require_down(idle.project)
    assert not state_path(idle.project).exists()


def test_ages_do_not_move_with_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time
    spool, values, view = Spool.open(tmp_path / "spool"), ValueLog(), scale_view(tmp_path, "edge-1")
    arrived_s = spool._now_unix_s()
    values.see(view, Port.SOURCE, {"x": tensor(1.0)})
    token, other = tmp_path / "token", tmp_path / "other"
    for path, life_s in ((token, 900.0), (other, -1.0)):
        secret = enrolment.make_token(path, _Authority(), Identity("flow", Role.AGENT, "edge-1"), life_s=life_s).secret
        for step_s in (3600.0, -3600.0):
            monkeypatch.setattr(time, "time", lambda step_s=step_s: wall() + step_s)
            if life_s > 0:
                assert enrolment.identity_of(path, secret).endswith("edge-1")
            else:
                with pytest.raises(StatusError):
                    enrolment.identity_of(path, secret)
        monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr(time, "time", lambda: wall() + 3600.0)
    assert spool.age_s(arrived_s) < 60.0
    spool.close()
    assert all(line.seconds < 60.0 for line in values.take())


class _Authority:
    bundle = b""


def test_the_run_of_a_project_that_was_removed_is_stopped(idle: Idle) -> None:
    shutil.rmtree(idle.project)
    _make_socket(idle)
    result = jellybean("down", str(idle.project), "--timeout", "0", status=1)
    assert "is down, but its gateway did not say" in result.stderr
    assert not idle.living
    assert not idle.project.exists(), "nothing makes it again"
    assert "folder not found" in jellybean("down", str(idle.project), status=2).stderr


def test_a_project_that_was_moved_is_not_made_again_where_it_was(idle: Idle, tmp_path: Path) -> None:
    moved = idle.project.rename(tmp_path / "moved")
    (agent := idle.state.processes[1].process()).kill()  # type: ignore[union-attr]
    agent.wait(10)
    keeper = Keeper(idle.project, str(idle.folder))
    keeper._state = idle.state
    with pytest.raises(FileNotFoundError, match=r"project is gone"):
        keeper._restart("edge-1")
    assert not idle.project.exists()
    state = read_state(moved)
    assert state is not None
    assert f"the project was moved here from {idle.project}" in failing(state)[0]


def test_a_process_that_is_suspended_is_named_with_what_lets_it_go_on(idle: Idle) -> None:
    gateway = idle.state.processes[0]
    os.kill(gateway.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(gateway.pid).status() == psutil.STATUS_STOPPED)
    try:
        reason = f"gateway is suspended (process {gateway.pid}): `kill -CONT {gateway.pid}` lets it go on"
        assert failing(idle.state) == (reason,)
        with pytest.raises(RequestError, match=re.escape(reason)), naming_failing(idle.project):
            raise RequestError("UNAVAILABLE", "no process answers")
    finally:
        os.kill(gateway.pid, signal.SIGCONT)
