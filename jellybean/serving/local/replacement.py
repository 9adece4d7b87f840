"""Replaces the plan of a run under load: the new plan's agents start beside the old ones, the gateway switches, the old
ones finish what they have.

Until the gateway has switched, the old plan serves as if nothing were, and goes on if anything fails. Whether it has is
known to the gateway alone: it is asked before either plan's workers are ended. What is under way is written down before
it begins, so that the run's keeper ends or undoes it where `apply` was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil

from jellybean.folders import state_folder
from jellybean.serving.client import Client
from jellybean.serving.errors import LaunchError, NotRunningError, RequestError
from jellybean.serving.local.launcher import (
    DRAIN_S,
    START_S,
    Progress,
    agent_command,
    lock,
    require_allowed,
    write_plan,
)
from jellybean.serving.local.processes import Child, describe, spawn, stop, told
from jellybean.serving.run_state import (
    GATEWAY_NAME,
    ProcessState,
    RunState,
    locked,
    read_state,
    running_state,
    write_state,
)
from jellybean_agent import LOG_VARIABLES, AgentError, PlanView, plan_view

_POLL_S = 0.05
_STATUS_S = 5.0
_ASK_S = 10.0  # for the gateway to say which plan it serves
_CANCELLED_S = 0.3  # after which a call that was cancelled changes nothing any more


def apply(
    directory: Path,
    document: Mapping[str, Any],
    *,
    progress: Progress = lambda done, total, label: None,
    start_timeout_s: float = START_S,
    allow_python: frozenset[str] = frozenset(),
) -> bool:
    """Serve another plan from now on, without losing a request; False when it is the one that is served.

    NotRunningError when nothing is up. LaunchError names what did not come up; the old plan then goes on.
    `allow_python`: functions that the new agents may run besides their own steps.
    """
    directory = directory.resolve()
    try:
        view = plan_view(document)
    except AgentError as error:
        raise LaunchError(str(error)) from error
    require_allowed(view, allow_python)
    with lock(directory):
        _recover(directory, running_state(directory))
        state = running_state(directory)
        if state.plan == view.hash:
            return False
        _log_as(state)
        arrival = _Arrival(directory, state, view, allow_python)
        try:
            arrival.spawn(document)
            arrival.switch(document, start_timeout_s, progress)
            after = arrival.take_over()
        except BaseException as error:
            if not arrival.has_switched():
                arrival.abandon()
                raise
            after = arrival.take_over()
            if not isinstance(error, Exception):  # Ctrl-C: the keeper ends the old workers
                raise
        progress(1, 1, "the old workers finish what they have")
        _retire(directory, after, Path(state.plan_folder))
    return True


def _log_as(state: RunState) -> None:
    """Processes that this one starts log as those of the run do, whatever was asked of them."""
    gateway = next(process for process in state.processes if process.name == GATEWAY_NAME).process()
    with contextlib.suppress(psutil.Error):
        known = gateway.environ() if gateway is not None else {}
        for name in LOG_VARIABLES:
            os.environ.pop(name, None)
            if name in known:
                os.environ[name] = known[name]


def recover(directory: Path) -> None:
    """End or undo what an `apply` left that was killed. LaunchError when that is not possible yet."""
    with lock(directory):
        _recover(directory, running_state(directory))


def _recover(directory: Path, state: RunState) -> None:
    if state.arriving:
        served = _served(directory)
        if not served:
            raise LaunchError("an `apply` was killed, and the gateway does not say which plan it serves: try again")
        if served == state.arriving:
            old = Path(state.plan_folder)
            _retire(directory, _change(directory, _taken_over), old)
        else:
            _end(state.others, 2.0)
            _change(directory, _alone)
            shutil.rmtree(state.arriving_folder, ignore_errors=True)
    elif state.others:
        _retire(directory, state, None)


def _served(directory: Path, within_s: float = _ASK_S) -> str:
    """Hash of the plan that the gateway serves; empty when it does not say so in time, to start again included."""
    until = time.monotonic() + within_s
    while True:
        with contextlib.suppress(RequestError, NotRunningError), Client.of(directory, timeout_s=_STATUS_S) as client:
            return client.status().plan
        if time.monotonic() > until:
            return ""
        time.sleep(_POLL_S)


class _Arrival:
    """The processes of a plan that is to take over. They are written down at once, so that none can be lost."""

    def __init__(self, directory: Path, state: RunState, view: PlanView, allow_python: frozenset[str]) -> None:
        self._directory, self._state, self._view, self._allow_python = directory, state, view, allow_python
        number = int(Path(state.plan_folder).name) + 1
        while (folder := Path(state.folder) / str(number)).exists():
            number += 1
        self._folder = folder
        self._gateway = next(process for process in state.processes if process.name == GATEWAY_NAME)
        self._addresses: dict[str, str] = {}
        self._children: dict[str, Child] = {}

    def spawn(self, document: Mapping[str, Any]) -> None:
        hash_, folder = self._view.hash, str(self._folder)
        _change(self._directory, lambda state: dataclasses.replace(state, arriving=hash_, arriving_folder=folder))
        self._addresses = write_plan(self._folder, self._view, document, self._gateway.address)
        for worker in self._view.serving:
            address = self._addresses[worker.name]
            command = agent_command(self._directory, self._folder, worker.name, address, self._allow_python)
            log = self._log(worker.name)
            self._children[worker.name] = child = spawn(command, self._directory, log, again=True)
            with contextlib.suppress(psutil.Error):  # it has ended already: `switch` says so
                found = describe(worker.name, child, command, address, log)
                _change(self._directory, partial(_with_arrived, found))

    def switch(self, document: Mapping[str, Any], timeout_s: float, progress: Progress) -> None:
        """Have the gateway take the plan once its workers are ready."""
        until = time.monotonic() + timeout_s + 5.0
        with Client(self._gateway.address) as client:
            call = client.replacing(json.dumps(document), self._addresses, str(self._folder / "links"), timeout_s)
            try:
                while not call.done():
                    self._check_alive()
                    if time.monotonic() > until:
                        raise LaunchError(f"the gateway did not answer within {timeout_s:g} s; it keeps its plan")
                    progress(0, 1, "the new workers start")
                    time.sleep(_POLL_S)
                call.result()
            except grpc.RpcError as error:
                raise LaunchError(f"the gateway keeps its plan: {error.details()}") from error
            finally:
                call.cancel()  # the gateway then waits for them no longer

    def _check_alive(self) -> None:
        dead = {name: child.returncode for name, child in self._children.items() if child.poll() is not None}
        if dead:
            raise LaunchError("\n".join(told(name, code, self._log(name)) for name, code in dead.items()))

    def take_over(self) -> RunState:
        """Write down that the new processes are the run's; the old ones are kept apart until they have ended."""
        return _change(self._directory, _taken_over)

    def has_switched(self) -> bool:
        """Whether the gateway serves the new plan. LaunchError when it cannot say: then neither plan is ended."""
        time.sleep(_CANCELLED_S)
        served = _served(self._directory)
        if not served:
            raise LaunchError("the gateway does not say which plan it serves; the run's keeper will ask it again")
        return served == self._view.hash

    def abandon(self) -> None:
        """Nothing of the new plan is left."""
        stop([psutil.Process(child.pid) for child in self._children.values() if child.poll() is None], 2.0)
        for child in self._children.values():
            child.wait()
        _change(self._directory, _alone)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log(self, worker: str) -> Path:
        return state_folder(self._directory) / "logs" / f"{worker}.log"


