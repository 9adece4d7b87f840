"""The keeper of a run: restarts processes that die, with exponential backoff, until the run is stopped.

It is a separate process, so that it works even if `up` does not stay in the foreground. Its only input is the run's
state file, which it changes under the file's lock, so that it never starts a process of a run that is being stopped.
What is removed of the run's files it writes again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from jellybean.errors import InputError
from jellybean.serving.errors import AlreadyRunningError, OtherVersionError, ServingError
from jellybean.serving.local.log_files import limit_log
from jellybean.serving.local.processes import Child, describe_end, exit_code, process_state, spawn
from jellybean.serving.local.run_files import RunFiles
from jellybean.serving.run_locks import is_launch_locked, locked
from jellybean.serving.run_processes import age_s
from jellybean.serving.run_state import ProcessState, RunState, read_state, state_path, write_state
from jellybean_agent import configure_logging, describe_error

LOG = logging.getLogger("jellybean.keeper")
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0  # before a restart; doubles while a process keeps dying
_STEADY_S = 20.0  # after living this long, a process has started properly: reset its pause
_POLL_S = 0.1
_TERMINATE_S = 10.0  # from SIGTERM to SIGKILL, for processes of a run whose gateway was told to end
_LOGS_S = 1.0  # between looks at the size of the logs
_RECOVER_S = 2.0  # between tries to recover from an `apply` that was killed
_FILES_S = 1.0  # between looks whether files of the run are missing


class DeathWatch:
    """Detects that processes have died; on Linux by process file descriptors (pidfd), which are cheap to poll."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[int, int], int] = {}  # (process id, start ticks) -> pidfd
        self._codes: dict[tuple[int, int], int | None] = {}  # of processes that have died

    def keep_only(self, processes: Sequence[ProcessState]) -> None:
        """Close the descriptors of all processes except these."""
        kept = {(process.pid, process.started) for process in processes}
        for key in self._descriptors.keys() - kept:
            os.close(self._descriptors.pop(key))
        self._codes = {key: code for key, code in self._codes.items() if key in kept}

    def has_died(self, process: ProcessState) -> bool:
        """True if the process has ended, whether or not its parent has reaped it."""
        if sys.platform != "linux":
            return process.process() is None
        key = (process.pid, process.started)
        if key in self._codes:
            return True
        if key not in self._descriptors:
            try:
                self._descriptors[key] = os.pidfd_open(process.pid)
            except OSError:
                return True
            if process.process() is None:  # its id has been reused
                os.close(self._descriptors.pop(key))
                return True
        descriptor = self._descriptors[key]
        if not select.select([descriptor], [], [], 0)[0]:
            return False
        self._codes[key] = exit_code(process.pid, descriptor)
        os.close(self._descriptors.pop(key))
        return True

    def exit_code(self, process: ProcessState) -> int | None:
        """Exit status of a process that has died; negative: its signal. None if it is not known."""
        return self._codes.get((process.pid, process.started))


