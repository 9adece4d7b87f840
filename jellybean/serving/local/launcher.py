"""Brings a plan up on this machine: one agent process per worker, and a gateway.

Children are spawned, never forked from a process that has used gRPC, each in a session of its own, so that a Ctrl-C in
the terminal reaches only the launcher, which then drains. Sockets live in a private folder under the system's temporary
folder, because a socket's path is short.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from jellybean.folders import state_folder
from jellybean.serving.client import Client
from jellybean.serving.errors import AlreadyRunningError, LaunchError, NotRunningError, RequestError, ServingError
from jellybean.serving.gateway.gateway import MAX_IN_FLIGHT, TIMEOUT_S
from jellybean.serving.local.processes import Child, describe, spawn, stop, told
from jellybean.serving.run_state import GATEWAY_NAME, RunState, clear_state, lock_path, locked, read_state, write_state
from jellybean_agent import ALLOW_PYTHON_FLAG, GATEWAY, AgentError, PlanView, plan_view, python_refusal

START_S = 120.0
DRAIN_S = 30.0
_STOP_S = 10.0  # from SIGTERM to SIGKILL, once the gateway has been drained
_STATUS_S = 5.0
_POLL_S = 0.1
KEEPER_NAME = "keeper"
_PYTHON = [sys.executable, "-P", "-m"]  # -P: the project's folder must not shadow what is imported
_MAX_SOCKET_PATH = 100

Progress = Callable[[float, float, str], None]


class Running:
    """A plan that is up. `wait` stays in front; `down` drains and stops it.

    One that was not detached goes down with its launcher at the latest, however that ends short of SIGKILL.
    """

    def __init__(
        self, directory: Path, state: RunState, children: Mapping[str, Child], signals: contextlib.ExitStack
    ) -> None:
        self.directory = directory
        self.state = state
        self._children = dict(children)
        self._signals = signals  # SIGTERM interrupts until the run is down
        if self._children:
            atexit.register(self._leave)

    @property
    def gateway_address(self) -> str:
        return self.state.gateway_address

    def down(self, timeout_s: float = DRAIN_S) -> int:
        """Drain and stop; the number of requests that were left."""
        try:
            return down(self.directory, timeout_s=timeout_s)
        except KeyboardInterrupt:  # a second Ctrl-C: no more waiting for requests
            return down(self.directory, timeout_s=0.0)
        finally:
            self._reap()
            self._signals.close()
            atexit.unregister(self._leave)

    def wait(self, report: Callable[[str], None] | None = None) -> str | None:
        """Watch the processes until Ctrl-C, SIGTERM (both drain), a `down` from elsewhere, or the keeper's death.

        Each death is reported by name as it happens; the keeper starts again what died. Returns how the keeper died,
        None unless it did.
        """
        say = report or (lambda text: print(text, file=sys.stderr, flush=True))
        restarts: dict[str, int] = {}
        try:
            while self._children and not self._was_stopped():
                for name in [name for name, child in self._children.items() if child.poll() is not None]:
                    if name != KEEPER_NAME and not self._was_stopped():
                        if self._state_now().plan_folder != self.state.plan_folder:  # it left with its plan
                            del self._children[name]
                            continue
                        code = self._children.pop(name).returncode  # of those that the keeper started, it knows
                        say(f"{told(name, code, self._log(name))}\n{name} is started again")
                for process in self._state_now().processes:
                    if process.restarts > restarts.get(process.name, 1):
                        restarts[process.name] = process.restarts
                        say(f"{process.death}\n{process.name} is started again")
                if (code := self._children[KEEPER_NAME].poll()) is not None and not self._was_stopped():
                    died = told(KEEPER_NAME, code, self._log(KEEPER_NAME))
                    say(died)
                    self.down()
                    return died
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            self.down()
        self._reap()
        return None

    def _state_now(self) -> RunState:
        return read_state(self.directory) or self.state

    def _was_stopped(self) -> bool:
        state = read_state(self.directory)
        return state is None or state.stopping or state.folder != self.state.folder

    def _leave(self) -> None:
        """At the launcher's exit: an interrupt may have come where nobody caught it."""
        try:
            if not self._was_stopped():
                self.down()
        except ServingError as error:
            print(error, file=sys.stderr, flush=True)

    def _log(self, name: str) -> Path:
        return state_folder(self.directory) / "logs" / f"{name}.log"

    def _reap(self) -> None:
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_STOP_S)