def _taken_over(state: RunState) -> RunState:
    """The plan that was to arrive is the run's. As it is where that was written down before."""
    if not state.arriving:
        return state
    old, new = state.plan_folder, state.arriving_folder
    gateway = next(process for process in state.processes if process.name == GATEWAY_NAME)
    command = tuple(
        item.replace(old, new) if item.startswith(("--plan=", "--peers=", "--links=")) else item
        for item in gateway.command
    )
    return dataclasses.replace(
        state,
        plan=state.arriving,
        plan_folder=new,
        processes=(*state.others, dataclasses.replace(gateway, command=command)),
        others=tuple(process for process in state.processes if process.name != GATEWAY_NAME),
        arriving="",
        arriving_folder="",
    )


def _retire(directory: Path, state: RunState, folder: Path | None) -> None:
    """SIGTERM to the old agents: each ends when its last request has been answered.

    A gateway that died before its new plan was written down has come back with the old one: it is started once more.
    LaunchError when it serves another plan even so; the old agents then stay.
    """
    if _served(directory) != state.plan:
        gateway = next(process for process in state.processes if process.name == GATEWAY_NAME)
        _end([read for read in running_state(directory).processes if read.name == gateway.name], 2.0)
        if _served(directory, START_S) != state.plan:
            raise LaunchError(f"the gateway does not serve plan {state.plan[:12]} yet; the old workers stay until then")
    _end(state.others, DRAIN_S + 5.0)
    _change(directory, _alone)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _end(processes: Iterable[ProcessState], graceful_s: float) -> None:
    stop([process for process in map(ProcessState.process, processes) if process is not None], graceful_s)


def _with_arrived(process: ProcessState, state: RunState) -> RunState:
    return dataclasses.replace(state, others=(*state.others, process))


def _alone(state: RunState) -> RunState:
    """One plan, and none that is to take over."""
    return dataclasses.replace(state, others=(), arriving="", arriving_folder="")


def _change(directory: Path, change: Callable[[RunState], RunState]) -> RunState:
    """Change what is written down of the run, while nobody else does. LaunchError when it has been stopped."""
    with locked(directory):
        state = read_state(directory)
        if state is None or state.stopping:
            raise LaunchError(f"{directory} was taken down meanwhile")
        changed = change(state)
        write_state(directory, changed)
    return changed