class Keeper:
    """The keeper of the run in `folder`, of the project in `directory`."""

    def __init__(self, directory: Path, folder: str) -> None:
        self._directory, self._folder = directory, folder
        self._watch = DeathWatch()
        self._children: dict[str, Child] = {}  # started by this process, by name
        self._pause_s: dict[str, float] = {}  # before the next restart, by name
        self._died_unix_s: dict[str, float] = {}  # when it was seen that a process is dead, by name
        self._due_s: dict[str, float] = {}  # name of a dead process -> CLOCK_MONOTONIC second of its restart
        self._state: RunState | None = None
        with contextlib.suppress(OtherVersionError, InputError, OSError):
            self._state = read_state(directory)
        self._version: tuple[int, int] | None = None  # of the state file that was read last: inode, time of change
        self._is_unsaved = False  # the state file could not be written, and lags behind
        self._files = RunFiles(Path(folder))
        self._problem = ""  # logged last: a full disk stays full, and the log is on it
        self._recovery: threading.Thread | None = None
        self._next_recovery_s = self._next_logs_s = self._next_files_s = self._next_state_s = 0.0  # CLOCK_MONOTONIC

    def run(self) -> None:
        """Restart dead processes until the run stops or another run has replaced it, or its gateway was told to end."""
        while (state := self._current_state()) is not None:
            if state.drained:
                self._end()
                return
            self._watch.keep_only(state.processes)
            self._recover(state)
            self._limit_logs(state)
            self._restore_files(state)
            for process in state.processes:
                if self._watch.has_died(process) and self._is_due(process):
                    self._try_restart(process.name)
            time.sleep(_POLL_S)

    def _limit_logs(self, state: RunState) -> None:
        """Keep the logs of all processes, this one's too, within their size."""
        if time.monotonic() < self._next_logs_s:
            return
        self._next_logs_s = time.monotonic() + _LOGS_S
        for process in filter(None, (*state.processes, *state.others, state.keeper)):
            limit_log(Path(process.log))

    def _end(self) -> None:
        """Stop the rest of a run whose gateway was told to end."""
        from jellybean.serving.local.running import end_run  # gRPC only where it is needed

        with locked(self._directory):
            state = read_state(self._directory) or self._state
            if state is None or state.stopping:
                return
            with contextlib.suppress(OSError):  # a full disk
                write_state(self._directory, dataclasses.replace(state, stopping=True))
        end_run(self._directory, state, _TERMINATE_S)

    def _recover(self, state: RunState) -> None:
        """Finish or undo an `apply` that was killed, in a thread: it may take as long as a drain."""
        is_interrupted = bool(state.arriving or state.others)
        if (
            not is_interrupted
            or time.monotonic() < self._next_recovery_s
            or (self._recovery and self._recovery.is_alive())
        ):
            return
        self._next_recovery_s = time.monotonic() + _RECOVER_S
        if is_launch_locked(self._directory):  # an `apply` works
            return
        self._recovery = threading.Thread(target=_recover, args=(self._directory,), daemon=True)
        self._recovery.start()

    def _current_state(self) -> RunState | None:
        """The run's state, read again when the file has changed; None when the run is over.

        A state file that is gone or damaged is written again: nobody removes it while this process lives.
        """
        try:
            status = state_path(self._directory).stat()
            version = (status.st_ino, status.st_mtime_ns)
        except OSError:
            version = None
        is_due = time.monotonic() >= self._next_state_s
        if (version != self._version) or (is_due and (version is None or self._is_unsaved)):
            self._next_state_s = time.monotonic() + _FILES_S
            try:
                self._state = self._read_or_restored()
                self._version = version
            except OtherVersionError:
                return None
            except (OSError, InputError) as error:
                self._log_problem(error)
        state = self._state
        return None if state is None or state.stopping or state.folder != self._folder else state

    def _read_or_restored(self) -> RunState | None:
        """The state in the file, or else the last one that it had. OSError where it cannot be written."""
        state = read_state(self._directory)
        if (state is None or self._is_unsaved) and self._state is not None and self._directory.is_dir():
            with locked(self._directory):
                state = read_state(self._directory)
                if state is None:
                    LOG.warning("%s is gone or damaged: it is written again", state_path(self._directory))
                    state = self._state
                elif self._is_unsaved:
                    state = _with_processes_of(state, self._state)
                write_state(self._directory, state)
                self._is_unsaved = False
        return state or self._state

    def _restore_files(self, state: RunState, *, at_once: bool = False) -> None:
        """Write what is missing of the files that processes start with."""
        if time.monotonic() < self._next_files_s and not at_once:
            return
        self._next_files_s = time.monotonic() + _FILES_S
        try:
            for path in self._files.restore(state):
                LOG.warning("%s is gone: it is written again", path)
        except OSError as error:
            self._log_problem(error)

    def _log_problem(self, error: Exception) -> None:
        if (problem := describe_error(error, name=True)) != self._problem:
            LOG.warning("%s", problem)
        self._problem = problem

    def _is_due(self, process: ProcessState) -> bool:
        """True if a dead process is to be restarted now. The first call schedules its restart."""
        now_s = time.monotonic()
        if process.name not in self._due_s:
            self._died_unix_s[process.name] = time.time()
            steady = age_s(process.started) > _STEADY_S
            pause_s = MIN_PAUSE_S if steady else self._pause_s.get(process.name, MIN_PAUSE_S)
            self._pause_s[process.name] = min(2 * pause_s, MAX_PAUSE_S)
            self._due_s[process.name] = now_s + pause_s
        return self._due_s[process.name] <= now_s

    def _try_restart(self, name: str) -> None:
        """Restart a process; when the system has no resources for it (disk, memory, files), try again later."""
        try:
            self._restart(name)
        except OSError as error:
            pause_s = self._pause_s[name]
            self._pause_s[name] = min(2 * pause_s, MAX_PAUSE_S)
            self._due_s[name] = time.monotonic() + pause_s
            LOG.warning("%s cannot be started: %s; tried again in %.1f s", name, describe_error(error), pause_s)

    def _restart(self, name: str) -> None:
        """Restart a process unless the run has stopped or its plan was replaced."""
        self._due_s.pop(name, None)
        if not self._directory.is_dir():  # moved or removed: it is not made again
            raise FileNotFoundError(errno.ENOENT, f"{self._directory} is gone")
        with locked(self._directory):
            state = read_state(self._directory) or self._state
            if state is None or state.stopping or state.folder != self._folder:
                return
            dead = next((process for process in state.processes if process.name == name), None)
            if dead is None or dead.process() is not None:  # the plan was replaced
                return
            self._restore_files(state, at_once=True)
            self._files.require_safe()
            child = self._children.pop(name, None)
            own_code = None if child is None or child.pid != dead.pid else child.poll()
            code = self._watch.exit_code(dead) if own_code is None else own_code
            death = describe_end(name, code, Path(dead.log), self._died_unix_s.get(name))
            child = spawn(dead.command, self._directory, Path(dead.log), append=True)
            self._children[name] = child
            try:
                found = process_state(name, child, dead.command, dead.address, Path(dead.log))
            except psutil.Error:  # it died at once: the next poll sees it
                found = dataclasses.replace(dead, pid=child.pid)
            found = dataclasses.replace(found, restarts=dead.restarts + 1, death=death)
            processes = tuple(found if process.name == name else process for process in state.processes)
            self._state = dataclasses.replace(state, processes=processes)
            LOG.warning("%s is started again (restart %d): %s", name, found.restarts, death)
            try:
                write_state(self._directory, self._state)
            except OSError as error:  # `down` knows the process by its command line
                self._is_unsaved = True
                self._log_problem(error)


def _with_processes_of(state: RunState, newer: RunState) -> RunState:
    """The state of the file, with the processes that were started when it could not be written."""
    live = {process.name: process for process in newer.processes if process.process() is not None}
    processes = tuple(
        live.get(process.name, process) if process.process() is None else process for process in state.processes
    )
    return dataclasses.replace(state, processes=processes)


def _recover(directory: Path) -> None:
    from jellybean.serving.local.replace_plan import recover  # gRPC only where it is needed

    try:
        recover(directory)
    except AlreadyRunningError:  # another `apply` has just begun
        pass
    except (ServingError, OSError) as error:
        LOG.warning("%s", error)


def main() -> None:
    """`python -m jellybean.serving.local.keeper DIR RUN`."""
    configure_logging("keeper")
    Keeper(Path(sys.argv[1]), sys.argv[2]).run()


if __name__ == "__main__":
    main()