def up(
    directory: Path,
    document: Mapping[str, Any],
    *,
    port: int | None = None,
    http_port: int = 0,
    tls: Path | None = None,
    insecure: bool = False,
    metrics_port: int = 0,
    detach: bool = False,
    progress: Progress = lambda done, total, label: None,
    start_timeout_s: float = START_S,
    max_in_hand: int = MAX_IN_FLIGHT,
    request_timeout_s: float = TIMEOUT_S,
    hedge_after: str = "",
    allow_python: frozenset[str] = frozenset(),
) -> Running:
    """Start every process of the plan and return once all are ready.

    LaunchError names the process that did not come up; AlreadyRunningError when the project is up. `detach`: the caller
    will go away and somebody else will call `down`. Without ports only this user's processes reach the gateway, over
    its Unix socket. `port`: a TCP port for clients (0: a free one), with the gateway's certificate in `tls`, or
    `insecure`: for anybody on this machine. `http_port`: the inference protocol over HTTP (0: none), likewise.
    `metrics_port`: the gateway's metrics, on the loopback (0: none). `hedge_after`: as `Hedge` reads it; empty: never.
    `allow_python`: functions that agents may run besides their own steps.
    """
    if (port is not None or http_port) and tls is None and not insecure:
        raise LaunchError(
            "a port is open to every user of this machine: --tls FOLDER (made by `jellybean certs`), "
            "or --insecure where that is meant"
        )
    if http_port and importlib.util.find_spec("aiohttp") is None:
        raise LaunchError("HTTP needs aiohttp: pip install 'jellybean-serving[http]', or leave HTTP out")
    directory = directory.resolve()
    try:
        view = plan_view(document)
    except AgentError as error:
        raise LaunchError(str(error)) from error
    require_allowed(view, allow_python)
    with contextlib.ExitStack() as signals:
        signals.enter_context(_terminated_as_interrupt())
        with lock(directory):
            _refuse_second(directory)
            face = _Face(port, http_port, tls, insecure, metrics_port, hedge_after)
            launch = _Launch(directory, view, face, max_in_hand, request_timeout_s, allow_python)
            try:
                launch.spawn(document)
                launch.await_ready(progress, time.monotonic() + start_timeout_s)
                launch.keep()
            except BaseException:
                launch.abandon()
                raise
            if detach:
                return Running(directory, launch.state, {}, contextlib.ExitStack())
            return Running(directory, launch.state, launch.children, signals.pop_all())


def down(directory: Path, *, timeout_s: float = DRAIN_S) -> int:
    """Drain and stop what is up for a project, whoever started it; the number of requests that were left.

    NotRunningError when nothing is up; ServingError when everything is stopped but the gateway did not answer, so that
    the number is unknown. No process of the run is left behind: what does not end is killed.
    """
    directory = directory.resolve()
    state = read_state(directory)
    if state is None:
        raise NotRunningError(f"nothing is up for {directory}")
    left: int | None = 0
    with locked(directory):  # from here on the keeper starts nothing
        state = read_state(directory) or state
        write_state(directory, dataclasses.replace(state, stopping=True))
    if state.keeper is not None and (keeper := state.keeper.process()) is not None:
        stop([keeper], _STOP_S)
    gateway = next((process for process, _ in state.alive() if process.name == GATEWAY_NAME), None)
    if state.gateway_address and gateway is not None:
        left = _drain(gateway.address, timeout_s)
    stop([process for _, process in state.alive()], _STOP_S)
    clear_state(directory, state)
    if left is None:
        raise ServingError(f"{directory} is down, but its gateway did not say how many requests were left in hand")
    return left


