"""Processes of a project's run, told apart from all others by nothing that a clock can change.

Ids are reused, and start times as dates move when the clock is set. So a process is that of a run if
its command line, which it cannot lose, names the project, the run's folder (whose name is random) and
the process's place in the run. It is read from the process itself: a state file that somebody else has
written chooses no process.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.serving.run_folder import is_named_for

if TYPE_CHECKING:
    import psutil

AGENT_MODULE, GATEWAY_MODULE = "jellybean_agent", "jellybean.serving.gateway_main"
KEEPER_MODULE = "jellybean.serving.local.keeper"
GATEWAY_NAME, KEEPER_NAME = "gateway", "keeper"
_PROJECT_OPTIONS = {AGENT_MODULE: "--root", GATEWAY_MODULE: "--run"}
_START_S, _START_POLL_S = 1.0, 0.001  # longest wait for the command line of a process that was started just now
_PYTHON = re.compile(r"python|pypy|" + re.escape(Path(sys.executable).name))
_START_TICKS = 19  # field of /proc/PID/stat after the command: starttime, the 22nd of all (proc_pid_stat(5))


@dataclass(frozen=True, slots=True)
class Program:
    """What a process of a run is: its module, project, name, and folder.

    `folder`: of the run; of an agent, that of its plan in it, as a plan's agents run beside those of the next.
    """

    module: str
    project: str
    name: str
    folder: str

    @property
    def run_folder(self) -> str:
        """The run's folder; empty for a command line that names none."""
        return str(Path(self.folder).parent) if self.module == AGENT_MODULE and self.folder else self.folder


def program_of(command: Sequence[str]) -> Program | None:
    """The program of a command line; None if it is not that of a run's process."""
    if "-m" not in command[:-1]:
        return None
    module, *arguments = command[command.index("-m") + 1 :]
    if module == KEEPER_MODULE:
        return Program(module, arguments[0], KEEPER_NAME, arguments[1]) if len(arguments) > 1 else None
    if module not in _PROJECT_OPTIONS or not (project := option_of(arguments, _PROJECT_OPTIONS[module])):
        return None
    plan = option_of(arguments, "--plan")
    folder = Path(plan).parent if plan else None
    if module == GATEWAY_MODULE:
        return Program(module, project, GATEWAY_NAME, str(folder.parent) if folder else "")
    return Program(module, project, option_of(arguments, "--worker"), str(folder) if folder else "")


def option_of(arguments: Sequence[str], option: str) -> str:
    """The value of `--option=VALUE` in a command line, the last if it is repeated; empty without one."""
    values = [item.partition("=")[2] for item in arguments if item.startswith(f"{option}=")]
    return values[-1] if values else ""


def live_process(pid: int, program: Program | None) -> psutil.Process | None:
    """The process with this id that runs the program; None when it has ended."""
    import psutil  # not installed with a client only, which imports this module and starts no process

    try:
        process = psutil.Process(pid)
        if program is None or process.status() == psutil.STATUS_ZOMBIE:
            return None
    except (psutil.Error, ValueError, OverflowError):
        return None
    return process if program_of(_command_of(process)) == program else None


def is_suspended(process: psutil.Process) -> bool:
    """True for a process that lives and does nothing, as after SIGSTOP."""
    import psutil

    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _command_of(process: psutil.Process) -> list[str]:
    """The command line of a process; empty when it has ended, or has none, as threads of the kernel.

    It is empty for a moment after the start too: then this waits for it, as such a process may be anybody's.
    """
    import psutil

    until_s = time.monotonic() + _START_S
    try:
        while not (command := process.cmdline()) and time.monotonic() < until_s:
            time.sleep(_START_POLL_S)
    except psutil.Error:
        return []
    return command


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A process of a run that lives. `started`: its `start_ticks`."""

    pid: int
    program: Program
    command: Sequence[str]
    started: int


def processes_of_project(directory: Path) -> Iterator[LiveProcess]:
    """Each process that serves the project, whatever its files say, but this one.

    Only of users that its state may be from: this one, root, and the owner of the folder. A user that may not enter
    the project cannot put a process into its run.
    """
    try:
        import psutil
    except ImportError:  # a client only, which starts no process
        return
    users = {os.geteuid(), 0, _owner(directory)}
    matches: dict[int, LiveProcess] = {}
    parents: dict[int, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or its user hides it
            command = process.cmdline()
            program = program_of(command)
            if program is None or program.project != str(directory) or process.uids().real not in users:
                continue
            if not _PYTHON.match(Path(command[0]).name):  # a tool that was given the command line: watch, strace
                continue
            is_of_run = is_named_for(Path(program.run_folder), directory)
            if is_of_run and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                matches[process.pid] = LiveProcess(process.pid, program, command, start_ticks(process.pid))
                parents[process.pid] = process.ppid()
    for pid, match in matches.items():
        parent = matches.get(parents[pid])
        if parent is None or parent.program != match.program:  # else a fork
            yield match


def _owner(directory: Path) -> int:
    try:
        return directory.stat().st_uid
    except OSError:
        return os.geteuid()


def start_ticks(pid: int) -> int:
    """When a process was started, in ticks since the machine's start: setting the clock does not change it.

    psutil.NoSuchProcess when it has ended already.
    """
    import psutil

    if sys.platform != "linux":
        return round(psutil.Process(pid).create_time() * _ticks_per_s())
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(text.rpartition(")")[2].split()[_START_TICKS])


def age_s(ticks: int) -> float:
    """Seconds since the start of a process, by its `start_ticks`."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()
    return now_s - ticks / _ticks_per_s()


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")


def user_name(number: int) -> str:
    """The name of a user, or its number where it has none."""
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
