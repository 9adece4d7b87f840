"""Replaces the plan of a run under load: new agents start beside the old ones, the gateway switches, the old drain.

Until the gateway has switched, the old plan serves; it stays if anything fails. Only the gateway knows whether it has
switched: it is asked before the workers of either plan are stopped. Every step is in the state file before it begins,
so that the run's keeper can finish or undo the replacement when `apply` is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from jellybean.errors import InputError
from jellybean.folders import shell_text, state_folder
from jellybean.serving.client import Client, served_document
from jellybean.serving.endpoint import Endpoint, usable_certificates
from jellybean.serving.errors import LaunchError, NotRunningError, RequestError
from jellybean.serving.local.commands import (
    agent_command,
    local_addresses,
    remote_addresses,
    require_allowed,
    require_own_modules,
    write_plan,
)
from jellybean.serving.local.processes import Child, describe_end, process_state, spawn, stop
from jellybean.serving.local.settings import DRAIN_S, START_S, Progress, gateway_certificate, no_progress
from jellybean.serving.replacement import replace_at
from jellybean.serving.run_locks import launch_lock, locked
from jellybean.serving.run_processes import GATEWAY_NAME
from jellybean.serving.run_state import (
    STATE_VERSION,
    ProcessState,
    RunState,
    read_state,
    remove_run_folder,
    run_of,
    running_state,
    state_path,
    write_state,
)
from jellybean.termination import signals_held
from jellybean_agent import (
    LOG_VARIABLES,
    AgentError,
    CertificateFolder,
    PlanView,
    Transport,
    plan_view,
    read_peer_addresses,
)

_POLL_S = 0.05
_STATUS_S = 5.0
_ASK_S = 10.0  # longest wait for the gateway to say which plan it serves
_CANCEL_S = 0.3  # seconds after which a cancelled call can have no effect any more


def apply(
    directory: Path,
    document: Mapping[str, Any],
    *,
    progress: Progress = no_progress,
    start_timeout_s: float = START_S,
    allow_python: frozenset[str] = frozenset(),
) -> bool:
    """Switch a run to another plan without losing a request; False if that plan is served already.

    NotRunningError when nothing is up. LaunchError names the process that did not come up; the old plan then stays.
    `allow_python`: functions that the new agents may run besides their own steps. Workers on other machines take the
    plan from the gateway, if they joined; their addresses are read again.
    """
    directory = directory.resolve()
    try:
        view = plan_view(document)
    except AgentError as error:
        raise LaunchError(str(error)) from error
    with launch_lock(directory):
        require_replaceable(directory)
        _require_keeper(directory, running_state(directory))
        _recover(directory, running_state(directory))
        state = running_state(directory)
        if not state.peers:
            require_allowed(view, allow_python)
            require_own_modules(view)
        if _served_plan(directory) == view.hash:
            return False
        _use_log_settings_of(state)
        new = _NewPlan(directory, state, view, allow_python)
        try:
            new.spawn(document)
            new.switch(document, start_timeout_s, progress)
            after = new.take_over()
        except BaseException as error:
            if not new.has_switched():
                new.abandon()
                raise
            after = new.take_over()
            if not isinstance(error, Exception):  # Ctrl-C: the keeper stops the old workers
                raise
        progress(1, 1, "the new plan is served; the old workers drain")
        _stop_old_workers(directory, after, Path(state.plan_folder))
    return True


def apply_at(
    endpoint: Endpoint, document: Mapping[str, Any], peers: Path | None, *, timeout_s: float, progress: Progress
) -> bool:
    """Switch a gateway elsewhere to another plan, as `apply`; False if that plan is served already.

    `peers`: file with the addresses of workers that are new or have moved. InputError if it is invalid.
    """
    addresses: dict[str, str] = {}
    if peers is not None:
        try:
            addresses = read_peer_addresses(peers, endpoint.transport())
        except AgentError as error:
            raise InputError(str(error)) from error
    if served_document(endpoint)["hash"] == document["hash"]:
        return False
    waiting = partial(progress, 0, 1, "the new workers start; the old plan is served")
    replace_at(endpoint, document, addresses, timeout_s=timeout_s, while_waiting=waiting)
    return True


def require_replaceable(directory: Path) -> None:
    """NotRunningError when nothing is up whose plan could be replaced; LaunchError for a run of an earlier version."""
    _require_same_version(directory, running_state(directory))


def _require_same_version(directory: Path, state: RunState) -> None:
    """LaunchError for a run of an earlier version: its keeper could not read the state that `apply` writes, and end."""
    if not state.version:
        keeper = "so is the keeper that would write it again"
        if state.keeper is not None:
            keeper = f"its keeper (process {state.keeper.pid}) does not write it again"
        raise LaunchError(
            f"the state file of this run ({state_path(directory)}) is gone, and {keeper}: "
            f"`jellybean down {shell_text(directory)}` stops it, then start it again"
        )
    if state.version != STATE_VERSION:
        raise LaunchError(
            f"an earlier version of JellyBean started this run, and cannot be switched by this one: "
            f"`jellybean down {shell_text(directory)}` stops it, then start it again"
        )


def _require_keeper(directory: Path, state: RunState) -> None:
    """Start the run's keeper again if it has ended."""
    keeper = state.keeper
    if keeper is None or keeper.process() is not None:
        return
    with signals_held():
        child = spawn(keeper.command, directory, Path(keeper.log), append=True)
    entry = process_state(keeper.name, child, keeper.command, "", Path(keeper.log))
    try:
        _update_state(directory, lambda state: dataclasses.replace(state, keeper=entry))
    except BaseException:
        child.kill()
        child.wait()
        raise


