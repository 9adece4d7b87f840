"""What is up for a project: DIR/.jellybean/run.json, so that any process can find it, ask it and stop it.

A process is known by its id and start time: an id that was given to somebody else since is not ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jellybean.folders import STATE_FOLDER, state_folder
from jellybean.serving.errors import NotRunningError

STATE_VERSION = 2
GATEWAY_NAME = "gateway"
_SAME_START_S = 2.0  # psutil derives start times from the boot time, which is read with some play


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
    death: str = ""  # how the one before it ended

    def process(self) -> psutil.Process | None:
        """The living process, or None when it has ended."""
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.started) < _SAME_START_S
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


@dataclass(frozen=True, slots=True)
class RunState:
    """A run: its plan, its processes and its private folder, in which each plan has one (sockets, plan, links).

    `keeper` starts what died again; it is none of the plan's processes.
    """

    plan: str
    workflow: str
    folder: str
    plan_folder: str
    gateway_address: str = ""  # that this user's processes take; empty while it starts
    clients_address: str = ""  # for others: the TCP port, where there is one
    stopping: bool = False
    processes: tuple[ProcessState, ...] = ()
    others: tuple[ProcessState, ...] = ()  # of a plan that is to take over, or did from theirs
    keeper: ProcessState | None = None
    arriving: str = ""  # hash of a plan that is to take over: whether it has, the gateway knows
    arriving_folder: str = ""

    @property
    def plan_path(self) -> Path:
        return Path(self.plan_folder) / "plan.json"

    @property
    def links_path(self) -> Path:
        return Path(self.plan_folder) / "links"

    def alive(self) -> list[tuple[ProcessState, psutil.Process]]:
        """The processes that live, the keeper last."""
        found = (
            (state, state.process()) for state in (*self.processes, *self.others, self.keeper) if state is not None
        )
        return [(state, process) for state, process in found if process is not None]


def state_path(directory: Path) -> Path:
    """Where a project's run is written down."""
    return directory / STATE_FOLDER / "run.json"


def lock_path(directory: Path) -> Path:
    """What `up` and `apply` hold as long as they are at work."""
    return state_folder(directory) / "up.lock"


def read_state(directory: Path) -> RunState | None:
    """What was written down last; None when nothing was, or it is no state that this version reads."""
    try:
        found: dict[str, Any] = json.loads(state_path(directory).read_text(encoding="utf-8"))
        if found.pop("version") != STATE_VERSION:
            return None
        processes = tuple(_process(item) for item in found.pop("processes"))
        others = tuple(_process(item) for item in found.pop("others"))
        keeper = found.pop("keeper")
        return RunState(**found, processes=processes, others=others, keeper=keeper and _process(keeper))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _process(item: dict[str, Any]) -> ProcessState:
    return ProcessState(**{**item, "command": tuple(item["command"])})


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else changes what is written down of a run meanwhile."""
    with (state_folder(directory) / "run.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_state(directory: Path, state: RunState) -> None:
    """Whole or not at all."""
    path = state_path(directory)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"version": STATE_VERSION, **dataclasses.asdict(state)}, indent=1), encoding="utf-8")
    part.replace(path)


def clear_state(directory: Path, state: RunState) -> None:
    """Forget a run whose processes have all ended, and remove its folder."""
    shutil.rmtree(state.folder, ignore_errors=True)
    state_path(directory).unlink(missing_ok=True)


def running_state(directory: Path) -> RunState:
    """What is up for a project. NotRunningError when nothing is."""
    state = read_state(directory)
    if state is None or not state.gateway_address or state.stopping:
        raise NotRunningError(f"nothing is up for {directory}; start it with `jellybean up {directory}`")
    if not any(process.name == GATEWAY_NAME for process, _ in state.alive()):
        raise NotRunningError(f"the gateway of {directory} has died; `jellybean down {directory}` clears what is left")
    return state
