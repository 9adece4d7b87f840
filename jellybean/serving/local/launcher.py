"""Brings a plan up on this machine: one agent process per worker, a gateway, and a keeper that restarts them.

Or only a gateway and its keeper, if the workers are on other machines.

Children are spawned, never forked from a process that has used gRPC, each in a session of its own: a Ctrl-C in the
terminal reaches the launcher alone, which then drains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from jellybean.folders import shell_text, state_folder
from jellybean.serving.client import Client
from jellybean.serving.endpoint import usable_certificates
from jellybean.serving.errors import AlreadyRunningError, LaunchError, RequestError, SettingsError
from jellybean.serving.gateway.plans.replaced_plan import forget_replaced_plan
from jellybean.serving.local.commands import (
    PYTHON,
    agent_command,
    gateway_command,
    ledger_arguments,
    local_addresses,
    remote_addresses,
    require_allowed,
    require_devices,
    require_own_modules,
    write_plan,
)
from jellybean.serving.local.processes import Child, describe_end, process_state, spawn, stop
from jellybean.serving.local.running import Running
from jellybean.serving.local.settings import JoinedSettings, LaunchSettings, Progress, no_progress
from jellybean.serving.run_folder import is_held, make_run_folder, remove_left_behind
from jellybean.serving.run_locks import launch_lock, locked
from jellybean.serving.run_processes import GATEWAY_NAME, KEEPER_MODULE, KEEPER_NAME
from jellybean.serving.run_state import ADDRESS_FILE, OWNER_SOCKET, RunState, clear_state, run_of, write_state
from jellybean.termination import signals_held, terminated_as_interrupted
from jellybean_agent import GATEWAY, AgentError, PlanView, Role, make_transport, plan_view

_STATUS_S = 5.0
_POLL_S = 0.05
_KEEPER_S = 20.0  # longest wait for the keeper to hold the run's folder, which not all file systems can show


def up(
    directory: Path,
    document: Mapping[str, Any],
    settings: LaunchSettings = LaunchSettings(),
    *,
    detach: bool = False,
    progress: Progress = no_progress,
) -> Running:
    """Start every process of a plan; returns once all are ready.

    LaunchError names the process that did not become ready; AlreadyRunningError if the project is served already;
    SettingsError for settings that are refused; CertificateError for a certificate that cannot be used;
    DeviceError if the device of a worker is not here.
    `detach`: the run outlives this process; another one will call `down`.
    """
    settings.check()
    directory, view = directory.resolve(), _view(document)
    if settings.tls is not None:
        with usable_certificates(directory):
            make_transport(view.name, (Role.GATEWAY, GATEWAY), settings.tls, insecure=False)
    require_allowed(view, settings.allow_python)
    require_own_modules(view)
    require_devices(view)

    def begin(launch: _Launch) -> None:
        launch.spawn_agents(document, settings.allow_python)
        launch.spawn_gateway(state_folder(directory) / "spool.db")

    return _launched(directory, view, settings, begin, detach=detach, progress=progress)


def serve_joined(
    directory: Path,
    document: Mapping[str, Any],
    settings: JoinedSettings,
    *,
    detach: bool = False,
    progress: Progress = no_progress,
) -> Running:
    """Start the gateway of a plan whose workers are on other machines; returns once it answers, before they do.

    It serves `document`, whatever plan an earlier run was switched to: only restarts by the keeper go on with that one.
    CertificateError where the gateway's certificate, or the authority for boxes that join, is missing or has expired;
    InputError for an invalid file of addresses; AlreadyRunningError if the project is served already.
    """
    settings.check()
    directory, view = directory.resolve(), _view(document)
    with usable_certificates(directory):
        transport = make_transport(view.name, (Role.GATEWAY, GATEWAY), settings.tls, insecure=False)
        if settings.enrol is not None:
            from jellybean.serving.enrolment.authority import read_authority  # needs cryptography, which TLS has

            read_authority(settings.authority)
    try:
        for address in filter(None, (settings.listen, settings.enrol)):
            transport.check(address)
    except AgentError as error:
        raise SettingsError(str(error)) from error
    addresses = remote_addresses(settings.peers, view, transport)
    kept = settings.state / "gateway"
    kept.mkdir(exist_ok=True)

    def begin(launch: _Launch) -> None:
        forget_replaced_plan(settings.replaced)
        launch.write_plan(document, addresses)
        launch.spawn_gateway(kept / "spool")

    return _launched(directory, view, settings, begin, detach=detach, progress=progress)


def _launched(
    directory: Path,
    view: PlanView,
    settings: LaunchSettings | JoinedSettings,
    begin: Callable[[_Launch], None],
    *,
    detach: bool,
    progress: Progress,
) -> Running:
    """Start a run; returns once it is ready. `begin` spawns all its processes but the keeper."""
    with contextlib.ExitStack() as signals:
        signals.enter_context(terminated_as_interrupted(replaces=True))
        with launch_lock(directory):
            _require_down(directory)
            remove_left_behind(directory)
            launch = _Launch(directory, view, settings, make_run_folder(directory))
            try:
                begin(launch)
                launch.await_ready(progress, time.monotonic() + settings.start_timeout_s)
                launch.start_keeper()
                if detach:
                    return Running(directory, launch.state, {}, contextlib.ExitStack())
                return Running(directory, launch.state, launch.children, signals.pop_all())
            except BaseException:
                launch.abandon()
                raise


def _view(document: Mapping[str, Any]) -> PlanView:
    try:
        return plan_view(document)
    except AgentError as error:
        raise LaunchError(str(error)) from error


class _Launch:
    """A run while it starts. The state file is written after every spawn, so that no process can be orphaned."""

    def __init__(
        self, directory: Path, view: PlanView, settings: LaunchSettings | JoinedSettings, folder: Path
    ) -> None:
        self._directory, self._view, self._settings, self._folder = directory, view, settings, folder
        self._plan_folder = folder / "1"
        self._logs = state_folder(directory) / "logs"
        self._address_file = folder / ADDRESS_FILE
        self._owner_socket = f"unix:{folder}/{OWNER_SOCKET}"
        peers = str(settings.peers.resolve()) if isinstance(settings, JoinedSettings) else ""
        self.state = RunState(view.hash, view.name, str(folder), str(self._plan_folder), peers=peers)
        self.children: dict[str, Child] = {}

    def spawn_agents(self, document: Mapping[str, Any], allow_python: frozenset[str]) -> None:
        """Write the plan's files and start an agent for each of its workers."""
        addresses = local_addresses(self._plan_folder, self._view, self._owner_socket)
        write_plan(self._plan_folder, document, addresses)
        for worker in self._view.serving:
            address = addresses[worker.name]
            workflows = self._view.workflows
            command = agent_command(self._directory, self._plan_folder, worker.name, address, allow_python, workflows)
            self._start(worker.name, command, address)

    def write_plan(self, document: Mapping[str, Any], addresses: Mapping[str, str]) -> None:
        """Write the files of a plan whose agents are on other machines."""
        write_plan(self._plan_folder, document, addresses)

    def spawn_gateway(self, spool: Path) -> None:
        """Start the gateway; the plan's files have been written."""
        arguments = [f"--address-file={self._address_file}", f"--spool={spool}", f"--run={self._directory}"]
        arguments += ledger_arguments(self._directory, self._settings.ledger, self._folder.name)
        arguments += self._settings.gateway_arguments()
        if self.state.peers:  # else it is the gateway's address
            arguments.append(f"--owner-socket={self._owner_socket}")
        self._start(GATEWAY_NAME, gateway_command(self._plan_folder, arguments), self._owner_socket)

    def _start(self, name: str, command: Sequence[str], address: str) -> None:
        log = self._logs / f"{name}.log"
        with signals_held():
            self.children[name] = child = spawn(command, self._directory, log)
        with contextlib.suppress(psutil.Error):  # it has ended already: await_ready reports it
            found = process_state(name, child, command, address, log)
            self._update(processes=(*self.state.processes, found))

    def _update(self, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)
        write_state(self._directory, self.state)

    def start_keeper(self) -> None:
        """Start the keeper, which restarts processes that die."""
        log = self._logs / f"{KEEPER_NAME}.log"
        command = [*PYTHON, KEEPER_MODULE, str(self._directory), str(self._folder)]
        with signals_held():
            self.children[KEEPER_NAME] = child = spawn(command, self._directory, log)
        with locked(self._directory):
            try:
                keeper = process_state(KEEPER_NAME, child, command, "", log)
            except psutil.Error as error:
                raise LaunchError(describe_end(KEEPER_NAME, child.poll(), log)) from error
            self._update(keeper=keeper)
        until_s = time.monotonic() + _KEEPER_S
        while not is_held(self._folder) and time.monotonic() < until_s:  # else it has not read the run's files yet
            self._check(math.inf, KEEPER_NAME)
            time.sleep(_POLL_S)

    def await_ready(self, progress: Progress, until_s: float) -> None:
        """Return when the gateway and all workers here are ready; LaunchError at CLOCK_MONOTONIC second `until_s`."""
        total = len(self.children)
        while not self._address_file.exists():
            self._check(until_s, "the gateway")
            progress(0, total, "starting the gateway")
            time.sleep(_POLL_S)
        clients_address = self._address_file.read_text(encoding="utf-8")
        address = self._owner_socket if self._settings.tls else clients_address
        with Client(address, timeout_s=_STATUS_S) as client:
            while not self._is_ready(client, progress, until_s):
                time.sleep(_POLL_S)
        processes = self.state.processes
        if self._settings.port is not None:  # a restarted gateway keeps its port
            port = f"--port={clients_address.rpartition(':')[2]}"
            processes = tuple(
                dataclasses.replace(process, command=(*process.command, port))
                if process.name == GATEWAY_NAME
                else process
                for process in processes
            )
        self._update(gateway_address=address, clients_address=clients_address, processes=processes)

    def _is_ready(self, client: Client, progress: Progress, until_s: float) -> bool:
        try:
            status = client.status()
        except RequestError as error:  # the gateway has died or is busy
            self._check(until_s, f"the gateway ({error})")
            return False
        total = len(self.children)
        waiting = [name for name, state in status.workers.items() if state != "ready"]
        progress(total - len(waiting), total, f"waiting for {waiting[0]}" if waiting else "ready")
        if status.state == "ready" or self.state.peers:
            return True
        self._check(until_s, ", ".join(f"{name} ({status.reasons.get(name, 'no answer')})" for name in waiting))
        return False

    def _check(self, until_s: float, waiting: str) -> None:
        """LaunchError when a process has died or the time is up."""
        dead = [name for name, child in self.children.items() if child.poll() is not None]
        if dead:
            texts = [describe_end(name, self.children[name].returncode, self._logs / f"{name}.log") for name in dead]
            raise LaunchError("\n".join(texts))
        if time.monotonic() > until_s:
            raise LaunchError(f"not ready in time: {waiting}; see the logs in {self._logs}")

    def abandon(self) -> None:
        """Stop all processes and remove the run's state."""
        for child in self.children.values():
            child.terminate()
        stop([process for _, process in self.state.alive()], graceful_s=2.0)
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
        clear_state(self._directory, self.state)


def _require_down(directory: Path) -> None:
    """AlreadyRunningError if a process of the project's run lives; else remove the state left by a dead run."""
    state = run_of(directory)
    if state is None:
        return
    alive = state.alive()
    if not alive and is_held(Path(state.folder)):
        raise AlreadyRunningError(
            f"{directory} is up already, in another container (PID namespace): "
            f"`jellybean down {shell_text(directory)}` there stops it"
        )
    if alive:
        names = ", ".join(process.name for process, _ in alive)
        if state.gateway_address and not {GATEWAY_NAME, KEEPER_NAME} & {process.name for process, _ in alive}:
            raise AlreadyRunningError(
                f"gateway and keeper of {directory} have died, and not yet {names}: "
                f"`jellybean down {shell_text(directory)}` clears what is left, then run this again"
            )
        where = f" on {state.gateway_address}" if state.gateway_address else ""
        project = shell_text(directory)
        how = f"`jellybean apply {project}` has it serve another plan, `jellybean down {project}` stops it"
        raise AlreadyRunningError(f"{directory} is up already{where} ({names}); {how}")
    clear_state(directory, state)
