"""Runs HiGHS so that a signal stops it.

Python handles signals between the bytecodes of its main thread, which has none while it is inside HiGHS: Ctrl-C would
wait for the end of the solve. So HiGHS runs in a thread of its own, for which the main thread waits.
"""

from __future__ import annotations

import threading
from typing import Any

import highspy

PATIENCE_S = 0.5  # longest wait for a stopped run to end
CALLBACKS = (highspy.cb.HighsCallbackType.kCallbackMipInterrupt, highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt)


def run_interruptibly(model: highspy.Highs) -> None:
    """Run a model. An exception in the main thread, such as that of Ctrl-C, stops HiGHS and is raised at once.

    HiGHS stops after a node or some simplex iterations. In other threads, which get no signals, it just runs.
    """
    if threading.current_thread() is not threading.main_thread():
        model.run()
        return
    for event in (model.cbMipInterrupt, model.cbSimplexInterrupt):
        event.subscribe(_interrupt)
    for callback in CALLBACKS:  # each call takes the interpreter lock, so they are off until they are needed
        model.stopCallback(callback)
    ended = (
        threading.Event()
    )  # waited for in place of `join`: an interrupted join takes the thread for ended (Python 3.11)
    failures: list[BaseException] = []

    def solve() -> None:
        try:
            model.run()
        except BaseException as error:  # noqa: BLE001  (raised again below)
            failures.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=solve, name="highs")  # no daemon: HiGHS aborts the process if it ends first
    thread.start()
    try:
        ended.wait()
    except BaseException:
        for callback in CALLBACKS:
            model.startCallback(callback)
        ended.wait(PATIENCE_S)
        raise
    thread.join()
    if failures:
        raise failures[0]


def _interrupt(event: Any) -> None:
    event.interrupt()
