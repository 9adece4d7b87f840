"""Runs a worker's batches, one at a time: asynchronously in a model process, or in the executor thread.

In both cases the next run starts before the outputs of the last one are encoded and sent, to keep the model busy.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import grpc

from jellybean_agent.brain.messages import Instruction, RunOperator
from jellybean_agent.brain.plan_view import OperatorView
from jellybean_agent.errors import AgentError, PermanentError
from jellybean_agent.execution.executor import Executor, RunResult
from jellybean_agent.system.timers import Timer
from jellybean_agent.tensors.stacking import stack_requests
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.worker.direct_calls import DirectCalls
from jellybean_agent.worker.request_tracer import RequestTracer
from jellybean_agent.worker.run_outputs import RunDone, is_direct_call, run_done
from jellybean_agent.worker.stream_states import StreamStates

LOG = logging.getLogger("jellybean.agent")
Result = TypeVar("Result")


class FollowUp(NamedTuple):
    """Work left to do in the event loop after a run. `outputs`: of direct calls, by request id."""

    instructions: Sequence[Instruction]
    status: grpc.StatusCode  # of the requests that failed
    outputs: Mapping[str, Mapping[str, Array]]


class RunListener(Protocol):
    """Receives finished runs and returns the next one; implemented by the driver."""

    def run_completed(self, run: RunOperator, done: RunDone | AgentError) -> tuple[RunOperator | None, FollowUp]:
        """Report a finished run; returns (next run or None, work left for `follow_up`). Called from both threads."""
        ...

    def follow_up(self, after: FollowUp) -> None:
        """Do the work left after a run. Called in the event loop."""
        ...


class Runner:
    """The runs of one worker; `start` before the first one."""

    def __init__(
        self,
        operators: Mapping[str, OperatorView],
        executors: Mapping[str, Executor],
        calls: DirectCalls,
        tracer: RequestTracer,
        listener: RunListener,
        states: StreamStates,
    ) -> None:
        self._operators, self._executors, self._calls = operators, executors, calls
        self._tracer, self._listener, self._states = tracer, listener, states
        self._allows_async = not tracer.needs_blocking_runs
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False
        self._queue: queue.SimpleQueue[RunOperator | None] = queue.SimpleQueue()
        self._current: tuple[str, float] | None = None
        self._timer = Timer(self._loop)  # timer for runs on emulated devices
        self._thread = threading.Thread(target=self._execute, name="executor", daemon=True)

    def start(self) -> None:
        """Start the timer and the executor thread."""
        self._timer.open()
        self._thread.start()

    @property
    def current(self) -> tuple[str, float] | None:
        """Operator and start (monotonic clock) of the run in progress."""
        return self._current

    def stop(self) -> None:
        """End the thread after the run in progress. Not from the event loop's thread."""
        self._loop.call_soon_threadsafe(self._timer.close)
        self._is_stopping = True
        self._queue.put(None)
        self._thread.join()

    def run(self, run: RunOperator) -> None:
        """Start a run: asynchronously where the model is in a model process, else in the executor thread."""
        executor = self._executors[run.operator]
        if self._is_stopping or not self._allows_async or not executor.can_run_async:
            self._queue.put(run)
            return
        operator = self._operators[run.operator]
        now_s = self._loop.time()
        self._current = (run.operator, now_s)
        spin_s = self._calls.spin_s(run, now_s)
        is_over = False

        def begin() -> None:
            is_single = is_direct_call(run) or len(run.items) == 1
            items = self._states.fed(run).items
            inputs = None if is_single else stack_requests([item.inputs for item in items])
            requests = [item.inputs for item in items] if inputs is None else [inputs]
            size = 1 if inputs is None else len(run.items)
            executor.run_async(requests, ended, self._timer.call_at, size=size, spin_s=spin_s)

        def ended(results: Sequence[RunResult] | AgentError) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if isinstance(results, AgentError):
                done: RunDone | AgentError = results
            else:
                done = self._attempt(run, lambda: self._kept(run, run_done(operator, run, results)))
            self._current = None
            self._run_ended(run, done)

        error = self._attempt(run, begin)
        if error is not None:
            self._loop.call_soon(ended, error)
        elif spin_s:
            self._calls.spun(failed=self._current is not None)

    def _run_ended(self, run: RunOperator, done: RunDone | AgentError) -> None:
        """After an asynchronous run: start the next run before anything is sent."""
        following, after = self._listener.run_completed(run, done)
        if following is not None:
            self._continue_device(run, following)
            self.run(following)
        self._listener.follow_up(after)

    def _execute(self) -> None:
        """The executor thread: takes the next run itself, without a detour through the event loop."""
        run = self._queue.get()
        while run is not None and not self._is_stopping:
            self._current = (run.operator, self._loop.time())
            done = self._attempt(run, partial(self._run_here, run))
            self._current = None
            following = self._thread_run_ended(run, done)
            if following is not None:
                self._continue_device(run, following)
            run = following or self._queue.get()

    def _run_here(self, run: RunOperator) -> RunDone:
        operator, executor = self._operators[run.operator], self._executors[run.operator]
        return self._kept(run, self._tracer.run_items(operator, executor, self._states.fed(run).items))

    def _kept(self, run: RunOperator, done: RunDone) -> RunDone:
        """Keep the states that a run made before anything is sent: the next chunk comes after this one's answer."""
        self._states.keep(run, done)
        return done

    def _thread_run_ended(self, run: RunOperator, done: RunDone | AgentError) -> RunOperator | None:
        """Report a run; returns the next one if it is for this thread. Other work goes to the event loop."""
        following, after = self._listener.run_completed(run, done)
        if following is not None and self._allows_async and self._executors[following.operator].can_run_async:
            after = after._replace(instructions=[following, *after.instructions])
            following = None
        try:
            self._loop.call_soon_threadsafe(self._listener.follow_up, after)
        except RuntimeError:  # the loop was closed: the process is ending
            self._is_stopping = True
            self._queue.put(None)
            return None
        return following

    def _continue_device(self, run: RunOperator, following: RunOperator) -> None:
        """Let the next run start, on the emulated device, exactly when the last one ended, even if a timer was late."""
        self._executors[following.operator].since_s = self._executors[run.operator].due_s

    def _attempt(self, run: RunOperator, work: Callable[[], Result]) -> Result | AgentError:
        """The result of `work`, or its exception as an AgentError, which fails the run's requests only."""
        try:
            return work()
        except AgentError as error:
            return error
        except MemoryError:
            return PermanentError("out of memory")
        except Exception as error:
            LOG.exception("a run of %s failed unexpectedly", run.operator)
            return PermanentError(f"unexpected: {error!r}")
