"""Starts a run's processes on this machine by torch's launcher, and again when one dies.

A process that is killed, hangs or crashes is worth another attempt from the newest checkpoint; what a person has to
change first (a model that cannot be cut, a full disk) is not, and is told once, not by every process.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import re
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from jellybean.training.errors import CrashError, LostError, StillError, StoppedError, TrainingError

TOLD = "JELLYBEAN_TRAINING_TOLD"  # a folder: processes write there why they end
RESTARTS = 3
_PR_SET_PDEATHSIG = 1
_MOST = 64, 16  # processes: so many at least are started when asked for, and so many per core
_KINDS: dict[str, type[Exception]] = {"still": StillError, "lost": LostError, "crash": CrashError}
_STOPPED_S = 5  # how long a process that does not end by itself is waited for


def run_processes(arguments: Sequence[str], count: int, say: Callable[[str], None]) -> None:
    """`python ARGUMENTS` as `count` ranks. TrainingError with what the first of them said, or after RESTARTS."""
    cores = os.cpu_count() or 1
    if count > max(_MOST[0], _MOST[1] * cores):
        raise TrainingError(
            f"{count} processes (devices x replicas) are too many for the {cores} cores here: use several machines by "
            "torchrun, or --render"
        )
    _silence("torch.distributed.elastic")
    crash = ""
    for attempt in range(RESTARTS + 1):
        with tempfile.TemporaryDirectory(prefix="jellybean-train-") as folder:
            why = _attempt(arguments, count, Path(folder))
            before, crash = crash, _told(Path(folder), "crash")
        if why is None:
            return
        if crash and crash == before:
            raise TrainingError(f"{crash} (twice)")
        if attempt < RESTARTS:
            say(f"{why}; all start again from the newest checkpoint ({attempt + 1} of {RESTARTS})")
    raise TrainingError(f"{why}; given up after {RESTARTS} restarts, and the same command goes on from there")


def tell_launcher(error: BaseException, rank: int) -> bool:
    """Whether somebody waits for the reason: who started this process by `run_processes` tells it."""
    folder = os.environ.get(TOLD)
    if folder is None:
        return False
    kind = next((kind for kind, error_type in _KINDS.items() if isinstance(error, error_type)), "final")
    partial = Path(folder) / f".{kind}-{rank}"
    partial.write_text(str(error), encoding="utf-8")
    partial.replace(Path(folder) / f"{kind}-{rank}")
    return True


def end_with_launcher() -> None:
    """Where somebody else started this process: when that one is gone, even killed, so is this. On Linux."""
    if TOLD in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Nobody else on this machine trains in the folder meanwhile: two runs would write each other's checkpoints."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise TrainingError(f"another jellybean train is at work in {directory}: wait for it, or stop it") from error
    finally:
        os.close(handle)


def _attempt(arguments: Sequence[str], count: int, folder: Path) -> str | None:
    """Why it is worth another one; None when all is done."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        shutdown_timeout=_STOPPED_S,
        signals_to_handle="",  # they are handled here
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    got: list[int] = []
    try:
        with _environment({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), TOLD: str(folder)}), _ended(got):
            elastic_launch(config, sys.executable)(*arguments)
    except SignalException as stopped:
        raise StoppedError(got[0]) from stopped
    except ChildFailedError as failed:
        final = _told(folder, "final")
        if final:
            raise TrainingError(final) from failed
        killed = [
            f"rank {rank} was ended by {signal.Signals(-failure.exitcode).name}"
            for rank, failure in sorted(failed.failures.items())
            if failure.exitcode < 0
        ]
        rank, failure = failed.get_first_failure()
        return (
            _told(folder, "still")
            or ", ".join(killed)
            or _told(folder, "crash")
            or _told(folder, "lost")
            or f"rank {rank} ended with status {failure.exitcode}"
        )
    return None


def _told(folder: Path, kind: str) -> str:
    """Of the first rank that gave a reason."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := re.fullmatch(rf"{kind}-(\d+)", path.name))}
    return found[min(found)].read_text(encoding="utf-8") if found else ""


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """What processes inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _ended(got: list[int]) -> Iterator[None]:
    """A signal ends the launcher, once; its processes get SIGTERM, whichever it was, and so end without a word.

    By SIGINT they would unwind, and torch's threads tell of that. What nohup has ignored stays ignored.
    """
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in signals}

    def end(number: int, _: object) -> None:
        got.append(number)
        if len(got) == 1:
            raise SignalException(f"got signal {number}", sigval=signal.SIGTERM)

    for number in signals:
        if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _silence(name: str) -> None:
    """A library's loggers, each of which may have a level of its own: what they would say is said here."""
    for one in (name, *(other for other in logging.root.manager.loggerDict if other.startswith(f"{name}."))):
        logging.getLogger(one).setLevel(logging.CRITICAL)
