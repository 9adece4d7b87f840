"""The state file of a project's run, DIR/.jellybean/run.json.

Any process can find, call and stop the run by it. The run's keeper writes it again where it is removed
or damaged, and `run_of` reads it for commands, which say so where that has not happened.

The file names the boot of the machine and the project's folder that it belongs to: a copy of a project
that is up is not up. Whoever made the project's folder may have written the file. So it chooses no
process to be stopped (see `run_processes`), and no folder to be removed: a run's folder is private, and
names the project.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jellybean.folders import STATE_FOLDER, require_plain, shell_text, write_file
from jellybean.serving.errors import (
    NoAccessError,
    NotRunningError,
    OtherVersionError,
    RequestError,
    ServingError,
)
from jellybean.serving.field_types import has_types
from jellybean.serving.run_folder import TEMPORARY_PREFIX, is_held, is_named_for, project_of
from jellybean.serving.run_locks import is_launch_locked, locked
from jellybean.serving.run_processes import (
    GATEWAY_NAME,
    KEEPER_NAME,
    LiveProcess,
    Program,
    age_s,
    is_suspended,
    live_process,
    option_of,
    processes_of_project,
    program_of,
    user_name,
)
from jellybean_agent import printable

if TYPE_CHECKING:
    import psutil

STATE_VERSION = 4
OWNER_SOCKET, ADDRESS_FILE = "g.sock", "gateway.address"  # of the gateway, in the run's folder
_DATED_VERSION = 3  # earlier format, which is read too: with dates instead of ticks as start times
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of Linux
_FAILING_RESTARTS, _FAILING_S = 2, 30.0  # a process keeps failing: restarts, and seconds since the last one
_REPAIR_S, _REPAIR_POLL_S = 5.0, 0.05  # longest wait for the keeper, or a server, to put a file in its place again


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of a run."""

    name: str  # a worker of the plan, or "gateway"
    pid: int
    started: int  # `start_ticks`; 0: unknown
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
    def program(self) -> Program | None:
        """What runs in the process, and of which project.

        None for the command line of anything else.
        """
        return program_of(self.command)

    def process(self) -> psutil.Process | None:
        """The process; None when it has ended, or another program than the entry's has its id."""
        return live_process(self.pid, self.program)


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
    """A sentence for each process that is started again and again, with the reason why it ended last.

    And one if the keeper, which starts them again, has ended itself, and for each process that is suspended.
    """
    sentences = [
        f"the project was moved here from {folder}, and no process that ends is started again: `jellybean down` and "
        "`jellybean up` serve it from here"
        for folder in _former_folders(state)
    ]
    sentences += [
        f"{one.name} was started again {one.restarts} times and ended each time: {one.reason} (log: {one.log})"
        for one in state.processes
        if one.restarts >= _FAILING_RESTARTS and (age_s(one.started) < _FAILING_S or one.process() is None)
    ]
    if state.keeper is not None and state.keeper.process() is None:
        dead = "".join(f"; {one.name} has ended" for one in state.processes if one.process() is None)
        again = "starts a new one" if state.version == STATE_VERSION else "and `jellybean up` start a new run"
        which = "apply" if state.version == STATE_VERSION else "down"
        sentences.append(
            f"the run's keeper has ended, and no process that ends is started again{dead}: "
            f"`jellybean {which}` {again} (log: {state.keeper.log})"
        )
    sentences += [
        f"{entry.name} is suspended (process {process.pid}): `kill -CONT {process.pid}` lets it go on"
        for entry, process in state.alive()
        if is_suspended(process)
    ]
    return tuple(sentences)


def _former_folders(state: RunState) -> list[str]:
    """The project's folder when the run began, if it is gone: its processes start nothing from where it is now."""
    projects = {each.program.project for each in state.processes if each.program is not None}
    return sorted(project for project in projects if not Path(project).exists())


