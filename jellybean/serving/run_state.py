"""The state file of a project's run, DIR/.jellybean/run.json.

Any process can find, call and stop the run by it.

A process is identified by its id and start time, because ids are reused. The file names the boot of
the machine and the project's folder that it belongs to: a copy of a project that is up is not up.

Whoever made the project's folder may have written the file. So it chooses no process to be stopped:
a process counts if its own command line is that of a process of this project. And no folder to be
removed: a run's folder is private, and names the project.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jellybean.folders import STATE_FOLDER, require_plain, state_folder, write_file
from jellybean.serving.errors import AlreadyRunningError, NotRunningError, OtherVersionError, RequestError

if TYPE_CHECKING:
    import psutil

STATE_VERSION = 3
_FOLDERLESS_VERSION = 2  # earlier format, which is read too: without the folder and the boot that it belongs to
GATEWAY_NAME = "gateway"
AGENT_MODULE, GATEWAY_MODULE = "jellybean_agent", "jellybean.serving.gateway_main"
KEEPER_MODULE = "jellybean.serving.local.keeper"
_MODULES, _PROJECT_OPTIONS = (AGENT_MODULE, GATEWAY_MODULE), ("--run=", "--root=")
_PROJECT_FILE = "project"  # in a run's folder: the project's
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of Linux
_FAILING_RESTARTS, _FAILING_S = 2, 30.0  # a process keeps failing: restarts, and seconds since the last one
_START_S, _START_POLL_S = 1.0, 0.001  # longest wait for the command line of a process that was started just now
_START_TOLERANCE_S = 2.0  # psutil derives start times from the boot time, which varies between reads


def program_of(command: Sequence[str]) -> tuple[str, str] | None:
    """(module, project's folder) of the command line of a run's process.

    None for that of another program.
    """
    if "-m" not in command[:-1]:
        return None
    module, *arguments = command[command.index("-m") + 1 :]
    if module == KEEPER_MODULE:
        return (module, arguments[0]) if arguments else None
    options = (item for option in _PROJECT_OPTIONS for item in arguments if item.startswith(option))
    project = next(options, "").partition("=")[2]
    return (module, project) if module in _MODULES and project else None


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of a run."""

    name: str  # a worker of the plan, or "gateway"
    pid: int
    started: float
    address: str
    log: str
    command: tuple[str, ...] = ()
    restarts: int = 0
    death: str = ""  # how the process that it replaced ended

    @property
    def reason(self) -> str:
        """Why the process that it replaced ended: the last line of its log, or else how it ended."""
        return self.death.rsplit("\n", 1)[-1].strip()

    @property
    def program(self) -> tuple[str, str] | None:
        """What runs in the process, and of which project.

        None for the command line of anything else.
        """
        return program_of(self.command)

    def process(self) -> psutil.Process | None:
        """The process; None when it has ended, or another program than the entry's has its id."""
        process = _process_of(self.pid, self.started)
        if process is None or self.program is None:
            return None
        return process if program_of(_command_of(process)) == self.program else None


def _process_of(pid: int, started: float) -> psutil.Process | None:
    """The process with this id and start time; None when it has ended."""
    import psutil  # not installed with a client only, which imports this module and starts no process

    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _START_TOLERANCE_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


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
class RunState:
    """A run: its plan, its processes, and its private folder with a subfolder per plan (sockets, plan, links).

    `keeper`: the process that restarts the plan's processes.
    """

    plan: str
    workflow: str
    folder: str
    plan_folder: str
    gateway_address: str = ""  # for this user's processes; empty while the run starts
    clients_address: str = ""  # for other clients: the TCP port, if there is one
    stopping: bool = False
    processes: tuple[ProcessState, ...] = ()
    others: tuple[ProcessState, ...] = ()  # processes of the new plan during a replacement, of the old plan after it
    keeper: ProcessState | None = None
    arriving: str = ""  # hash of the new plan during a replacement; the gateway knows which plan it serves
    arriving_folder: str = ""
    drained: bool = False  # the gateway was told to end: the keeper stops what is left
    peers: str = ""  # file with the workers' addresses if they run on other machines; empty: they are processes here
    version: int = STATE_VERSION  # of the state file that it was read from; its keeper can read this version only

    @property
    def plan_path(self) -> Path:
        return Path(self.plan_folder) / "plan.json"

    @property
    def links_path(self) -> Path:
        return Path(self.plan_folder) / "links"

    def alive(self) -> list[tuple[ProcessState, psutil.Process]]:
        """(entry, process) of each live process of the run, the keeper last."""
        found = (
            (state, state.process()) for state in (*self.processes, *self.others, self.keeper) if state is not None
        )
        return [(state, process) for state, process in found if process is not None]


def failing(state: RunState) -> tuple[str, ...]:
    """A sentence for each process that is started again and again, with the reason why it ended last."""
    since = time.time() - _FAILING_S
    return tuple(
        f"{one.name} was started again {one.restarts} times and ended each time: {one.reason} (log: {one.log})"
        for one in state.processes
        if one.restarts >= _FAILING_RESTARTS and (one.started > since or one.process() is None)
    )


@contextlib.contextmanager
def naming_failing(directory: Path) -> Iterator[None]:
    """Add to the error of a failed request why processes of the project's run are started again and again."""
    try:
        yield
    except RequestError as error:
        if type(error) is not RequestError or error.status == "INVALID_ARGUMENT":
            raise
        state = None
        with contextlib.suppress(OtherVersionError):  # of a run that was started meanwhile
            state = read_state(directory)
        if state is None or not (sentences := failing(state)):
            raise
        raise RequestError(error.status, "; ".join((error.reason, *sentences))) from error


def state_path(directory: Path) -> Path:
    """The state file of a project's run."""
    return directory / STATE_FOLDER / "run.json"


def launch_lock_path(directory: Path) -> Path:
    """The lock file that `up` and `apply` hold while they work."""
    return state_folder(directory) / "up.lock"


@contextlib.contextmanager
def launch_lock(directory: Path) -> Iterator[None]:
    """One `up` or `apply` at a time per project. AlreadyRunningError when another works."""
    with launch_lock_path(directory).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunningError(f"another `jellybean up {directory}` is starting right now") from error
        yield


def is_launch_locked(directory: Path) -> bool:
    """True while an `up` or `apply` works on the project."""
    try:
        with launch_lock_path(directory).open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def read_state(directory: Path) -> RunState | None:
    """The state of a project's run; None if there is no state file, or one of another project or boot.

    A run that the version before started is read too. OtherVersionError for one of any other version that is up.
    InputError for a state folder with links in it.
    """
    require_plain(directory / STATE_FOLDER)
    try:
        found: dict[str, Any] = json.loads(state_path(directory).read_text(encoding="utf-8"))
        version = found.pop("version")
        if version == _FOLDERLESS_VERSION:
            stated, boot = _folder_of(found["keeper"], directory), _boot()
        elif version == STATE_VERSION:
            stated, boot = found.pop("directory"), found.pop("boot")
        else:
            stated, boot = found.get("directory", str(directory)), found.get("boot", _boot())
        if not _is_of(directory, stated, boot):
            return None
        if version not in (_FOLDERLESS_VERSION, STATE_VERSION):
            _require_ended(directory, version, found)
            return None
        processes = tuple(_process(item) for item in found.pop("processes"))
        others = tuple(_process(item) for item in found.pop("others"))
        keeper = found.pop("keeper")
        keeper = keeper and _process(keeper)
        listed = (*processes, *others, *([keeper] if keeper else ()))
        if not all(entry.program and _is_of(directory, entry.program[1], boot) for entry in listed):
            return None
        return RunState(**found, processes=processes, others=others, keeper=keeper, version=version)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _require_ended(directory: Path, version: object, found: Mapping[str, Any]) -> None:
    """OtherVersionError for the state of another version unless all its processes have ended."""
    known = [*found.get("processes", ()), *found.get("others", ()), *filter(None, [found.get("keeper")])]
    alive = [item for item in known if _may_live(item)]
    if known and not alive:
        return
    numbers = ", ".join(str(item["pid"]) for item in alive if isinstance(item, dict) and "pid" in item)
    raise OtherVersionError(
        f"{directory} is up{f' (processes {numbers})' * bool(numbers)}, but another version of JellyBean started it, "
        f"whose state file has format {version} (this version reads {_FOLDERLESS_VERSION} and {STATE_VERSION}): use "
        f"that version's commands; its `jellybean down {directory}` stops it"
    )


def _may_live(item: object) -> bool:
    """False if the entry of a process, in whatever format, is that of a process that has ended."""
    match item:
        case {"pid": int(pid), "started": int() | float() as started}:
            return _process_of(pid, float(started)) is not None
    return True


def _folder_of(keeper: Mapping[str, Any] | None, directory: Path) -> str:
    """The project's folder, the last but one argument of its keeper; `directory` for a run without a keeper yet."""
    return str(directory) if keeper is None else str(keeper["command"][-2])


def _is_of(directory: Path, stated: str, boot: str) -> bool:
    """True if a state file in `directory` belongs to it: it states this folder, or one that was moved here.

    `stated`: the folder that it was written in. If that still exists, `directory` is a copy of it.
    """
    written = Path(stated)
    return boot == _boot() and (not written.exists() or written.samefile(directory))


def _boot() -> str:
    """Identifies the time since the machine was started; empty where the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _process(item: dict[str, Any]) -> ProcessState:
    return ProcessState(**{**item, "command": tuple(item["command"])})


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of the state file."""
    with (state_folder(directory) / "run.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_state(directory: Path, state: RunState) -> None:
    """Write the state file atomically."""
    belongs = {"version": STATE_VERSION, "directory": str(directory.resolve()), "boot": _boot()}
    write_file(state_path(directory), json.dumps({**dataclasses.asdict(state), **belongs}, indent=1))


def clear_state(directory: Path, state: RunState) -> None:
    """Remove the state file and the folder of a run whose processes have all ended."""
    remove_run_folder(directory, state, state.folder)
    state_path(directory).unlink(missing_ok=True)


def claim_run_folder(directory: Path, folder: Path) -> None:
    """Note in a run's new folder that it is this project's."""
    (folder / _PROJECT_FILE).write_text(str(directory.resolve()), encoding="utf-8")


def remove_run_folder(directory: Path, state: RunState, folder: str | Path) -> None:
    """Remove a run's folder, or one in it.

    No folder that was not made for a run of this project.
    """
    root, target = Path(state.folder), Path(folder)
    if target in (root, root / target.name) and _is_run_folder(directory, root):
        with contextlib.suppress(RecursionError):  # of folders in each other that no run has made: they stay
            shutil.rmtree(target, ignore_errors=True)


def _is_run_folder(directory: Path, root: Path) -> bool:
    """True for a private folder of this user that names the project."""
    try:
        status = root.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        stated = (root / _PROJECT_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return is_private and bool(stated) and _is_of(directory, stated, _boot())


def is_serving_joined(directory: Path) -> bool:
    """True if the project's run has its workers on other machines."""
    state = read_state(directory.resolve())
    return state is not None and bool(state.peers)


def mark_drained(directory: Path, gateway_pid: int) -> None:
    """Record that a gateway has drained and ends: the keeper stops the rest of its run.

    No effect if it is not the gateway of the project's run, which another one may have replaced.
    """
    with locked(directory):
        state = read_state(directory)
        if state is not None and (GATEWAY_NAME, gateway_pid) in [(each.name, each.pid) for each in state.processes]:
            write_state(directory, dataclasses.replace(state, drained=True))


def running_state(directory: Path) -> RunState:
    """The state of a project's run that is up. NotRunningError when nothing is."""
    state = read_state(directory)
    if state is None or not state.gateway_address or state.stopping or state.drained:
        raise NotRunningError(f"nothing is up for {directory}; start it with `jellybean up {directory}`")
    if not any(process.name == GATEWAY_NAME for process, _ in state.alive()):
        raise NotRunningError(f"the gateway of {directory} has died; `jellybean down {directory}` clears what is left")
    return state