def _use_log_settings_of(state: RunState) -> None:
    """Set this process's environment to the run's log settings, for the processes that it starts."""
    gateway = next(process for process in state.processes if process.name == GATEWAY_NAME).process()
    with contextlib.suppress(psutil.Error):
        known = gateway.environ() if gateway is not None else {}
        for name in LOG_VARIABLES:
            os.environ.pop(name, None)
            if name in known:
                os.environ[name] = known[name]


def recover(directory: Path) -> None:
    """Finish or undo an `apply` that was killed. LaunchError when that is not possible yet."""
    with launch_lock(directory):
        _recover(directory, running_state(directory))


def _recover(directory: Path, state: RunState) -> None:
    if state.arriving:
        served = _served_plan(directory)
        if not served:
            raise LaunchError("an `apply` was killed, and the gateway does not say which plan it serves: try again")
        if served == state.arriving:
            old = Path(state.plan_folder)
            _stop_old_workers(directory, _update_state(directory, _switched), old)
        else:
            _stop(state.others, 2.0)
            _update_state(directory, _without_replacement)
            remove_run_folder(directory, state, state.arriving_folder)
    elif state.others:
        _stop_old_workers(directory, state, None)


def _served_plan(directory: Path, limit_s: float = _ASK_S) -> str:
    """Hash of the plan that the gateway serves; empty when it does not answer in time (it may be restarting)."""
    until = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(RequestError, NotRunningError), Client.of(directory, timeout_s=_STATUS_S) as client:
            return client.status().plan
        if time.monotonic() > until:
            return ""
        time.sleep(_POLL_S)


