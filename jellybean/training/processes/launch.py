"""Launches a run's processes on this machine, and restarts them when one dies.

They meet in a file of a private folder. torchrun's store would be a port on all interfaces, without
authentication. torchrun also looks up the machine's name, which takes long where nothing resolves it.

After a process was killed, hung or crashed, all restart from the newest checkpoint. An error that a person must fix
first (a model that cannot be cut, a full disk) ends the run and is reported once, not by every process.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, SignalException, start_processes
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from jellybean.errors import JellyBeanError
from jellybean.training.errors import (
    RankCrashError,
    RankLostError,
    SignalledError,
    StalledError,
    TrainingError,
    UntrainableError,
)
from jellybean.training.processes.environment import STORE, end_with_parent, environment_with
from jellybean.training.processes.threads import THREADS

REASONS_FOLDER = "JELLYBEAN_TRAINING_TOLD"  # environment variable: folder where processes write why they end
RESTARTS = 3
_MAX_PROCESSES = 64, 16  # at most 64 processes, or 16 per core if that is more
_ERRORS: dict[str, type[Exception]] = {"still": StalledError, "crash": RankCrashError, "lost": RankLostError}
FINAL: dict[str, type[JellyBeanError]] = {"input": UntrainableError, "final": TrainingError}  # no restart can help
_KINDS = (*FINAL, *_ERRORS)  # of reasons
_KILLED = "was killed by SIGKILL"  # in a reason: by the kernel for its memory, or by a person; it need not come back
_OF_ABORTED = "ignore:resource_tracker:UserWarning"  # of the semaphores of a rank's data workers, where it is aborted
_POLL_S = 0.2  # between looks at the processes
SHUTDOWN_S = 5  # grace period of processes that must end
INTERRUPTED_S = 0.4  # the same after a signal to the launcher, which has a second to end in all


def run_processes(
    arguments: Sequence[str], count: int, say: Callable[[str], None], progress: Callable[[], object] = lambda: None
) -> None:
    """Run `python ARGUMENTS` as `count` ranks. TrainingError with a rank's reason, or after RESTARTS restarts.

    `progress`: how far the run is by its checkpoints.
    """
    check_count(count)
    _silence("torch.distributed.elastic")
    run_attempts(lambda folder: _attempt(arguments, count, folder), say, progress)


def check_count(count: int) -> None:
    """TrainingError if these are too many processes for one machine."""
    cores = os.cpu_count() or 1
    if count > max(_MAX_PROCESSES[0], _MAX_PROCESSES[1] * cores):
        raise TrainingError(
            f"{count} processes (devices x replicas) are too many for the {cores} cores here: use several machines by "
            "torchrun, or --render"
        )


def run_attempts(
    attempt_in: Callable[[Path], str | None], say: Callable[[str], None], progress: Callable[[], object] = lambda: None
) -> None:
    """Run all processes, again from the newest checkpoint if that may help. TrainingError after RESTARTS restarts.

    `attempt_in(folder)`: runs them once; returns None on success, and otherwise the reason. The same exception twice
    is not tried again, nor is the same reason without a checkpoint in between, unless something kills processes.
    """
    crash = why = ""
    reached: object = None
    for attempt in range(RESTARTS + 1):
        with tempfile.TemporaryDirectory(prefix="jellybean-train-") as folder:
            before, crash_before, reached_before = why, crash, reached
            why = attempt_in(Path(folder)) or ""
            crash, reached = reported_reason(Path(folder), "crash"), progress()
        if not why:
            return
        if crash and crash == crash_before:
            raise TrainingError(f"{crash} (twice)")
        if why == before and reached == reached_before and _KILLED not in why:
            raise TrainingError(f"{why} (twice)")
        if attempt < RESTARTS:
            say(f"{why}; restarting all ranks from the newest checkpoint ({attempt + 1} of {RESTARTS})")
    raise TrainingError(
        f"{why}; given up after {RESTARTS} restarts; the same command resumes from the newest checkpoint"
    )


def report_to_launcher(error: BaseException, rank: int) -> bool:
    """Report why this process ends to the launcher, if `run_processes` started it. Returns whether it did."""
    folder = os.environ.get(REASONS_FOLDER)
    if folder is None:
        return False
    known: dict[str, type[Exception]] = {**_ERRORS, **FINAL}
    kind = next((kind for kind, error_type in known.items() if isinstance(error, error_type)), "final")
    partial = Path(folder) / f".{kind}-{rank}"
    partial.write_text(str(error), encoding="utf-8")
    partial.replace(Path(folder) / f"{kind}-{rank}")
    return True


def die_with_launcher() -> None:
    """End this process when its launcher dies, even if killed (Linux only), and without a word when it is told to end.

    A launcher ends all processes when one has failed: that one has the reason, and the others have none to print.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if REASONS_FOLDER in os.environ:
        end_with_parent()


