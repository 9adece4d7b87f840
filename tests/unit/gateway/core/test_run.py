"""The state file of a run: which processes live, which fail, and whether the gateway has drained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.serving import NotRunningError, RequestError, RunState, is_serving_joined, read_state, running_state
from jellybean.serving.errors import AlreadyRunningError, KeptError
from jellybean.serving.run_folder import claim_run_folder
from jellybean.serving.run_locks import is_launch_locked, launch_lock
from jellybean.serving.run_processes import KEEPER_MODULE
from jellybean.serving.run_state import (
    ProcessState,
    clear_state,
    failing,
    mark_drained,
    naming_failing,
    state_path,
    write_state,
)
from tests.support.run_processes import idle_command, idle_process

DEATH = "Traceback\nout of memory "


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ProcessState]:
    with idle_process(tmp_path, address="unix:/g") as found:
        yield found


def gone_of(root: Path, gateway: ProcessState) -> ProcessState:
    """An agent that has ended, whose number the gateway has."""
    command = idle_command(root, "edge-1")
    return ProcessState("edge-1", gateway.pid, gateway.started, "unix:/1", "edge-1.log", command, death=DEATH)


def state_of(root: Path, gateway: ProcessState, **fields: object) -> RunState:
    processes = (gateway, gone_of(root, gateway))
    state = RunState("hash", "tiny", str(root / "run"), str(root / "run/plan"), "unix:/g", processes=processes)
    return replace(state, **fields)


def test_a_process_lives_if_its_number_runs_its_program(tmp_path: Path, gateway: ProcessState) -> None:
    gone = gone_of(tmp_path, gateway)
    state = state_of(tmp_path, gateway, others=(gone,), keeper=replace(gateway, name="keeper"))
    assert [entry.name for entry, _ in state.alive()] == ["gateway", "keeper"]
    assert replace(gateway, started=0).process() is not None  # a file of an earlier version, or another time namespace
    assert gateway.process() is not None
    assert gone.process() is None
    assert replace(gateway, pid=2**22 + 1).process() is None
    assert (state.plan_path, state.links_path) == (tmp_path / "run/plan/plan.json", tmp_path / "run/plan/links")


def test_processes_that_fail_again_and_again_are_named(tmp_path: Path, gateway: ProcessState) -> None:
    gone = gone_of(tmp_path, gateway)
    failed = replace(gone, restarts=2)
    expected = "edge-1 was started again 2 times and ended each time: out of memory (log: edge-1.log)"
    assert failing(state_of(tmp_path, gateway, processes=(gateway, failed))) == (expected,)
    assert failing(state_of(tmp_path, gateway, processes=(gateway, replace(failed, restarts=1)))) == ()
    recent = replace(gateway, restarts=2)  # it lives, for now
    assert len(failing(state_of(tmp_path, gateway, processes=(recent,)))) == 1
    assert failing(state_of(tmp_path, gateway, processes=(replace(recent, started=0),))) == ()
    keeper = replace(gone, name="keeper", command=("python", "-m", KEEPER_MODULE, str(tmp_path), "folder"))
    (sentence,) = failing(state_of(tmp_path, gateway, keeper=keeper))
    assert "keeper has ended" in sentence and "edge-1 has ended" in sentence and "`jellybean apply`" in sentence
    write_state(prepared(tmp_path), state_of(tmp_path, gateway, processes=(gateway, failed)))
    with pytest.raises(RequestError) as caught, naming_failing(tmp_path):
        raise RequestError("UNAVAILABLE", "no route is left")
    assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", f"no route is left; {expected}")
    for error in (RequestError("INVALID_ARGUMENT", "wrong"), KeptError("a")):
        with pytest.raises(type(error)) as caught, naming_failing(tmp_path):
            raise error
        assert caught.value is error
    write_state(tmp_path, state_of(tmp_path, gateway))
    with pytest.raises(RequestError) as caught, naming_failing(tmp_path):
        raise RequestError("UNAVAILABLE", "no route is left")
    assert caught.value.reason == "no route is left"


def prepared(root: Path) -> Path:
    (root / ".jellybean").mkdir(exist_ok=True)
    return root


def test_a_run_that_is_up(tmp_path: Path, gateway: ProcessState) -> None:
    gone = gone_of(tmp_path, gateway)
    with pytest.raises(NotRunningError, match="start it with"):
        running_state(tmp_path)
    state = state_of(tmp_path, gateway)
    write_state(prepared(tmp_path), state)
    assert running_state(tmp_path) == read_state(tmp_path) == state
    assert not is_serving_joined(tmp_path)
    for change, words in (
        ({"gateway_address": ""}, "is starting"),
        ({"stopping": True}, r"is being stopped \(gateway still there\)"),
        ({"drained": True}, "is being stopped"),
    ):
        write_state(tmp_path, replace(state, **change))
        with pytest.raises(NotRunningError, match=words):
            running_state(tmp_path)
    write_state(tmp_path, replace(state, processes=(gone,), peers="peers.json"))
    assert is_serving_joined(tmp_path)
    with pytest.raises(NotRunningError, match="nothing is up"):  # no process of it lives
        running_state(tmp_path)


def test_a_gateway_that_has_drained_says_so_in_its_own_run_only(tmp_path: Path, gateway: ProcessState) -> None:
    write_state(prepared(tmp_path), state_of(tmp_path, gateway))
    mark_drained(tmp_path, gateway.pid + 1)
    assert running_state(tmp_path)
    mark_drained(tmp_path, gateway.pid)
    state = read_state(tmp_path)
    assert state is not None
    assert state.drained
    folder = tmp_path / "jellybean-run"
    folder.mkdir(mode=0o700)
    claim_run_folder(tmp_path, folder)
    state = replace(state, folder=str(folder))
    write_state(tmp_path, state)
    clear_state(tmp_path, state)
    assert not folder.exists()
    assert not state_path(tmp_path).exists()
    clear_state(tmp_path, state)


def test_one_start_at_a_time(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert not is_launch_locked(tmp_path)
    with launch_lock(tmp_path):
        assert is_launch_locked(tmp_path)
        with pytest.raises(AlreadyRunningError, match="is starting right now"), launch_lock(tmp_path):
            raise AssertionError
    assert not is_launch_locked(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 3}', "5"])
def test_a_state_file_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    state_path(prepared(tmp_path)).write_text(content, encoding="utf-8")
    assert read_state(tmp_path) is None