class _NewPlan:
    """The processes of the new plan. Each is in the state file as soon as it starts, so that none can be orphaned."""

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
        """Write the plan's files, and start its agents if they are processes here."""
        hash_, folder, gateway = self._view.hash, str(self._folder), self._gateway.address
        if self._state.peers:
            with usable_certificates(self._directory):
                transport = Transport(certificate=CertificateFolder(gateway_certificate(state_folder(self._directory))))
            self._addresses = remote_addresses(Path(self._state.peers), self._view, transport)
        else:
            self._addresses = local_addresses(self._folder, self._view, gateway)
        _update_state(self._directory, lambda state: dataclasses.replace(state, arriving=hash_, arriving_folder=folder))
        write_plan(self._folder, document, self._addresses)
        for worker in () if self._state.peers else self._view.serving:
            address = self._addresses[worker.name]
            workflows = self._view.workflows
            command = agent_command(self._directory, self._folder, worker.name, address, self._allow_python, workflows)
            log = self._log(worker.name)
            with signals_held():
                self._children[worker.name] = child = spawn(command, self._directory, log, append=True)
            with contextlib.suppress(psutil.Error):  # it has ended already: `switch` reports it
                found = process_state(worker.name, child, command, address, log)
                _update_state(self._directory, partial(_with_new_process, found))

    def switch(self, document: Mapping[str, Any], timeout_s: float, progress: Progress) -> None:
        """Have the gateway switch to the plan once its workers are ready. LaunchError: it keeps the old plan."""

        def check() -> None:
            self._check_alive()
            progress(0, 1, "the new workers start; the old plan is served")

        replace_at(
            Endpoint(self._gateway.address),
            document,
            self._addresses,
            timeout_s=timeout_s,
            while_waiting=check,
            links=str(self._folder / "links"),
        )

    def _check_alive(self) -> None:
        dead = {name: child.returncode for name, child in self._children.items() if child.poll() is not None}
        if dead:
            raise LaunchError("\n".join(describe_end(name, code, self._log(name)) for name, code in dead.items()))

    def take_over(self) -> RunState:
        """Make the new processes the run's in the state file; the old ones are listed apart until they have ended."""
        return _update_state(self._directory, _switched)

    def has_switched(self) -> bool:
        """True if the gateway serves the new plan.

        LaunchError when it does not answer: then neither plan is stopped.
        """
        time.sleep(_CANCEL_S)
        served = _served_plan(self._directory)
        if not served:
            raise LaunchError("the gateway does not say which plan it serves; the run's keeper will ask it again")
        return served == self._view.hash

    def abandon(self) -> None:
        """Stop the new plan's processes and remove its files."""
        stop([psutil.Process(child.pid) for child in self._children.values() if child.poll() is None], 2.0)
        for child in self._children.values():
            child.wait()
        _update_state(self._directory, _without_replacement)
        remove_run_folder(self._directory, self._state, self._folder)

    def _log(self, worker: str) -> Path:
        return state_folder(self._directory) / "logs" / f"{worker}.log"


def _switched(state: RunState) -> RunState:
    """The state after the switch; unchanged if it was recorded before."""
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


def _stop_old_workers(directory: Path, state: RunState, folder: Path | None) -> None:
    """Send SIGTERM to the old agents: each ends when its last request has been answered.

    A gateway that died before the switch was recorded has restarted with the old plan: it is restarted once more.
    LaunchError when it still serves another plan; the old agents then stay.
    """
    if _served_plan(directory) != state.plan:
        gateway = next(process for process in state.processes if process.name == GATEWAY_NAME)
        _stop([read for read in running_state(directory).processes if read.name == gateway.name], 2.0)
        if _served_plan(directory, START_S) != state.plan:
            raise LaunchError(f"the gateway does not serve plan {state.plan[:12]} yet; the old workers stay until then")
    _stop(state.others, DRAIN_S + 5.0)
    _update_state(directory, _without_replacement)
    if folder is not None:
        remove_run_folder(directory, state, folder)


def _stop(processes: Iterable[ProcessState], graceful_s: float) -> None:
    stop([process for process in map(ProcessState.process, processes) if process is not None], graceful_s)


def _with_new_process(process: ProcessState, state: RunState) -> RunState:
    return dataclasses.replace(state, others=(*state.others, process))


def _without_replacement(state: RunState) -> RunState:
    """The state without a replacement under way."""
    return dataclasses.replace(state, others=(), arriving="", arriving_folder="")


def _update_state(directory: Path, change: Callable[[RunState], RunState]) -> RunState:
    """Change the state file under its lock; returns the new state. LaunchError if the run has been stopped."""
    run_of(directory)  # waits for a state file that was removed
    with locked(directory):
        state = read_state(directory)
        if state is None or state.stopping:
            raise LaunchError(f"{directory} was taken down meanwhile")
        changed = change(state)
        write_state(directory, changed)
    return changed