@contextlib.contextmanager
def naming_failing(directory: Path) -> Iterator[None]:
    """Add to the error of a failed request why processes of the project's run are started again and again."""
    try:
        yield
    except RequestError as error:
        if type(error) is not RequestError or error.status == "INVALID_ARGUMENT":
            raise
        state = None
        with contextlib.suppress(OtherVersionError, OSError):  # of a run that was started meanwhile
            state = read_state(directory)
        if state is None or not (sentences := failing(state)):
            raise
        raise RequestError(error.status, "; ".join((error.reason, *sentences))) from error


def state_path(directory: Path) -> Path:
    """The state file of a project's run."""
    return directory / STATE_FOLDER / "run.json"


def read_state(directory: Path) -> RunState | None:
    """The state of a project's run; None if there is no state file, or one of another project or boot.

    A run that the version before started is read too. OtherVersionError for one of any other version that is up.
    InputError for a state folder with links in it, PermissionError for one that this user may not read.
    """
    require_plain(directory / STATE_FOLDER)
    try:
        found: dict[str, Any] = json.loads(state_path(directory).read_text(encoding="utf-8"))
        version = found.pop("version")
        is_known = version in (_DATED_VERSION, STATE_VERSION)
        found = found if is_known else {"directory": str(directory), "boot": _boot(), **found}
        stated, boot = found.pop("directory"), found.pop("boot")
        if not _is_of(directory, stated, boot):
            return None
        if not is_known:
            _require_ended(directory, version, found)
            return None
        process_of = _process if version == STATE_VERSION else _dated_process
        processes = tuple(process_of(item) for item in found.pop("processes"))
        others = tuple(process_of(item) for item in found.pop("others"))
        keeper = process_of(item) if (item := found.pop("keeper")) else None
        listed = (*processes, *others, *([keeper] if keeper else ()))
        if not all(entry.program and _is_of(directory, entry.program.project, boot) for entry in listed):
            return None
        state = RunState(**found, processes=processes, others=others, keeper=keeper, version=version)
        return state if all(map(has_types, (state, *listed))) else None
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _require_ended(directory: Path, version: object, found: Mapping[str, Any]) -> None:
    """OtherVersionError for the state of another version unless all its processes have ended, and for a foreign file.

    Nothing of a file of an unknown format is used: a file without processes says nothing about a run.
    """
    known = [item for name in ("processes", "others", "keeper") for item in _entries(found.get(name))]
    if not known or not all(isinstance(item, dict) and type(item.get("pid")) is int for item in known):
        raise OtherVersionError(
            f"{state_path(directory)} is no state file of JellyBean: it has format {printable(str(version)[:40])}, and "
            f"no processes of a run (this version reads {_DATED_VERSION} and {STATE_VERSION}). Nothing of it is used: "
            "move it away, then run the command again"
        )
    alive = [item for item in known if _may_live(item)]
    if known and not alive:
        return
    numbers = ", ".join(str(item["pid"]) for item in alive if isinstance(item, dict) and "pid" in item)
    raise OtherVersionError(
        f"{directory} is up{f' (processes {numbers})' * bool(numbers)}, but another version of JellyBean started it, "
        f"whose state file has format {version} (this version reads {_DATED_VERSION} and {STATE_VERSION}): use "
        f"that version's commands; its `jellybean down {shell_text(directory)}` stops it"
    )


def _entries(items: object) -> list[Any]:
    """The entries of a list; what else stands there is one."""
    return items if isinstance(items, list) else [] if items is None else [items]


def _may_live(item: object) -> bool:
    """False if the entry of a process, in whatever format, is that of a process that has ended."""
    match item:
        case {"pid": int(pid), "command": [*command]} if all(isinstance(word, str) for word in command):
            return live_process(pid, program_of(command)) is not None
    return True


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


def _dated_process(item: dict[str, Any]) -> ProcessState:
    return _process({**item, "started": 0})


