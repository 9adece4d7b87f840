"""Replaces the plan of a run under load: the new plan's agents start beside the old ones, the gateway switches, the old
ones finish what they have.

Until the gateway has switched, the old plan serves as if nothing were, and goes on if anything fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import psutil

from jellybean.folders import state_folder
from jellybean.serving.client import Client
from jellybean.serving.errors import LaunchError
from jellybean.serving.launcher import DRAIN_S, START_S, Progress, agent_command, lock, write_plan
from jellybean.serving.processes import Child, describe, spawn, stop, told
from jellybean.serving.state import GATEWAY_NAME, ProcessState, RunState, locked, read_state, running_state, write_state
from jellybean_agent.errors import AgentError
from jellybean_agent.plan_view import PlanView, plan_view

_POLL_S = 0.05


def apply(
    directory: Path,
    document: Mapping[str, Any],
    *,
    progress: Progress = lambda done, total, label: None,
    start_timeout_s: float = START_S,
) -> bool:
    """Serve another plan from now on, without losing a request; False when it is the one that is served.

    NotRunningError when nothing is up. LaunchError names what did not come up; the old plan then goes on.
    """
    directory = directory.resolve()
    try:
        view = plan_view(document)
    except AgentError as error:
        raise LaunchError(str(error)) from error
    with lock(directory):
        state = running_state(directory)
        if state.plan == view.hash:
            return False
        arrival = _Arrival(directory, state, view)
        try:
            arrival.spawn(document)
            arrival.switch(document, start_timeout_s, progress)
            after = arrival.take_over()
        except BaseException:
            arrival.abandon()
            raise
        progress(1, 1, "the old workers finish what they have")
        _retire(directory, after, Path(state.plan_folder))
    return True


class _Arrival:
    """The processes of a plan that is to take over. They are written down at once, so that none can be lost."""

    def __init__(self, directory: Path, state: RunState, view: PlanView) -> None:
        self._directory, self._state, self._view = directory, state, view
        number = int(Path(state.plan_folder).name) + 1
        while (folder := Path(state.folder) / str(number)).exists():
            number += 1
        self._folder = folder
        self._gateway = next(process for process in state.processes if process.name == GATEWAY_NAME)
        self._addresses: dict[str, str] = {}
        self._children: dict[str, Child] = {}

    def spawn(self, document: Mapping[str, Any]) -> None:
        self._addresses = write_plan(self._folder, self._view, document, self._gateway.address)
        for worker in self._view.serving:
            address = self._addresses[worker.name]
            command = agent_command(self._directory, self._folder, worker.name, address)
            log = self._log(worker.name)
            self._children[worker.name] = child = spawn(command, self._directory, log, again=True)
            with contextlib.suppress(psutil.Error):  # it has ended already: `switch` says so
                found = describe(worker.name, child, command, address, log)
                _change(self._directory, lambda state, found=found: _with_others(state, (*state.others, found)))  # type: ignore[misc]

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
        old, new = Path(self._state.plan_folder), self._folder

        def change(state: RunState) -> RunState:
            arrived = tuple(process for process in state.others if process.name in self._children)
            gateway = next(process for process in state.processes if process.name == GATEWAY_NAME)
            command = tuple(
                item.replace(str(old), str(new)) if item.startswith(("--plan=", "--peers=", "--links=")) else item
                for item in gateway.command
            )
            left = tuple(process for process in state.processes if process.name != GATEWAY_NAME)
            return dataclasses.replace(
                state,
                plan=self._view.hash,
                plan_folder=str(new),
                processes=(*arrived, dataclasses.replace(gateway, command=command)),
                others=left,
            )

        return _change(self._directory, change)

    def abandon(self) -> None:
        """Nothing of the new plan is left."""
        stop([psutil.Process(child.pid) for child in self._children.values() if child.poll() is None], 2.0)
        for child in self._children.values():
            child.wait()
        _change(self._directory, lambda state: _with_others(state, ()))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log(self, worker: str) -> Path:
        return state_folder(self._directory) / "logs" / f"{worker}.log"


def _retire(directory: Path, state: RunState, folder: Path) -> None:
    """SIGTERM to the old agents: each ends when its last request has been answered."""
    old = [process for process in map(ProcessState.process, state.others) if process is not None]
    stop(old, DRAIN_S + 5.0)
    _change(directory, lambda state: _with_others(state, ()))
    shutil.rmtree(folder, ignore_errors=True)


def _with_others(state: RunState, others: tuple[ProcessState, ...]) -> RunState:
    return dataclasses.replace(state, others=others)


def _change(directory: Path, change: Callable[[RunState], RunState]) -> RunState:
    """Change what is written down of the run, while nobody else does. LaunchError when it has been stopped."""
    with locked(directory):
        state = read_state(directory)
        if state is None or state.stopping:
            raise LaunchError(f"{directory} was taken down meanwhile")
        changed = change(state)
        write_state(directory, changed)
    return changed
