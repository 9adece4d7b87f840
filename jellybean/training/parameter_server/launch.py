"""Launches workers and parameter servers on this machine. A worker that dies is started again, while the others go on.

When a server dies, all start again from the newest checkpoint, as in other runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.distributed.elastic.multiprocessing import SignalException

from jellybean.training.errors import SignalledError, TrainingError
from jellybean.training.processes.environment import STORE, environment_with
from jellybean.training.processes.launch import (
    FINAL,
    INTERRUPTED_S,
    REASONS_FOLDER,
    RESTARTS,
    SHUTDOWN_S,
    check_count,
    ending,
    first_cause,
    run_attempts,
    signals_end_launcher,
    take_reason,
)
from jellybean.training.processes.threads import THREADS

_POLL_S = 0.1
_SERVER_ENDS_S = 2.0  # between the end of a server's connections and that of its process


def run_server_processes(
    arguments: Sequence[str],
    workers: int,
    servers: int,
    say: Callable[[str], None],
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Run `python ARGUMENTS` as workers and servers. TrainingError with a reason, or after RESTARTS restarts.

    `progress`: how far the run is by its checkpoints.
    """
    check_count(workers + servers)
    run_attempts(lambda folder: _attempt(_Processes(arguments, workers, servers, folder, say)), say, progress)


def _attempt(processes: _Processes) -> str | None:
    """Run all processes once. None on success; the reason if a restart may help; TrainingError if it cannot."""
    folder, signals_received = processes.folder, list[int]()
    variables = {
        THREADS: os.environ.get(THREADS, "1"),
        REASONS_FOLDER: str(folder),
        STORE: str(folder / "store"),
        "WORLD_SIZE": str(processes.workers + processes.servers),
    }
    try:
        with environment_with(variables), signals_end_launcher(signals_received), processes:
            return processes.watch()
    except SignalException as stopped:
        raise SignalledError(signals_received[0]) from stopped


@dataclass
class _Processes:
    """The processes of one attempt, by rank: workers, then servers. Its context starts and ends them.

    `restarts`, `crashes`: number of restarts and last reason by worker.
    """

    arguments: Sequence[str]
    workers: int
    servers: int
    folder: Path
    say: Callable[[str], None]
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: Counter[int] = field(default_factory=Counter)
    crashes: dict[int, str] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)

    def __enter__(self) -> Self:
        try:
            for rank in range(self.workers + self.servers):
                self._start(rank)
        except BaseException:  # then `__exit__` is not called
            self._end(INTERRUPTED_S)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(INTERRUPTED_S if isinstance(error, SignalException) else SHUTDOWN_S)

    def _end(self, grace_s: float) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.running.values():
                if process.poll() is None:
                    process.send_signal(number)
                    process.send_signal(signal.SIGCONT)  # one that is stopped takes no other signal
            self._wait(grace_s)

    def watch(self) -> str | None:
        """Wait for the end of the run. None on success; the reason if all must start again."""
        while True:
            for rank in range(self.workers, self.workers + self.servers):
                status = self.running[rank].poll()
                if status == 0 and rank == self.workers:
                    self._wait(SHUTDOWN_S)
                    return None
                if status is not None and status != 0:
                    return self._why_servers_ended()
            for rank in range(self.workers):
                process = self.running.get(rank)
                if process is not None and (status := process.poll()) is not None:
                    del self.running[rank]
                    if status != 0:
                        self._replace(rank, status)
            if len(self.given_up) == self.workers:
                return "no worker is left"
            time.sleep(_POLL_S)

    def _start(self, rank: int) -> None:
        serves = rank >= self.workers
        places = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - self.workers if serves else rank),
            "LOCAL_WORLD_SIZE": str(self.servers if serves else self.workers),
        }
        self.running[rank] = subprocess.Popen(
            [sys.executable, *self.arguments], env={**os.environ, **places}, start_new_session=True
        )

    def _replace(self, rank: int, status: int) -> None:
        """Start a worker again that died. TrainingError if that would not help."""
        kind, why = take_reason(self.folder, rank) or ("killed", ending(f"worker {rank}", status))
        if kind == "lost" and self._server_ends():
            return
        if kind in FINAL:
            raise FINAL[kind](why)
        if kind == "crash" and self.crashes.get(rank) == why:
            raise TrainingError(f"{why} (twice)")
        self.crashes[rank] = why
        if self.restarts[rank] == RESTARTS:
            self.given_up.add(rank)
            self.say(f"{why}; worker {rank} is given up after {RESTARTS} restarts, and the others go on")
            return
        self.restarts[rank] += 1
        self.say(f"{why}; worker {rank} starts again ({self.restarts[rank]} of {RESTARTS}), and the others go on")
        self._start(rank)

    def _server_ends(self) -> bool:
        """Whether a server ends about now, so that its workers end, too."""
        until_s = time.monotonic() + _SERVER_ENDS_S
        servers = [self.running[rank] for rank in range(self.workers, self.workers + self.servers)]
        while time.monotonic() < until_s and all(process.poll() is None for process in servers):
            time.sleep(_POLL_S)
        return any(process.poll() is not None for process in servers)

    def _why_servers_ended(self) -> str:
        """Why a server ended, the first one if several did. TrainingError if a restart cannot help."""
        statuses = [self.running[self.workers + server].poll() for server in range(self.servers)]
        ended = {
            server: ending(f"parameter server {server}", status) for server, status in enumerate(statuses) if status
        }
        killed = [text for server, text in ended.items() if (statuses[server] or 0) < 0]
        return first_cause(self.folder, next(iter(killed), ""), next(iter(ended.values())))

    def _wait(self, timeout_s: float) -> None:
        """Wait until all have ended, or for the timeout."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and any(process.poll() is None for process in self.running.values()):
            time.sleep(_POLL_S)