def _drain(address: str, timeout_s: float) -> int | None:
    """How many requests the gateway had left: at worst those last known to be in hand, None when it never said."""
    left: int | None = None
    with contextlib.suppress(RequestError), Client(address, timeout_s=_STATUS_S) as client:
        left = int(client.status().requests_in_hand)
        left = client.drain(timeout_s)
    return left


@dataclasses.dataclass(frozen=True, slots=True)
class _Face:
    """What of the gateway others than this user reach."""

    port: int | None
    http_port: int
    tls: Path | None
    insecure: bool
    metrics_port: int
    hedge_after: str = ""

    def arguments(self) -> list[str]:
        found = [f"--http-port={self.http_port}", f"--metrics-port={self.metrics_port}", "--worker-metrics"]
        found += [f"--hedge-after={self.hedge_after}"] if self.hedge_after else []
        found += ["--insecure"] if self.insecure else []
        found += [] if self.port is None else [f"--port={self.port}"]
        return found + ([] if self.tls is None else [f"--tls={self.tls.resolve()}"])


class _Launch:
    """A run while it starts. The state file is written after every spawn, so that nothing can be lost."""

    def __init__(
        self,
        directory: Path,
        view: PlanView,
        face: _Face,
        max_in_hand: int,
        timeout_s: float,
        allow_python: frozenset[str],
    ) -> None:
        self._directory, self._view, self._face, self._allow_python = directory, view, face, allow_python
        self._max_in_hand, self._timeout_s = max_in_hand, timeout_s
        self._folder = _run_folder()
        self._plan_folder = self._folder / "1"
        self._logs = state_folder(directory) / "logs"
        self.state = RunState(view.hash, view.name, str(self._folder), str(self._plan_folder))
        self.children: dict[str, Child] = {}

    def spawn(self, document: Mapping[str, Any]) -> None:
        """Write what the processes read and start them all."""
        own_gateway = f"unix:{self._folder}/g.sock"
        addresses = write_plan(self._plan_folder, self._view, document, own_gateway)
        for worker in self._view.serving:
            address = addresses[worker.name]
            command = agent_command(self._directory, self._plan_folder, worker.name, address, self._allow_python)
            self._start(worker.name, command, address)
        own = [f"--address-file={self._address_file}", *self._face.arguments()]
        own += [f"--max-in-hand={self._max_in_hand}", f"--timeout-s={self._timeout_s}"]
        own += [f"--spool={state_folder(self._directory) / 'spool.db'}"]
        self._start(GATEWAY_NAME, gateway_command(self._plan_folder, own), own_gateway)

    @property
    def _address_file(self) -> Path:
        return self._folder / "gateway.address"

    def _start(self, name: str, command: Sequence[str], address: str) -> None:
        log = self._logs / f"{name}.log"
        self.children[name] = child = spawn(command, self._directory, log)
        with contextlib.suppress(psutil.Error):  # it has ended already: await_ready will say so
            found = describe(name, child, command, address, log)
            self.state = dataclasses.replace(self.state, processes=(*self.state.processes, found))
            write_state(self._directory, self.state)

    def keep(self) -> None:
        """Have what dies from now on started again."""
        log = self._logs / f"{KEEPER_NAME}.log"
        command = [*_PYTHON, "jellybean.serving.local.keeper", str(self._directory), str(self._folder)]
        self.children[KEEPER_NAME] = child = spawn(command, self._directory, log)
        with locked(self._directory):
            try:
                self.state = dataclasses.replace(self.state, keeper=describe(KEEPER_NAME, child, command, "", log))
            except psutil.Error as error:
                raise LaunchError(told(KEEPER_NAME, child.poll(), log)) from error
            write_state(self._directory, self.state)

    def await_ready(self, progress: Progress, until: float) -> None:
        """Return when the gateway and all workers are ready."""
        total = len(self.children)
        while not self._address_file.exists():
            self._check(until, "the gateway")
            progress(0, total, "starting the gateway")
            time.sleep(_POLL_S / 2)
        clients = self._address_file.read_text(encoding="utf-8")
        address = f"unix:{self._folder}/g.sock" if self._face.tls else clients
        with Client(address, timeout_s=_STATUS_S) as client:
            while True:
                try:
                    status = client.status()
                except RequestError as error:  # it has died, or is too busy: one look at the processes tells
                    self._check(until, f"the gateway ({error})")
                    time.sleep(_POLL_S / 2)
                    continue
                waiting = [name for name, state in status.workers.items() if state != "ready"]
                progress(total - len(waiting), total, f"waiting for {waiting[0]}" if waiting else "ready")
                if status.state == "ready":
                    break
                self._check(until, ", ".join(f"{name} ({status.reasons.get(name, 'no answer')})" for name in waiting))
                time.sleep(_POLL_S / 2)
        processes = self.state.processes
        if self._face.port is not None:  # it keeps its port when it is started again
            port = f"--port={clients.rpartition(':')[2]}"
            processes = tuple(
                dataclasses.replace(process, command=(*process.command, port))
                if process.name == GATEWAY_NAME
                else process
                for process in processes
            )
        self.state = dataclasses.replace(
            self.state, gateway_address=address, clients_address=clients, processes=processes
        )
        write_state(self._directory, self.state)

    def _check(self, until: float, waiting: str) -> None:
        dead = [name for name, child in self.children.items() if child.poll() is not None]
        if dead:
            texts = [told(name, self.children[name].returncode, self._logs / f"{name}.log") for name in dead]
            raise LaunchError("\n".join(texts))
        if time.monotonic() > until:
            raise LaunchError(f"not ready in time: {waiting}; see the logs in {self._logs}")

    def abandon(self) -> None:
        """Stop what was started; nothing is left."""
        for child in self.children.values():
            child.terminate()
        stop([process for _, process in self.state.alive()], graceful_s=2.0)
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
        clear_state(self._directory, self.state)


