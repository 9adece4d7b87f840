"""The state file of a run: which processes live, which fail, and whether the gateway has drained."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from jellybean.serving import NotRunningError, RequestError, RunState, is_serving_joined, read_state, running_state
from jellybean.serving.errors import AlreadyRunningError, KeptError
from jellybean.serving.run_state import (
    ProcessState,
    clear_state,
    failing,
    is_launch_locked,
    launch_lock,
    mark_drained,
    naming_failing,
    state_path,
    write_state,
)

STARTED = psutil.Process().create_time()
GATEWAY = ProcessState("gateway", os.getpid(), STARTED, "unix:/g", "gateway.log", ("python",))
GONE = ProcessState("edge-1", os.getpid(), STARTED - 60.0, "unix:/1", "edge-1.log", death="Traceback\nout of memory ")


def state_of(root: Path, **fields: object) -> RunState:
    state = RunState("hash", "tiny", str(root / "run"), str(root / "run/plan"), "unix:/g", processes=(GATEWAY, GONE))
    return replace(state, **fields)


def test_a_process_lives_if_its_number_has_the_same_start(tmp_path: Path) -> None:
    state = state_of(tmp_path, others=(GONE,), keeper=replace(GATEWAY, name="keeper"))
    assert [entry.name for entry, _ in state.alive()] == ["gateway", "keeper"]
    assert GATEWAY.process() is not None
    assert GONE.process() is None
    assert replace(GATEWAY, pid=2**22 + 1).process() is None
    assert (state.plan_path, state.links_path) == (tmp_path / "run/plan/plan.json", tmp_path / "run/plan/links")


def test_processes_that_fail_again_and_again_are_named(tmp_path: Path) -> None:
    failed = replace(GONE, restarts=2)
    expected = "edge-1 was started again 2 times and ended each time: out of memory (log: edge-1.log)"
    assert failing(state_of(tmp_path, processes=(GATEWAY, failed))) == (expected,)
    assert failing(state_of(tmp_path, processes=(GATEWAY, replace(failed, restarts=1)))) == ()
    recent = replace(GONE, restarts=2, started=time.time() - 20.0)
    assert len(failing(state_of(tmp_path, processes=(recent,)))) == 1
    write_state(prepared(tmp_path), state_of(tmp_path, processes=(GATEWAY, failed)))
    with pytest.raises(RequestError) as caught, naming_failing(tmp_path):
        raise RequestError("UNAVAILABLE", "no route is left")
    assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", f"no route is left; {expected}")
    for error in (RequestError("INVALID_ARGUMENT", "wrong"), KeptError("a")):
        with pytest.raises(type(error)) as caught, naming_failing(tmp_path):
            raise error
        assert caught.value is error
    write_state(tmp_path, state_of(tmp_path))
    with pytest.raises(RequestError) as caught, naming_failing(tmp_path):
        raise RequestError("UNAVAILABLE", "no route is left")
    assert caught.value.reason == "no route is left"


def prepared(root: Path) -> Path:
    (root / ".jellybean").mkdir(exist_ok=True)
    return root


def test_a_run_that_is_up(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match="start it with"):
        running_state(tmp_path)
    state = state_of(tmp_path)
    write_state(prepared(tmp_path), state)
    assert running_state(tmp_path) == read_state(tmp_path) == state
    assert not is_serving_joined(tmp_path)
    for change in ({"gateway_address": ""}, {"stopping": True}, {"drained": True}):
        write_state(tmp_path, replace(state, **change))
        with pytest.raises(NotRunningError, match="start it with"):
            running_state(tmp_path)
    write_state(tmp_path, replace(state, processes=(GONE,), peers="peers.json"))
    assert is_serving_joined(tmp_path)
    with pytest.raises(NotRunningError, match="has died; `jellybean down"):
        running_state(tmp_path)


def test_a_gateway_that_has_drained_says_so_in_its_own_run_only(tmp_path: Path) -> None:
    write_state(prepared(tmp_path), state_of(tmp_path))
    mark_drained(tmp_path, os.getpid() + 1)
    assert running_state(tmp_path)
    mark_drained(tmp_path, os.getpid())
    state = read_state(tmp_path)
    assert state is not None
    assert state.drained
    (tmp_path / "run").mkdir()
    clear_state(tmp_path, state)
    assert not (tmp_path / "run").exists()
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
