"""How many threads torch computes with in each process of a run. Without torch, which reads it when it is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from jellybean.training.processes.environment import environment_with

THREADS = "OMP_NUM_THREADS"
CORES = "JELLYBEAN_TRAINING_CORES"  # environment variable: cores that are free for a run that chose its threads
_SAMPLE_S = 0.3  # for which the use of the cores is measured before a run


@dataclass(frozen=True)
class ThreadChoice:
    """Threads of each of the `processes`. `busy`: cores that other programs use, of `cores`."""

    processes: int
    cores: int
    busy: float

    @property
    def threads(self) -> int:
        """The cores that are free, divided among the processes; at least 1.

        A thread without a core of its own delays the others, which wait for it by spinning after every operation: on
        two cores with a load of 6 to 15, 8 updates of a small BERT took 0.6 to 1.1 s with one thread and 9 to 28 s with
        two; on idle cores two threads took 0.55 s.
        """
        return max(1, self.free // self.processes)

    @property
    def free(self) -> int:
        """Cores that no other program uses; at least 1."""
        return max(1, round(self.cores - self.busy))

    @property
    def note(self) -> str:
        """Why there are fewer threads than on an idle machine; empty if there are not."""
        if self.threads == ThreadChoice(self.processes, self.cores, 0.0).threads:
            return ""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        each = " in each process" if self.processes > 1 else ""
        return (
            f"other programs use {self.busy:.1f} of {self.cores} cores: torch computes with {threads}{each}; for "
            f"another number set {THREADS}"
        )


@contextmanager
def chosen_threads(processes: int, say: Callable[[str], None]) -> Iterator[None]:
    """Context for a run of so many processes on this machine; its end restores the environment.

    OMP_NUM_THREADS is set for this process, which must not have imported torch, and for those that it starts. A number
    that is already there stays.
    """
    if os.environ.get(THREADS):
        yield
        return
    choice = _choose(processes, psutil.cpu_percent(_SAMPLE_S, percpu=True))
    if choice.note:
        say(choice.note)
    with environment_with({THREADS: str(choice.threads), CORES: str(choice.free)}):
        yield


def threads_of(processes: int) -> int | None:
    """Threads of each process where so many are used of those that were started; None to leave them as they are.

    They are left where the user or torchrun has set them.
    """
    cores = os.environ.get(CORES)
    return max(1, int(cores) // processes) if cores else None


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choose(processes: int, use: Sequence[float]) -> ThreadChoice:
    """`use`: percent of each core of the machine. Only the cores that this process may run on count (its affinity)."""
    allowed = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(len(use)))
    busy = sum(percent for core, percent in enumerate(use) if core in allowed) / 100
    return ThreadChoice(processes, len(allowed), busy)