def write_state(directory: Path, state: RunState) -> None:
    """Write the state file atomically."""
    belongs = {"version": STATE_VERSION, "directory": str(directory.resolve()), "boot": _boot()}
    write_file(state_path(directory), json.dumps({**dataclasses.asdict(state), **belongs}, indent=1))


def clear_state(directory: Path, state: RunState) -> None:
    """Remove the state file and the folder of a run whose processes have all ended."""
    remove_run_folder(directory, state, state.folder)
    with locked(directory):
        if (current := read_state(directory)) is None or current.folder == state.folder:  # else of a later run
            state_path(directory).unlink(missing_ok=True)


def remove_run_folder(directory: Path, state: RunState, folder: str | Path) -> None:
    """Remove a run's folder, or one in it.

    No folder that was not made for a run of this project.
    """
    root, target = Path(state.folder), Path(folder)
    if target in (root, root / target.name) and _is_run_folder(directory, root):
        with contextlib.suppress(RecursionError):  # of folders in each other that no run has made: they stay
            shutil.rmtree(target, ignore_errors=True)


def _is_run_folder(directory: Path, root: Path) -> bool:
    """True for a private folder of this user that names the project, and is named as runs' folders are.

    A file that names a project may be in any folder, and a state file may name any folder. The name of a run's folder
    says which project it is for, but for those that an earlier version made.
    """
    stated = project_of(root)
    is_named = bool(stated) and (is_named_for(root, Path(stated)) or root.name.startswith(TEMPORARY_PREFIX))
    return is_named and _is_of(directory, stated, _boot())


def is_serving_joined(directory: Path) -> bool:
    """True if the project's run has its workers on other machines."""
    state = run_of(directory.resolve())
    return state is not None and bool(state.peers)


def mark_drained(directory: Path, gateway_pid: int) -> None:
    """Record that a gateway has drained and ends: the keeper stops the rest of its run.

    No effect if it is not the gateway of the project's run, which another one may have replaced.
    """
    with locked(directory):
        state = read_state(directory)
        if state is not None and (GATEWAY_NAME, gateway_pid) in [(each.name, each.pid) for each in state.processes]:
            write_state(directory, dataclasses.replace(state, drained=True))


def run_of(directory: Path) -> RunState | None:
    """The run of a project, for a command; None if there is none.

    A removed state file is waited for if the run's keeper lives, which writes it again. Without a keeper, and of a
    project that was removed, the state is what the command lines of the run's processes say: enough to call and to stop
    it (`version` 0).
    ServingError if this user may not see whether a run is up.
    """
    until_s = time.monotonic() + _REPAIR_S
    while True:
        try:
            state = read_state(directory)
        except PermissionError as error:
            raise _no_access(directory, error) from error
        if state is not None:
            return state
        alive = tuple(processes_of_project(directory))
        if not alive:
            return None
        is_repaired = directory.is_dir() and (
            any(entry.program.name == KEEPER_NAME for entry in alive) or is_launch_locked(directory)
        )
        if not is_repaired or time.monotonic() > until_s:
            return _state_of(directory, alive)
        time.sleep(_REPAIR_POLL_S)


def _state_of(directory: Path, alive: Sequence[LiveProcess]) -> RunState:
    """The state of a run by its live processes alone. Those of a run before, if any, are among `others`."""
    newest = max(alive, key=lambda entry: (entry.program.name == GATEWAY_NAME, entry.started))
    folder = newest.program.run_folder
    address = f"unix:{folder}/{OWNER_SOCKET}"
    keeper: ProcessState | None = None
    processes: list[ProcessState] = []
    others: list[ProcessState] = []
    for live in alive:
        entry = _entry(directory, live)
        if live.program.run_folder != folder or entry.name in [each.name for each in processes]:
            others.append(entry)
        elif entry.name == KEEPER_NAME:
            keeper = entry
        else:
            processes.append(entry)
    plan_folder = str(Path(option_of(newest.command, "--plan")).parent)
    return RunState("", "", folder, plan_folder, address, "", False, tuple(processes), tuple(others), keeper, version=0)


