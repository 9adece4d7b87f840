"""Does a worker's runs, one at a time: a host is asked by the event loop, else a thread of its own waits for the model.

The thread tells what it has finished and takes the next run at once, so that the worker does not idle while the loop
encodes and sends.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import grpc

from jellybean_agent.brain.messages import Instruction, RunOperator
from jellybean_agent.brain.plan_view import OperatorView
from jellybean_agent.errors import AgentError, PermanentError
from jellybean_agent.execution.executor import Executor, RunResult
from jellybean_agent.system.timers import Timer
from jellybean_agent.tensors.stacking import stack_requests
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.worker.direct_calls import Asks
from jellybean_agent.worker.run_outputs import Done, collected, is_asked

LOG = logging.getLogger("jellybean.agent")
Found = TypeVar("Found")


class Aftermath(NamedTuple):
    """What is to be done after a run, in the event loop. `answers`: to who asked for the operator alone."""

    instructions: Sequence[Instruction]
    status: grpc.StatusCode  # why, of the requests that failed
    answers: Mapping[str, Mapping[str, Array]]


Completed = Callable[[RunOperator, Done | AgentError], tuple[RunOperator | None, Aftermath]]  # from both threads


class Runner:
    """Whoever has the brain is asked for the next run (`completed`) and told of the rest in the event loop (`after`).

    `perform`: a run that the thread waits for. `may_begin`: in the event loop, where a host can be asked so.
    """

    def __init__(
        self,
        worker: str,
        operators: Mapping[str, OperatorView],
        executors: Mapping[str, Executor],
        asks: Asks,
        perform: Callable[[RunOperator], Done],
        completed: Completed,
        after: Callable[[Aftermath], None],
        *,
        may_begin: bool,
    ) -> None:
        self._worker, self._operators, self._executors, self._asks = worker, operators, executors, asks
        self._perform, self._completed, self._after, self._may_begin = perform, completed, after, may_begin
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._runs: queue.SimpleQueue[RunOperator | None] = queue.SimpleQueue()
        self._under_way: tuple[str, float] | None = None  # operator, since when
        self._timer = Timer(self._loop)  # of an emulated device
        self._thread = threading.Thread(target=self._execute, name=f"executor of {worker}", daemon=True)

    def open(self) -> None:
        """Start the thread: from now on it calls back."""
        self._thread.start()

    @property
    def under_way(self) -> tuple[str, float] | None:
        """Operator and since when, by the monotonic clock."""
        return self._under_way

    def stop(self) -> None:
        """End the thread after the run under way."""
        self._loop.call_soon_threadsafe(self._timer.close)
        self._stopping = True
        self._runs.put(None)
        self._thread.join()

    def start(self, run: RunOperator) -> None:
        """Have the host do it, without a thread between; else the executor thread, which may wait."""
        executor = self._executors[run.operator]
        if self._stopping or not self._may_begin or not executor.may_begin:
            self._runs.put(run)
            return
        operator = self._operators[run.operator]
        now_s = time.monotonic()
        self._under_way = (run.operator, now_s)
        patience_s = self._asks.patience_s(run, now_s)
        is_over = False

        def begin() -> None:
            alone = is_asked(run) or len(run.items) == 1
            inputs = None if alone else stack_requests([item.inputs for item in run.items])
            requests = [item.inputs for item in run.items] if inputs is None else [inputs]
            size = 1 if inputs is None else len(run.items)
            executor.begin(requests, ended, self._timer.call_at, size=size, patience_s=patience_s)

        def ended(found: Sequence[RunResult] | AgentError) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            done = (
                found if isinstance(found, AgentError) else self._tried(run, partial(collected, operator, run, found))
            )
            self._under_way = None
            self._ended(run, done)

        error = self._tried(run, begin)
        if error is not None:
            self._loop.call_soon(ended, error)
        elif patience_s:
            self._asks.looked(in_vain=self._under_way is not None)

    def _ended(self, run: RunOperator, done: Done | AgentError) -> None:
        """A run that the event loop began is over: the next one begins before anything is sent."""
        following, aftermath = self._completed(run, done)
        if following is not None:
            self._go_on(run, following)
            self.start(following)
        self._after(aftermath)

    def _execute(self) -> None:
        """The executor thread: one run after another, the next one without a detour through the event loop."""
        run = self._runs.get()
        while run is not None and not self._stopping:
            self._under_way = (run.operator, time.monotonic())
            done = self._tried(run, partial(self._perform, run))
            self._under_way = None
            following = self._finished(run, done)
            if following is not None:
                self._go_on(run, following)
            run = following or self._runs.get()

    def _finished(self, run: RunOperator, done: Done | AgentError) -> RunOperator | None:
        """The next run if there is one for the thread; what else is to be done goes to the event loop."""
        following, aftermath = self._completed(run, done)
        if following is not None and self._may_begin and self._executors[following.operator].may_begin:
            aftermath = aftermath._replace(instructions=[following, *aftermath.instructions])  # the loop has it begin
            following = None
        try:
            self._loop.call_soon_threadsafe(self._after, aftermath)
        except RuntimeError:  # the loop was closed: nobody is left to be told
            self._stopping = True
            self._runs.put(None)
            return None
        return following

    def _go_on(self, run: RunOperator, following: RunOperator) -> None:
        """It waited: an emulated device goes on at once, however late a timer was."""
        self._executors[following.operator].since_s = self._executors[run.operator].due_s

    def _tried(self, run: RunOperator, do: Callable[[], Found]) -> Found | AgentError:
        """What a part of a run gives, or why it gives nothing: its requests fail, the worker goes on."""
        try:
            return do()
        except AgentError as error:
            return error
        except MemoryError:
            return PermanentError("out of memory")
        except Exception as error:
            LOG.exception("%s: a run of %s failed unexpectedly", self._worker, run.operator)
            return PermanentError(f"unexpected: {error!r}")
