"""A second process for simulations, once they have taken longer in this one than a process takes to start.

It gets a plan and a seed by a pipe and sends back the figures, the same as those made here. It ends with this process,
and when nothing was asked for a while: a command may go on to serve.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from jellybean.planning.deadline.missed_target import simulate_until_missed
from jellybean.planning.simulation import simulate_plan
from jellybean.termination import end_with_parent, interrupts_blocked
from jellybean_solver import Plan, SimulationResult, limited_work, work_limit

START_AFTER_S = 1.0  # of simulations in this process; a process takes a third of that to start
IDLE_S = 30.0  # after which it ends

Simulated = tuple[SimulationResult, bool]  # the result, and whether it is whole
Targets = Mapping[str, float] | None  # workflow -> p99 target in seconds, at which a simulation may end; None: never


def simulated(plan: Plan, seed: int, targets_s: Targets) -> Simulated:
    """One simulation of a plan, within the time limit of the work."""
    if targets_s is None:
        result = simulate_plan(plan, seed=seed)
        return result, result.complete
    return simulate_until_missed(plan, seed, targets_s)


class SecondProcess:
    """Simulates every other seed of a plan in a process of its own, where there is a processor for it.

    Threads that find it busy, and forked processes, simulate in their own process; so do all where none can be started.
    """

    def __init__(self, start_after_s: float = START_AFTER_S, idle_s: float = IDLE_S) -> None:
        """`start_after_s`: seconds of simulations in this process after which the other one is started (again).

        `idle_s`: seconds after which it ends if nothing is asked.
        """
        self._start_after_s, self._idle_s = start_after_s, idle_s
        self._left_s, self._owner = start_after_s, os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def at_once(self) -> int:
        """How many simulations are made at the same time."""
        return 2 if self._process is not None and self._owner == os.getpid() else 1

    def simulate(self, plan: Plan, seeds: Sequence[int], targets_s: Targets) -> list[Simulated]:
        """The simulations with these seeds, at most two, in their order."""
        if self.at_once < len(seeds) or not self._lock.acquire(blocking=False):
            return [self._here(plan, seed, targets_s) for seed in seeds]
        try:
            return self._with_both(plan, seeds, targets_s)
        finally:
            self._lock.release()

    def _here(self, plan: Plan, seed: int, targets_s: Targets) -> Simulated:
        started = time.perf_counter()
        found = simulated(plan, seed, targets_s)
        self._left_s -= time.perf_counter() - started
        return found

    def _with_both(self, plan: Plan, seeds: Sequence[int], targets_s: Targets) -> list[Simulated]:
        process, (mine, *theirs) = self._process, seeds
        if process is None and self._left_s <= 0.0:
            self._start()
        if process is None or process.stdin is None or process.stdout is None or not theirs:
            return [self._here(plan, seed, targets_s) for seed in seeds]
        try:
            _send(process.stdin, (plan, theirs[0], targets_s, _left_s()))
            found = self._here(plan, mine, targets_s)
            answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):  # it has ended, or was killed
            self.close()
            return [self._here(plan, seed, targets_s) for seed in seeds]
        except BaseException:  # its answer would be taken for that of another request
            self.close()
            raise
        if isinstance(answer, Exception):
            raise answer
        return [found, answer]

    def _start(self) -> None:
        self._left_s = math.inf
        if self._owner == os.getpid() and processors() > 1:
            command = [sys.executable, "-P", "-m", __name__, str(self._idle_s)]
            with suppress(OSError):  # without it all is simulated here
                with interrupts_blocked():
                    self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                atexit.register(self.close)

    def close(self) -> None:
        """End the other process, if there is one. It is started again after as many simulations as the first time."""
        process, self._process = self._process, None
        self._left_s = self._start_after_s
        atexit.unregister(self.close)
        if process is not None and self._owner == os.getpid():
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what was to be sent is lost with it
                        pipe.close()
            process.wait()


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _left_s() -> float | None:
    """Seconds left of the work that is in progress here, as the other process has no limit of its own."""
    return work_limit().left()


def _send(pipe: IO[bytes], value: object) -> None:
    pickle.dump(value, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def _serve(requests: IO[bytes], answers: IO[bytes], idle_s: float) -> None:
    """Simulate what is asked for until the other process ends, or asks nothing for `idle_s`.

    It asks once at a time, so that no buffer holds a question while this process waits for one.
    """
    while select.select([requests], [], [], idle_s)[0]:
        try:
            plan, seed, targets_s, left_s = pickle.load(requests)
        except EOFError:
            return
        try:
            with limited_work(left_s, time.monotonic):
                answer: Simulated | Exception = simulated(plan, seed, targets_s)
        except Exception as error:  # noqa: BLE001 - it is raised in the process that asked
            answer = error
        _send(answers, answer)


SIMULATIONS = SecondProcess()  # of all plans that this process asks about

if __name__ == "__main__":
    end_with_parent(sys.stdin.fileno())
    _serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