def _entry(directory: Path, live: LiveProcess) -> ProcessState:
    name, log = live.program.name, directory / STATE_FOLDER / "logs" / f"{live.program.name}.log"
    listen = f"unix:{live.program.run_folder}/{OWNER_SOCKET}"
    if name != GATEWAY_NAME:
        listen = option_of(live.command, "--listen")
    return ProcessState(name, live.pid, live.started, listen, str(log), tuple(live.command))


def _no_access(directory: Path, error: PermissionError) -> ServingError:
    path = Path(error.filename or state_path(directory))
    whose = ""
    with contextlib.suppress(OSError):
        whose = f", which belongs to {user_name(path.stat().st_uid)}"
    me = user_name(os.geteuid())
    return NoAccessError(
        f"{path}: permission denied: {me} may not read the state of {directory}{whose}: "
        "run this command as the user that started it, or as root"
    )


def running_state(directory: Path) -> RunState:
    """The state of a project's run that is up. NotRunningError when nothing is."""
    state = run_of(directory)
    alive = [] if state is None else [process.name for process, _ in state.alive()]
    if state is None or (not alive and not is_held(Path(state.folder))):
        raise NotRunningError(f"nothing is up for {directory}; start it with `jellybean up {shell_text(directory)}`")
    require_visible(directory, state)
    if state.stopping or state.drained:
        still, ends = f"({', '.join(alive)} still there)", f"`jellybean down {shell_text(directory)}` ends it"
        raise NotRunningError(f"{directory} is being stopped {still}: {ends}")
    if not state.gateway_address:
        raise NotRunningError(f"{directory} is starting: try again when `jellybean up` says that it serves")
    if GATEWAY_NAME not in alive:
        then = f"`jellybean down {shell_text(directory)}` clears what is left"
        if KEEPER_NAME in alive:
            then = f"the run's keeper starts it again: try again, or see {directory / STATE_FOLDER / 'logs'}"
        raise NotRunningError(f"the gateway of {directory} has died; {then}")
    await_socket(next(process for process in state.processes if process.name == GATEWAY_NAME))
    return state


def require_visible(directory: Path, state: RunState) -> None:
    """NotRunningError for a run whose processes live, but are not those that this process sees."""
    if not state.alive() and is_held(Path(state.folder)):
        raise NotRunningError(
            f"{directory} is up, but its processes cannot be seen from here: it was started in another container "
            f"(PID namespace), whose commands call it and stop it"
        )


def require_mine(directory: Path, state: RunState) -> None:
    """NoAccessError for a run of another user, whose processes this one may not stop."""
    with contextlib.suppress(OSError):
        owners = {Path(f"/proc/{process.pid}").stat().st_uid for _, process in state.alive()}
        if os.geteuid() and owners - {os.geteuid()}:
            names = ", ".join(user_name(number) for number in sorted(owners))
            raise NoAccessError(
                f"{directory} is up, by {names}, and {user_name(os.geteuid())} is not allowed to stop it: "
                "run this command as that user, or as root"
            )


def await_socket(process: ProcessState) -> None:
    """Wait for the socket of a live process, which makes it again where it was removed."""
    until_s = time.monotonic() + _REPAIR_S
    path = Path(process.address.removeprefix("unix:"))
    is_socket = process.address.startswith("unix:/")
    while is_socket and not path.exists() and process.process() is not None and time.monotonic() < until_s:
        time.sleep(_REPAIR_POLL_S)


def with_unlisted(directory: Path, state: RunState) -> RunState:
    """The state with the project's live processes that it does not list: the keeper could not write it then."""
    listed = {process.pid for _, process in state.alive()}
    unlisted = tuple(_entry(directory, live) for live in processes_of_project(directory) if live.pid not in listed)
    return dataclasses.replace(state, others=(*state.others, *unlisted))
