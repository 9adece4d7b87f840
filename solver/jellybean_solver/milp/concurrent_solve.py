"""A mixed-integer program that HiGHS solves in a thread of its own while other searches go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

import highspy
import numpy as np

from jellybean_solver.milp.highs_program import Floats, Program, ProgramSolution, SolveLimits, above, run
from jellybean_solver.milp.interruptible_run import PATIENCE_S

CALLS = 16  # polls between two updates of the bound: 1 costs HiGHS four fifths of its speed, 16 a tenth
INTERRUPT = highspy.cb.HighsCallbackType.kCallbackMipInterrupt


class ConcurrentSolve:
    """One run of a program on one thread. Polled for its bound and incumbents; `stop` ends it early.

    HiGHS runs without the interpreter lock (GIL), but each callback must acquire it, which takes milliseconds while
    another thread runs Python. So the callback that reports the bound is enabled for one call in every `CALLS` polls.
    """

    def __init__(self, program: Program, limits: SolveLimits, done: Callable[[], None]) -> None:
        """`done`: called in the solver's thread when the run has ended."""
        self._program, self._cutoff = program, limits.cutoff
        self._model = program.model(limits)
        self._model.cbMipInterrupt.subscribe(self._look)
        self._model.stopCallback(INTERRUPT)
        self._model.cbMipImprovingSolution.subscribe(self._improve)
        self._lock = Lock()
        self._incumbents: list[Floats] = []
        self._bound, self._stopped, self._polls = -math.inf, False, 0
        thread = ThreadPoolExecutor(1, "milp")
        self._answer: Future[ProgramSolution] = thread.submit(self._run)
        self._answer.add_done_callback(lambda _: done())
        thread.shutdown(wait=False)

    @property
    def bound(self) -> float:
        """The last lower bound reported by HiGHS; may lag behind by some polls."""
        self._polls += 1
        if self._polls % CALLS == 0:
            self._model.startCallback(INTERRUPT)
        return self._bound

    @property
    def answer(self) -> ProgramSolution | None:
        """The solution of the ended run; None while it is running. Raises the exception with which the run failed."""
        return self._answer.result() if self._answer.done() else None

    def incumbents(self) -> list[Floats]:
        """Points found since the last call, each better than those before."""
        with self._lock:
            found, self._incumbents = self._incumbents, []
        return found

    def stop(self) -> None:
        """Ask HiGHS to stop, which it does after some nodes or one LP; the thread may end after this call returns."""
        self._stopped = True
        self._model.startCallback(INTERRUPT)
        wait([self._answer], PATIENCE_S)

    def _run(self) -> ProgramSolution:
        run(self._model)
        answer = self._program.answer(self._model, cutoff=self._cutoff)
        self._bound = max(self._bound, answer.bound)
        return answer

    def _look(self, event: Any) -> None:
        bound = float(event.data_out.mip_dual_bound)
        if math.isfinite(bound):
            self._bound = max(self._bound, above(bound, self._cutoff))
        if self._stopped:
            event.interrupt()
        else:
            self._model.stopCallback(INTERRUPT)

    def _improve(self, event: Any) -> None:
        with self._lock:
            self._incumbents.append(np.array(event.data_out.mip_solution))
