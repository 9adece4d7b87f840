"""Brings a plan up on this machine: one agent process per worker, a gateway, and a keeper that restarts them.

Children are spawned, never forked from a process that has used gRPC, each in a session of its own: a Ctrl-C in the
terminal reaches the launcher alone, which then drains. Sockets are in a private folder under the system's temporary
folder, because a socket's path must be short.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from jellybean.folders import state_folder
from jellybean.serving.client import Client
from jellybean.serving.errors import AlreadyRunningError, LaunchError, RequestError
from jellybean.serving.local.commands import PYTHON, agent_command, gateway_command, require_allowed, write_plan
from jellybean.serving.local.processes import Child, describe_end, process_state, spawn, stop
from jellybean.serving.local.running import KEEPER_NAME, Running
from jellybean.serving.local.settings import LaunchSettings, Progress, no_progress
from jellybean.serving.run_state import (
    GATEWAY_NAME,
    RunState,
    clear_state,
    launch_lock,
    locked,
    read_state,
    write_state,
)
from jellybean_agent import AgentError, PlanView, plan_view

_STATUS_S = 5.0
_POLL_S = 0.05
_MAX_SOCKET_PATH = 100


def up(
    directory: Path,
    document: Mapping[str, Any],
    settings: LaunchSettings = LaunchSettings(),
    *,
    detach: bool = False,
    progress: Progress = no_progress,
) -> Running:
    """Start every process of a plan; returns once all are ready.

    LaunchError names the process that did not become ready; AlreadyRunningError if the project is served already.
    `detach`: the run outlives this process; another one will call `down`.
    """
    settings.check()
    directory = directory.resolve()
    try:
        view = plan_view(document)
    except AgentError as error:
        raise LaunchError(str(error)) from error
    require_allowed(view, settings.allow_python)
    with contextlib.ExitStack() as signals:
        signals.enter_context(_sigterm_as_interrupt())
        with launch_lock(directory):
            _require_down(directory)
            launch = _Launch(directory, view, settings, _run_folder())
            try:
                launch.spawn(document)
                launch.await_ready(progress, time.monotonic() + settings.start_timeout_s)
                launch.start_keeper()
            except BaseException:
                launch.abandon()
                raise
            if detach:
                return Running(directory, launch.state, {}, contextlib.ExitStack())
            return Running(directory, launch.state, launch.children, signals.pop_all())


class _Launch:
    """A run while it starts. The state file is written after every spawn, so that no process can be orphaned."""

    def __init__(self, directory: Path, view: PlanView, settings: LaunchSettings, folder: Path) -> None:
        self._directory, self._view, self._settings, self._folder = directory, view, settings, folder
        self._plan_folder = folder / "1"
        self._logs = state_folder(directory) / "logs"
        self._address_file = folder / "gateway.address"
        self._gateway_socket = f"unix:{folder}/g.sock"
        self.state = RunState(view.hash, view.name, str(folder), str(self._plan_folder))
        self.children: dict[str, Child] = {}

    def spawn(self, document: Mapping[str, Any]) -> None:
        """Write the plan's files and start all processes but the keeper."""
        addresses = write_plan(self._plan_folder, self._view, document, self._gateway_socket)
        for worker in self._view.serving:
            address = addresses[worker.name]
            allowed = self._settings.allow_python
            command = agent_command(self._directory, self._plan_folder, worker.name, address, allowed)
            self._start(worker.name, command, address)
        arguments = [f"--address-file={self._address_file}", *self._settings.gateway_arguments()]
        arguments += [f"--spool={state_folder(self._directory) / 'spool.db'}"]
        self._start(GATEWAY_NAME, gateway_command(self._plan_folder, arguments), self._gateway_socket)

    def _start(self, name: str, command: Sequence[str], address: str) -> None:
        log = self._logs / f"{name}.log"
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
        command = [*PYTHON, "jellybean.serving.local.keeper", str(self._directory), str(self._folder)]
        self.children[KEEPER_NAME] = child = spawn(command, self._directory, log)
        with locked(self._directory):
            try:
                keeper = process_state(KEEPER_NAME, child, command, "", log)
            except psutil.Error as error:
                raise LaunchError(describe_end(KEEPER_NAME, child.poll(), log)) from error
            self._update(keeper=keeper)

    def await_ready(self, progress: Progress, until_s: float) -> None:
        """Return when the gateway and all workers are ready; LaunchError at CLOCK_MONOTONIC second `until_s`."""
        total = len(self.children)
        while not self._address_file.exists():
            self._check(until_s, "the gateway")
            progress(0, total, "starting the gateway")
            time.sleep(_POLL_S)
        clients_address = self._address_file.read_text(encoding="utf-8")
        address = self._gateway_socket if self._settings.tls else clients_address
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
        if status.state == "ready":
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


def _run_folder() -> Path:
    """A new private folder (mode 0700), short enough for socket paths in it."""
    folder = Path(tempfile.mkdtemp(prefix="jellybean-"))
    if len(str(folder)) + len("/99/9999.sock") >= _MAX_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="jellybean-", dir="/tmp"))
    return folder


def _require_down(directory: Path) -> None:
    """AlreadyRunningError if a process of the project's run lives; else remove the state left by a dead run."""
    state = read_state(directory)
    if state is None:
        return
    alive = state.alive()
    if alive:
        names = ", ".join(process.name for process, _ in alive)
        where = f" on {state.gateway_address}" if state.gateway_address else ""
        how = f"`jellybean apply {directory}` has it serve another plan, `jellybean down {directory}` stops it"
        raise AlreadyRunningError(f"{directory} is up already{where} ({names}); {how}")
    clear_state(directory, state)


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that it drains like Ctrl-C. No effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
