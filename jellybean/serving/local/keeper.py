"""Keeps a run whole: starts again what died, with growing pauses, until the run is told to stop.

A process of its own, so that it is there whether `up` stays in front or not. It knows only what the run's state file
says, and changes that file only under its lock: a run that is stopping gets no new process.
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from jellybean.serving.errors import AlreadyRunningError, ServingError
from jellybean.serving.local.processes import Child, describe, spawn, told
from jellybean.serving.run_state import ProcessState, RunState, lock_path, locked, read_state, state_path, write_state
from jellybean_agent import configure_logging

LOG = logging.getLogger("jellybean.keeper")
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 10.0
_STEADY_S = 20.0  # a process that lived this long was no failure to start
_LOOK_S = 0.1
_RECOVER_S = 2.0


class Watch:
    """Which processes have died. Where the system has file descriptors of processes, a look costs next to nothing."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[int, float], int] = {}  # by id and start of a process that lived

    def only(self, processes: Sequence[ProcessState]) -> None:
        """Look after these and no others."""
        for key in self._descriptors.keys() - {(process.pid, process.started) for process in processes}:
            os.close(self._descriptors.pop(key))

    def has_died(self, process: ProcessState) -> bool:
        """Whether it has ended, reaped or not."""
        if sys.platform != "linux":
            return process.process() is None
        key = (process.pid, process.started)
        if key not in self._descriptors:
            try:
                self._descriptors[key] = os.pidfd_open(process.pid)
            except OSError:
                return True
            if process.process() is None:  # the id is another's by now
                os.close(self._descriptors.pop(key))
                return True
        descriptor = self._descriptors[key]
        if not select.select([descriptor], [], [], 0)[0]:
            return False
        os.close(self._descriptors.pop(key))
        return True


class Keeper:
    """Looks after one run."""

    def __init__(self, directory: Path, folder: str) -> None:
        self._directory, self._folder = directory, folder
        self._watch = Watch()
        self._children: dict[str, Child] = {}  # those that this process has started
        self._pause_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}  # name of a process that died -> when it is started again
        self._state: RunState | None = None
        self._read_ns = 0
        self._recovering: threading.Thread | None = None
        self._recover_s = 0.0  # when it is tried next

    def run(self) -> None:
        """Until the run stops, or another has taken its place."""
        while (state := self._look()) is not None:
            self._watch.only(state.processes)
            self._recover(state)
            for process in state.processes:
                if self._watch.has_died(process) and self._is_due(process):
                    self._try_again(process.name)
            time.sleep(_LOOK_S)

    def _recover(self, state: RunState) -> None:
        """End or undo what an `apply` left that was killed, beside the other work: it may take as long as a drain."""
        is_left = bool(state.arriving or state.others)
        if not is_left or time.monotonic() < self._recover_s or (self._recovering and self._recovering.is_alive()):
            return
        self._recover_s = time.monotonic() + _RECOVER_S
        if _is_locked(self._directory):  # an `apply` is at work
            return
        self._recovering = threading.Thread(target=_recover, args=(self._directory,), daemon=True)
        self._recovering.start()

    def _look(self) -> RunState | None:
        """The run's state, read when it has changed; None when it is over."""
        try:
            changed_ns = state_path(self._directory).stat().st_mtime_ns
        except OSError:
            return None
        if changed_ns != self._read_ns:
            self._state, self._read_ns = read_state(self._directory), changed_ns
        state = self._state
        return None if state is None or state.stopping or state.folder != self._folder else state

    def _is_due(self, process: ProcessState) -> bool:
        """Whether a process that died is to be started now; the first look decides when."""
        now_s = time.monotonic()
        if process.name not in self._due_s:
            steady = time.time() - process.started > _STEADY_S
            pause_s = FIRST_PAUSE_S if steady else self._pause_s.get(process.name, FIRST_PAUSE_S)
            self._pause_s[process.name] = min(2 * pause_s, MOST_PAUSE_S)
            self._due_s[process.name] = now_s + pause_s
        return self._due_s[process.name] <= now_s

    def _try_again(self, name: str) -> None:
        """Start a process again; where the system has no room for it now (disk, memory, files), later."""
        try:
            self._again(name)
        except OSError as error:
            pause_s = self._pause_s[name]
            self._pause_s[name] = min(2 * pause_s, MOST_PAUSE_S)
            self._due_s[name] = time.monotonic() + pause_s
            LOG.warning("%s cannot be started: %s; tried again in %.1f s", name, error.strerror or error, pause_s)

    def _again(self, name: str) -> None:
        """Start a process again, if the run still wants it."""
        self._due_s.pop(name, None)
        with locked(self._directory):
            state = read_state(self._directory)
            if state is None or state.stopping or state.folder != self._folder:
                return
            dead = next((process for process in state.processes if process.name == name), None)
            if dead is None or dead.process() is not None:  # another plan took over
                return
            child = self._children.pop(name, None)
            how = told(name, None if child is None or child.pid != dead.pid else child.poll(), Path(dead.log))
            child = spawn(dead.command, self._directory, Path(dead.log), again=True)
            try:
                found = describe(name, child, dead.command, dead.address, Path(dead.log))
            except psutil.Error:  # it died at once: the next look sees it
                found = dataclasses.replace(dead, pid=child.pid)
            found = dataclasses.replace(found, restarts=dead.restarts + 1, death=how)
            processes = tuple(found if process.name == name else process for process in state.processes)
            try:
                write_state(self._directory, dataclasses.replace(state, processes=processes))
            except OSError:  # nobody would know of it
                child.kill()
                child.wait()
                raise
        self._children[name] = child
        LOG.warning("%s is started again, for the %d. time", how, found.restarts)


def _is_locked(directory: Path) -> bool:
    try:
        with lock_path(directory).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _recover(directory: Path) -> None:
    from jellybean.serving.local.replacement import recover  # gRPC only where it is needed

    try:
        recover(directory)
    except AlreadyRunningError:  # one that has just begun
        pass
    except (ServingError, OSError) as error:
        LOG.warning("%s", error)


def main() -> None:
    """`python -m jellybean.serving.local.keeper DIR RUN`."""
    configure_logging("keeper")
    Keeper(Path(sys.argv[1]), sys.argv[2]).run()


if __name__ == "__main__":
    main()
