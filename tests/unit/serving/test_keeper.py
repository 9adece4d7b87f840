"""The keeper with a real child, on a disk that is full for a while."""

from __future__ import annotations

import dataclasses
import errno
import os
import platform
import select
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from jellybean.folders import state_folder
from jellybean.serving import NotRunningError, RunState, read_state, running_state
from jellybean.serving.local import keeper
from jellybean.serving.local.keeper import Keeper
from jellybean.serving.local.log_files import MAX_LOG_BYTES, earlier_log
from jellybean.serving.local.processes import describe_end, exit_code, process_state, spawn
from jellybean.serving.run_state import ProcessState, mark_drained, state_path, write_state
from tests.support.run_processes import idle_command, idle_process
from tests.support.skips import Absent
from tests.support.waiting import wait_until


def test_a_disk_that_is_full_delays_no_restart_and_leaves_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is started again though the state file cannot say so; it says so as soon as it can."""
    state_folder(tmp_path)
    command = idle_command(tmp_path, "edge-1")
    dead = ProcessState("edge-1", 2**22 + 1, 0, "", str(tmp_path / "log"), command)
    write_state(tmp_path, RunState("hash", "flow", "folder", "folder/1", "unix:none", processes=(dead,)))
    tried: list[int] = []

    def write(directory: Path, state: RunState) -> None:
        tried.append(state.processes[0].pid)
        if len(tried) < 3:
            raise OSError(errno.ENOSPC, "no space", str(directory))
        write_state(directory, dataclasses.replace(state, stopping=True))  # the run is over: `run` returns

    monkeypatch.setattr(keeper, "write_state", write)
    monkeypatch.setattr(keeper, "_FILES_S", 0.01)
    Keeper(tmp_path, "folder").run()
    found = read_state(tmp_path)
    assert found is not None
    assert len(tried) == 3 and set(tried) == {found.processes[0].pid}  # one process, not one for each try
    assert found.processes[0].process() is not None
    os.kill(tried[2], signal.SIGKILL)


@pytest.mark.parametrize("damage", ["removed", "truncated", "of another project"])
def test_a_state_file_is_written_again(tmp_path: Path, damage: str) -> None:
    project = tmp_path / "project"
    state_folder(project)
    (other := tmp_path / "other").mkdir()
    with idle_process(project) as gateway:
        state = RunState("hash", "flow", "folder", "folder/1", "unix:none", processes=(gateway,))
        write_state(project, state)
        watching = Keeper(project, "folder")
        thread = threading.Thread(target=watching.run)
        thread.start()
        wait_until(lambda: watching._version is not None)  # it has begun
        original = state_path(project).read_text(encoding="utf-8")
        match damage:
            case "removed":
                state_path(project).unlink()
            case "truncated":
                state_path(project).write_text("{", encoding="utf-8")
            case _:
                state_path(project).write_text(original.replace(str(project), str(other)), encoding="utf-8")
        wait_until(lambda: read_state(project) is not None)
        assert running_state(project).processes == (gateway,)
        write_state(project, dataclasses.replace(state, stopping=True))
        thread.join(30)


def test_a_run_whose_gateway_was_told_to_end_ends_as_a_whole(tmp_path: Path) -> None:
    state_folder(tmp_path)
    command = idle_command(tmp_path, "edge-1")
    child = spawn(command, tmp_path, tmp_path / "log")
    agent = process_state("edge-1", child, command, "", tmp_path / "log")
    with idle_process(tmp_path) as gateway:
        state = RunState("hash", "flow", str(tmp_path / "run"), "", "unix:none", processes=(gateway, agent))
        write_state(tmp_path, state)
        mark_drained(tmp_path, gateway.pid + 1)  # the gateway of an earlier run
        assert running_state(tmp_path).processes == (gateway, agent)
        mark_drained(tmp_path, gateway.pid)
        with pytest.raises(NotRunningError):
            running_state(tmp_path)
        Keeper(tmp_path, str(tmp_path / "run")).run()
        assert gateway.process() is None
    assert child.wait(10) == -signal.SIGTERM
    assert not state_path(tmp_path).exists()


def test_logs_of_all_processes_stay_within_their_size(tmp_path: Path) -> None:
    state_folder(tmp_path)
    with idle_process(tmp_path) as gateway, idle_process(tmp_path, "edge-1") as agent:
        entries = [dataclasses.replace(one, log=str(tmp_path / f"{one.name}.log")) for one in (gateway, agent)]
        for entry in entries:
            Path(entry.log).write_bytes(b"first\n")
            os.truncate(entry.log, MAX_LOG_BYTES + 1)
        state = RunState("hash", "flow", "folder", "folder/1", "unix:none", processes=tuple(entries))
        write_state(tmp_path, state)
        thread = threading.Thread(target=Keeper(tmp_path, "folder").run)
        thread.start()
        wait_until(lambda: all(Path(entry.log).stat().st_size == 0 for entry in entries))
        write_state(tmp_path, dataclasses.replace(state, stopping=True))
        thread.join(30)
    assert [earlier_log(Path(entry.log)).stat().st_size for entry in entries] == [MAX_LOG_BYTES] * 2


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_process_that_another_one_started_is_said_to_be_killed_by_its_signal(tmp_path: Path, is_reaped: bool) -> None:
    child = spawn([sys.executable, "-S", "-c", "import time; time.sleep(60)"], tmp_path, tmp_path / "log")
    process = process_state("edge-1", child, (), "", tmp_path / "log")
    descriptor = os.pidfd_open(child.pid)
    try:
        child.kill()
        select.select([descriptor], [], [], 10.0)
        if is_reaped:
            child.wait(10)
        if is_reaped and tuple(map(int, platform.release().split(".")[:2])) < (6, 15):
            pytest.skip(Absent.LINUX)
        assert exit_code(process.pid, descriptor) == -signal.SIGKILL
    finally:
        os.close(descriptor)
        child.wait(10)


@pytest.mark.parametrize(
    ("code", "age_s", "told"),
    [
        (-signal.SIGKILL, 0.0, "gateway was killed by SIGKILL; {log} does not say why"),
        (-signal.SIGKILL, 600.0, "gateway was killed by SIGKILL; {log} does not say why"),
        (-signal.SIGSEGV, 0.0, "gateway was killed by SIGSEGV; the end of {log}:\n    Traceback"),
        (1, 600.0, "gateway ended with status 1; the end of {log}:\n    Traceback"),
        (None, 0.0, "gateway has died, it is not known how; the end of {log}:\n    Traceback"),
        (None, 600.0, "gateway has died, it is not known how; {log} does not say why"),
    ],
)
def test_the_end_of_a_log_is_quoted_only_where_it_may_be_about_the_death(
    tmp_path: Path, code: int | None, age_s: float, told: str
) -> None:
    log = tmp_path / "log"
    log.write_text("Traceback", encoding="utf-8")
    os.utime(log, (time.time() - age_s,) * 2)
    assert describe_end("gateway", code, log) == told.format(log=log)