def write_plan(folder: Path, view: PlanView, document: Mapping[str, Any], gateway: str) -> dict[str, str]:
    """Write what the processes of a plan read into a folder; their addresses by name."""
    folder.mkdir(mode=0o700)
    addresses = {GATEWAY: gateway}
    addresses |= {worker.name: f"unix:{folder}/{i}.sock" for i, worker in enumerate(view.serving)}
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "peers.json").write_text(json.dumps(addresses), encoding="utf-8")
    return addresses


def require_allowed(view: PlanView, allow_python: frozenset[str]) -> None:
    """LaunchError, before anything is started, where an agent would refuse a function of the plan."""
    for operator in view.operators.values():
        if operator.python is not None and (why := python_refusal(operator.python.function, allow_python)) is not None:
            raise LaunchError(f"{operator.name}/{operator.variant}: {why}")


def agent_command(
    directory: Path, folder: Path, worker: str, address: str, allow_python: frozenset[str] = frozenset()
) -> list[str]:
    """How the agent of one worker is started."""
    own = [f"--worker={worker}", f"--listen={address}", f"--root={directory}"]
    own += [f"{ALLOW_PYTHON_FLAG}={function}" for function in sorted(allow_python)]
    return [*_PYTHON, "jellybean_agent", *_files(folder), *own]


def gateway_command(folder: Path, own: Sequence[str]) -> list[str]:
    """How the gateway is started, with the plan of a folder."""
    return [*_PYTHON, "jellybean.serving.gateway_main", *_files(folder), *own]


def _files(folder: Path) -> list[str]:
    files = {"plan": "plan.json", "peers": "peers.json", "links": "links"}
    return [f"--{name}={folder / file}" for name, file in files.items()]


def _run_folder() -> Path:
    """A private folder (mode 0700) whose sockets have short enough paths."""
    folder = Path(tempfile.mkdtemp(prefix="jellybean-"))
    if len(str(folder)) + len("/99/9999.sock") >= _MAX_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="jellybean-", dir="/tmp"))
    return folder


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[None]:
    """One launcher at a time per project."""
    with lock_path(directory).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunningError(f"another `jellybean up {directory}` is starting right now") from error
        yield


def _refuse_second(directory: Path) -> None:
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
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM drains like Ctrl-C does. Only the main thread may listen to signals."""
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
