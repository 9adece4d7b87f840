"""A plan that is up on this machine: watched until it is stopped, then drained and stopped."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from jellybean.folders import STATE_FOLDER
from jellybean.serving.client import Client
from jellybean.serving.errors import NotRunningError, RequestError, ServingError
from jellybean.serving.local.processes import Child, describe_end, stop
from jellybean.serving.local.settings import DRAIN_S
from jellybean.serving.run_locks import locked
from jellybean.serving.run_processes import GATEWAY_NAME, KEEPER_NAME
from jellybean.serving.run_state import (
    RunState,
    await_socket,
    clear_state,
    read_state,
    require_mine,
    require_visible,
    run_of,
    with_unlisted,
    write_state,
)

_POLL_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class StopLimits:
    """Longest waits while a run is stopped: for the gateway's status, and from SIGTERM to SIGKILL after its drain."""

    status_s: float = 5.0
    terminate_s: float = 10.0


class Running:
    """A plan that is up. `wait` watches it in the foreground; `down` drains and stops it.

    Unless it is detached (no `children`), it goes down with this process, however that ends short of SIGKILL.
    """

    def __init__(
        self, directory: Path, state: RunState, children: Mapping[str, Child], signals: contextlib.ExitStack
    ) -> None:
        """`signals`: has SIGTERM raise TerminatedError; closed when the run is down."""
        self.directory = directory
        self.state = state
        self._children = dict(children)
        self._signals = signals
        self.left: int | None = None  # requests that Ctrl-C or SIGTERM in `wait` left unanswered; None before
        if self._children:
            atexit.register(self._down_at_exit)

    @property
    def gateway_address(self) -> str:
        return self.state.gateway_address

    def down(self, timeout_s: float = DRAIN_S, limits: StopLimits = StopLimits()) -> int:
        """Drain and stop the run; returns the number of requests left unanswered."""
        try:
            return down(self.directory, timeout_s=timeout_s, limits=limits)
        except KeyboardInterrupt:  # a second Ctrl-C: stop without a drain
            return down(self.directory, timeout_s=0.0, limits=limits)
        finally:
            self._reap(limits.terminate_s)
            self._signals.close()
            atexit.unregister(self._down_at_exit)

    def wait(self, report: Callable[[str], None] | None = None) -> str | None:
        """Watch the processes until Ctrl-C or SIGTERM (both drain), a `down` from elsewhere, or the keeper's death.

        Calls `report` for each process that dies; the keeper restarts it. If the keeper itself dies, stops the run and
        returns how it died; otherwise returns None.
        """
        report = report or (lambda text: print(text, file=sys.stderr, flush=True))
        reported: dict[str, int] = {}  # process -> restarts reported so far
        try:
            while self._children and not self._was_stopped():
                self._report_deaths(report)
                for process in self._current_state().processes:
                    if process.restarts > reported.get(process.name, 1):
                        reported[process.name] = process.restarts
                        report(f"{process.death}\n{process.name} is started again")
                if (code := self._children[KEEPER_NAME].poll()) is not None and not self._was_stopped():
                    death = describe_end(KEEPER_NAME, code, self._log(KEEPER_NAME))
                    report(death)
                    with contextlib.suppress(NotRunningError):  # another `down`, on a full disk, was faster
                        self.down()
                    return death
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            self.left = self.down()
        self._reap(StopLimits().terminate_s)
        return None

    def _report_deaths(self, report: Callable[[str], None]) -> None:
        """Report own children that died; restarts of the keeper's children are in the run's state."""
        for name in [name for name, child in self._children.items() if child.poll() is not None]:
            if name == KEEPER_NAME or self._was_stopped():
                continue
            child = self._children.pop(name)
            if self._current_state().plan_folder == self.state.plan_folder:  # else its plan was replaced
                report(f"{describe_end(name, child.returncode, self._log(name))}\n{name} is started again")

    def _current_state(self) -> RunState:
        return read_state(self.directory) or self.state

    def _was_stopped(self) -> bool:
        """True once the run ends. Not without a state file while the keeper lives, which writes it again."""
        state = read_state(self.directory)
        if state is None:
            keeper = self._children.get(KEEPER_NAME)
            return keeper is None or keeper.poll() is not None
        return state.stopping or state.drained or state.folder != self.state.folder

    def _down_at_exit(self) -> None:
        """Stop the run at the interpreter's exit, in case an interrupt came outside `wait`."""
        try:
            if not self._was_stopped():
                self.down()
        except ServingError as error:
            print(error, file=sys.stderr, flush=True)

    def _log(self, name: str) -> Path:
        return self.directory / STATE_FOLDER / "logs" / f"{name}.log"

    def _reap(self, limit_s: float) -> None:
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(limit_s)


@contextlib.contextmanager
def stopped_on_failure(running: Running) -> Iterator[None]:
    """Stop a run that has just started, detached or not, if what follows fails: its caller never learns of it."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ServingError):  # the first error is the one to report
            running.down(timeout_s=0.0)
        raise


def down(directory: Path, *, timeout_s: float = DRAIN_S, limits: StopLimits = StopLimits()) -> int:
    """Drain and stop the run of a project, whichever process started it; returns the number of requests left.

    NotRunningError when nothing is up; ServingError when everything is stopped but the gateway did not answer, so that
    the number is unknown. Every process of the run ends: by SIGKILL if need be.
    """
    directory = directory.resolve()
    state = run_of(directory)
    if state is None:
        raise NotRunningError(f"nothing is up for {directory}")
    require_visible(directory, state)
    require_mine(directory, state)
    left: int | None = 0
    with locked(directory):  # the keeper starts nothing now, and has ended after it
        state = read_state(directory) or state
        with contextlib.suppress(OSError):  # a full or read-only disk must not keep a run up
            write_state(directory, dataclasses.replace(state, stopping=True))
        state = with_unlisted(directory, state)
        stop([process for entry, process in state.alive() if entry.name == KEEPER_NAME], limits.terminate_s)
    gateway = next((process for process, _ in state.alive() if process.name == GATEWAY_NAME), None)
    if state.gateway_address and gateway is not None:
        await_socket(gateway)
        left = _drain(gateway.address, timeout_s, limits.status_s)
    end_run(directory, state, limits.terminate_s)
    if left is None:
        raise ServingError(f"{directory} is down, but its gateway did not say how many requests were left in flight")
    return left


def end_run(directory: Path, state: RunState, terminate_s: float) -> None:
    """Stop the processes of a run, but not this one, and remove its state."""
    state = with_unlisted(directory, state)
    stop([process for _, process in state.alive() if process.pid != os.getpid()], terminate_s)
    with contextlib.suppress(OSError):  # a read-only disk: what it says of processes that have ended misleads nobody
        clear_state(directory, state)


def _drain(address: str, timeout_s: float, status_s: float) -> int | None:
    """Requests left after a drain, at worst those in flight before it; None when the gateway did not answer."""
    left: int | None = None
    with contextlib.suppress(RequestError), Client(address, timeout_s=status_s) as client:
        left = int(client.status().requests_in_hand)
        left = client.drain(timeout_s)
    return left
