"""Runs HiGHS so that a signal stops it.

Python handles signals between the bytecodes of its main thread, which has none while it is inside HiGHS: Ctrl-C would
wait for the end of the solve. So HiGHS runs in a thread of its own, for which the main thread waits. Where the main
thread waits for a pool of threads that run HiGHS (`solver_threads`), an exception there stops all their runs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import highspy

PATIENCE_S = 0.5  # longest wait for a stopped run to end
CALLBACKS = (highspy.cb.HighsCallbackType.kCallbackMipInterrupt, highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt)


class StoppedRunError(Exception):
    """The thread that waited for this run has ended it."""


class _Runs:
    """The runs of HiGHS in the threads of one pool. `idle`: set while there is none."""

    def __init__(self) -> None:
        self._lock, self._models, self._stopped = threading.Lock(), list[highspy.Highs](), False
        self.idle = threading.Event()
        self.idle.set()

    def attach(self) -> None:
        """Count the runs of this thread among these."""
        _local.runs = self

    def run(self, model: highspy.Highs) -> None:
        """Run a model. StoppedRunError if the runs are stopped."""
        for event in (model.cbMipInterrupt, model.cbSimplexInterrupt):
            event.subscribe(_interrupt)
        for callback in CALLBACKS:  # they take the interpreter lock, so they are off until they are needed
            model.stopCallback(callback)
        with self._lock:
            if self._stopped:
                raise StoppedRunError
            self._models.append(model)
            self.idle.clear()
        try:
            model.run()
        finally:
            with self._lock:
                self._models = [one for one in self._models if one is not model]
                if not self._models:
                    self.idle.set()
        if self._stopped:
            raise StoppedRunError

    def stop(self) -> None:
        """Interrupt all runs, and refuse others."""
        with self._lock:
            self._stopped = True
            for model, callback in itertools.product(self._models, CALLBACKS):
                model.startCallback(callback)


_local = threading.local()  # `runs`: those that the thread's runs belong to


@contextmanager
def solver_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads for runs of HiGHS. An exception in the block, such as that of Ctrl-C, stops them all."""
    runs = _Runs()
    pool = ThreadPoolExecutor(count, initializer=runs.attach)
    try:
        yield pool
    except BaseException:
        runs.stop()
        pool.shutdown(wait=False, cancel_futures=True)
        runs.idle.wait(PATIENCE_S)
        raise
    pool.shutdown()


def run_interruptibly(model: highspy.Highs) -> None:
    """Run a model. An exception in the main thread, such as that of Ctrl-C, stops HiGHS and is raised at once.

    HiGHS stops after a node or some simplex iterations. In threads of `solver_threads` it stops with their pool; in
    others, which get no signals, it just runs.
    """
    runs: _Runs | None = getattr(_local, "runs", None)
    if runs is not None:
        runs.run(model)
    elif threading.current_thread() is threading.main_thread():
        with solver_threads(1) as pool:
            pool.submit(run_interruptibly, model).result()
    else:
        model.run()


def _interrupt(event: Any) -> None:
    event.interrupt()
