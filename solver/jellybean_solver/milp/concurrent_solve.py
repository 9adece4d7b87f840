"""A mixed-integer program that HiGHS solves in a thread of its own while other searches go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

import numpy as np

from jellybean_solver.milp.highs_program import Floats, Program, ProgramSolution


class ConcurrentSolve:
    """One run of a program on one thread. Polled for its bound and incumbents; `stop` ends it early.

    HiGHS holds no lock of the interpreter while it runs.
    """

    def __init__(self, program: Program, *, gap: float, time_limit_s: float | None, done: Callable[[], None]) -> None:
        """`gap`: relative. `done`: called in the thread when the run has ended."""
        self._program, self._done = program, done
        self._model = program.model(gap=gap, time_limit_s=time_limit_s)
        self._model.cbMipInterrupt.subscribe(self._look)
        self._model.cbMipImprovingSolution.subscribe(self._improve)
        self._thread = Thread(target=self._run, name="milp", daemon=True)
        self._lock = Lock()
        self._incumbents: list[Floats] = []
        self._bound, self._stopped = -math.inf, False
        self._answer: ProgramSolution | None = None
        self._failed: BaseException | None = None

    def start(self) -> None:
        """Begin to solve."""
        self._thread.start()

    @property
    def bound(self) -> float:
        """The lower bound proven so far."""
        return self._bound

    @property
    def answer(self) -> ProgramSolution | None:
        """How the run ended; None while it goes on. Raises what HiGHS failed with."""
        if self._failed is not None:
            raise self._failed
        return self._answer

    def incumbents(self) -> list[Floats]:
        """Points found since the last call, each better than those before."""
        with self._lock:
            found, self._incumbents = self._incumbents, []
        return found

    def stop(self) -> None:
        """End the run and wait for its thread: some nodes of the search, or one relaxation."""
        self._stopped = True
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self, timeout_s: float) -> None:
        """Until the run has ended, at most so long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._model.run()
            answer = self._program.answer(self._model)
            self._bound = max(self._bound, answer.bound)
            self._answer = answer
        except BaseException as error:  # noqa: BLE001  (raised again by who asks for the answer)
            self._failed = error
        self._done()

    def _look(self, event: Any) -> None:
        bound = float(event.data_out.mip_dual_bound)
        if math.isfinite(bound):
            self._bound = max(self._bound, bound)
        if self._stopped:
            event.interrupt()

    def _improve(self, event: Any) -> None:
        with self._lock:
            self._incumbents.append(np.array(event.data_out.mip_solution))