def _attempt(arguments: Sequence[str], count: int, folder: Path) -> str | None:
    """Run all processes once. None on success; the reason if a restart may help; TrainingError if it cannot."""
    signals_received: list[int] = []
    for_all = {
        THREADS: os.environ.get(THREADS, "1"),
        REASONS_FOLDER: str(folder),
        STORE: str(folder / "store"),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "",  # `signals_end_launcher` handles them
        "PYTHONWARNINGS": ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), _OF_ABORTED))),
    }
    with environment_with(for_all), signals_end_launcher(signals_received):
        processes = None
        try:
            processes = start_processes(
                name="train",
                entrypoint=sys.executable,
                args=dict.fromkeys(range(count), tuple(arguments)),
                envs={rank: _places(rank, count) for rank in range(count)},
                logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
            )
            while (result := processes.wait(0)) is None:
                time.sleep(_POLL_S)
                if any(map(_has_failed, processes.pids().values())):
                    _end_all(processes)
        except SignalException as stopped:
            if processes is not None:
                processes.close(stopped.sigval, INTERRUPTED_S)
            raise SignalledError(signals_received[0]) from stopped
    return _reason(folder, result.failures) if result.is_failed() else None


def _has_failed(pid: int) -> bool:
    """Whether a process has ended but with status 0; it is not waited for."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it was waited for
        return False
    return ended is not None and ended.si_status != 0


def _end_all(processes: PContext) -> None:
    """End all processes within SHUTDOWN_S, also those that are stopped, which take no signal before they go on."""
    for pid in processes.pids().values():
        for number in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    processes.close(signal.SIGTERM, SHUTDOWN_S)


def _places(rank: int, count: int) -> dict[str, str]:
    """The environment of a rank, as torchrun gives it on one machine."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _reason(folder: Path, failures: Mapping[int, ProcessFailure]) -> str:
    """Why processes failed. When one ends, the launcher ends the others with SIGTERM, so that this is no cause."""
    statuses = {rank: failure.exitcode for rank, failure in sorted(failures.items())}
    endings = {rank: ending(f"rank {rank}", status) for rank, status in statuses.items()}
    reported = {int(path.name.rpartition("-")[2]) for path in folder.glob("*-*") if path.name[-1].isdecimal()}
    causes = [
        endings[rank]
        for rank, status in statuses.items()
        if status != -signal.SIGTERM and (status < 0 or rank not in reported)
    ]
    return first_cause(folder, ", ".join(causes), ", ".join(endings.values()))


def first_cause(folder: Path, killed: str, ended: str) -> str:
    """Why processes ended: what caused it, before what followed from it. TrainingError if a restart cannot help.

    `killed`: those that something but the launcher killed; empty if none was. `ended`: how others ended.
    """
    for kind, error_type in FINAL.items():
        if final := reported_reason(folder, kind):
            raise error_type(final)
    reported = {kind: reported_reason(folder, kind) for kind in _ERRORS}
    return reported["still"] or killed or reported["crash"] or reported["lost"] or ended


def ending(name: str, status: int) -> str:
    """How a process ended, by its exit status as subprocess has it."""
    return (
        f"{name} was killed by {signal.Signals(-status).name}" if status < 0 else f"{name} ended with status {status}"
    )


def take_reason(folder: Path, rank: int) -> tuple[str, str] | None:
    """(kind, text) of the reason that a rank reported, which is deleted; None: it reported none."""
    for kind in _KINDS:
        path = folder / f"{kind}-{rank}"
        if path.exists():
            text = path.read_text(encoding="utf-8")
            path.unlink()
            return kind, text
    return None


def reported_reason(folder: Path, kind: str) -> str:
    """The reason of the lowest rank that reported one of this kind; empty if none did."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := re.fullmatch(rf"{kind}-(\d+)", path.name))}
    return found[min(found)].read_text(encoding="utf-8") if found else ""


@contextmanager
def signals_end_launcher(signals_received: list[int]) -> Iterator[None]:
    """Context in which the first signal ends the launcher, which sends its processes SIGTERM, whatever the signal.

    After SIGINT they would unwind, and torch's threads would print errors. A SIGHUP that nohup ignores stays ignored.
    """
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in signals}

    def end(number: int, _: object) -> None:
        signals_received.append(number)
        if len(signals_received) == 1:
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
    """Silence a library's loggers and their children; this module reports in their place."""
    for one in (name, *(other for other in logging.root.manager.loggerDict if other.startswith(f"{name}."))):
        logging.getLogger(one).setLevel(logging.CRITICAL)
