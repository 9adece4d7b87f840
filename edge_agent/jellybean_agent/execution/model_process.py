"""Runs models in a separate process, so that a model that crashes, hangs or leaks memory does not harm the agent.

Answers of the process (`process_main`) are checked like data from a network.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from jellybean_agent.errors import (
    AgentError,
    CrashError,
    InvalidInputError,
    ModelError,
    PermanentError,
    RefusedValuesError,
)
from jellybean_agent.execution.emulation import EmulatedFinish
from jellybean_agent.execution.process_wire import Conversation, ProcessMessage
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.session import OperatorCode
from jellybean_agent.system.device import Device
from jellybean_agent.tensors.dtypes import is_served
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array

LOAD_LIMIT_S = 300.0
RUN_LIMIT_S = 60.0  # time limit of one run; no request has a longer deadline
_FAULTS: Mapping[str, type[AgentError]] = {
    "model": ModelError,
    "run": PermanentError,
    "input": InvalidInputError,
    "values": RefusedValuesError,
}
_BROKEN = (OSError, ValueError, KeyError, TypeError, MemoryError)
_UNLOADED = -1  # no generation of processes
Feed = Mapping[str, Array]  # a model's inputs by name


class ModelProcessDiedError(Exception):
    """A model process has ended, or was killed; the exception's text says why."""


@dataclass(frozen=True, slots=True)
class WorkLimit:
    """The time limit of the work for which models are tried.

    `left_s`: seconds that are left, None without a limit; `error`: what is raised where it ends a load or a run.
    """

    left_s: Callable[[], float | None]
    error: Callable[[], Exception]

    def least_s(self, seconds: float) -> float:
        """So many seconds, or those that are left. The error if none is left."""
        left_s = self.left_s()
        if left_s is not None and left_s <= 0.0:
            raise self.error()
        return seconds if left_s is None else min(seconds, left_s)


RunDone = Callable[[ProcessMessage | ModelProcessDiedError], None]


@dataclass(slots=True, eq=False)
class _RunningProcess:
    """A live process. `loop`, `done`, `timer`, `until_s`: of the asynchronous run whose answer the loop waits for."""

    conversation: Conversation
    pid: int
    loop: asyncio.AbstractEventLoop | None = None
    done: RunDone | None = None
    timer: asyncio.TimerHandle | None = None
    until_s: float = 0.0

    def stop_watching(self) -> None:
        """Remove the process's socket from the event loop."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(self.conversation.connection)
        self.loop = None

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.stop_watching()
        self.conversation.close()


class ProcessStarter(Protocol):
    """Starts and ends model processes: an agent's pool, or one by one for a command."""

    def new_process(self) -> tuple[Conversation, int]:
        """Start a process: (connection to it, its process id). TransientError if that is impossible."""
        ...

    def end_process(self, pid: int) -> int:
        """Kill a process; returns its exit code, as `os.waitstatus_to_exitcode` has it."""
        ...


class ModelProcess:
    """The process that runs a worker's models; started when needed, and again after it has died.

    Not thread-safe: a worker runs one batch at a time.
    """

    def __init__(
        self, pool: ProcessStarter, *, load_limit_s: float = LOAD_LIMIT_S, run_limit_s: float = RUN_LIMIT_S
    ) -> None:
        """A process that takes longer than the limits (seconds) to load or run a model is killed."""
        self._pool, self._limits_s = pool, {"load": load_limit_s, "run": run_limit_s}
        self._process: _RunningProcess | None = None
        self.generation = 0  # processes started so far; models loaded into an earlier one are gone

    def open(self, code: OperatorCode, sha256: str, device: Device, *, work: WorkLimit | None = None) -> ProcessSession:
        """Load a model onto a device. ModelError if it cannot be loaded, or loading crashes.

        `work`: ends the loads and the runs of this model (not `run_async`) with its error.
        """
        return ProcessSession(self, code, sha256, device, work)

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process id; 0 while there is no process."""
        return 0 if self._process is None else self._process.pid

    def ensure_started(self, work: WorkLimit | None = None) -> int:
        """Start the process if there is none; returns its `generation`. The error of `work` if its time is over."""
        if self._process is None:
            if work is not None:
                work.least_s(math.inf)
            self._start()
        return self.generation

    def _start(self) -> _RunningProcess:
        self._process = _RunningProcess(*self._pool.new_process())
        self.generation += 1
        return self._process

    def load(self, header: Mapping[str, Any], work: WorkLimit | None = None) -> ProcessMessage:
        """Have the process load a model; returns its answer. ModelProcessDiedError if it gives no valid answer.

        The error of `work` if that ends it.
        """
        return self._ask("load", lambda to: to.send(tuple(header.items()), header, ()), work)

    def _ask(self, request: str, send: Callable[[Conversation], None], work: WorkLimit | None) -> ProcessMessage:
        """Send a request, and wait for its answer."""
        limit_s = self._limits_s[request]
        allowed_s = limit_s if work is None else work.least_s(limit_s)
        conversation = (self._process or self._start()).conversation
        conversation.connection.settimeout(allowed_s)
        try:
            send(conversation)
            return conversation.receive()
        except _BROKEN as error:
            died = self._end_broken(error, limit_s)
            if work is not None and allowed_s < limit_s and isinstance(error, TimeoutError):
                raise work.error() from error
            raise died from error
        except BaseException:  # an interrupt: its answer, which comes later, must not be taken for the next one
            self.close()
            raise

    def unload(self, model: str) -> None:
        """Have the process forget a model, and the memory that it takes."""
        if self._process is not None:
            self.load({"do": "unload", "path": model})

    def run(self, model: str, feeds: Sequence[Feed], work: WorkLimit | None = None) -> ProcessMessage:
        """Run a loaded model once per feed; returns the answer. ModelProcessDiedError if there is no valid answer.

        The error of `work` if that ends it.
        """
        return self._ask("run", lambda to: _send_run(to, model, feeds), work)

    def run_async(
        self,
        model: str,
        feeds: Sequence[Feed],
        done: RunDone,
        spin_s: float | None = None,
        finish: EmulatedFinish | None = None,
    ) -> None:
        """Like `run`, but returns at once; the event loop calls `done`. No other run may be started before that.

        `spin_s`: seconds to busy-wait for the answer; if it arrives, `done` is called before this returns. Set it only
        if no other request is queued: the process then busy-waits for the next run, too. `finish`: end of the run on
        an emulated device; the answer is not read earlier.
        """
        process = self._process or self._start()
        loop, connection = asyncio.get_running_loop(), process.conversation.connection
        if finish is None:
            self._watch(process, loop)
        else:
            process.stop_watching()
        connection.setblocking(False)
        process.done = done
        process.until_s = max(loop.time(), finish.due_s if finish is not None else 0.0) + self._limits_s["run"]
        if process.timer is None:
            process.timer = loop.call_at(process.until_s, self._check_limit, process, loop)
        try:
            _send_run(process.conversation, model, feeds, is_only=spin_s is not None)
        except _BROKEN as error:
            loop.call_soon(self._fail, process, error)
            return
        if finish is not None:
            finish.call_at(finish.due_s, partial(self._finish_due, process, loop, finish))
            return
        until_s = loop.time() + (spin_s or 0.0)
        while process.done is not None and loop.time() < until_s:
            self._read_answer(process)

    def _watch(self, process: _RunningProcess, loop: asyncio.AbstractEventLoop) -> None:
        if process.loop is not loop:
            process.loop = loop
            loop.add_reader(process.conversation.connection, self._read_answer, process)

    def _finish_due(self, process: _RunningProcess, loop: asyncio.AbstractEventLoop, finish: EmulatedFinish) -> None:
        """The emulated device's run is over: read the answer, or wait for it if the model is still running."""
        done = process.done
        self._read_answer(process)
        if done is not None and process.done is done and process is self._process:  # unless `done` started the next run
            finish.is_late = True
            self._watch(process, loop)

    def stop_watching(self) -> None:
        """Remove the socket from the event loop: from now on `run` waits for answers in another thread."""
        if self._process is not None:
            self._process.stop_watching()

    def _read_answer(self, process: _RunningProcess) -> None:
        try:
            answer = process.conversation.poll()
        except BlockingIOError:
            return
        except _BROKEN as error:
            self._fail(process, error)
            return
        if answer is not None:
            self._call_done(process, answer)

    def _check_limit(self, process: _RunningProcess, loop: asyncio.AbstractEventLoop) -> None:
        """Kill the process if its run takes too long. One timer serves many runs, as most are far below the limit."""
        process.timer = None
        if process.done is not None and loop.time() < process.until_s:
            process.timer = loop.call_at(process.until_s, self._check_limit, process, loop)
        elif process.done is not None:
            self._fail(process, TimeoutError())

    def _fail(self, process: _RunningProcess, error: Exception) -> None:
        if process is self._process:
            self._call_done(process, self._end_broken(error, self._limits_s["run"]))

    def _call_done(self, process: _RunningProcess, result: ProcessMessage | ModelProcessDiedError) -> None:
        done, process.done = process.done, None
        if done is not None:
            done(result)

    def _end_broken(self, error: Exception, limit_s: float) -> ModelProcessDiedError:
        """Kill a process that gave no valid answer; returns the error that says why there was none."""
        if isinstance(error, TimeoutError):
            self.close()
            return ModelProcessDiedError(f"took longer than {limit_s:g} s and was ended")
        code = self.close()
        reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return ModelProcessDiedError(reason if isinstance(error, OSError) else f"gave an invalid answer: {error}")

    def close(self) -> int:
        """End the process; returns its exit code, 0 if there was no process."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.close()
        return self._pool.end_process(process.pid)


class ProcessSession:
    """A model in a model process; loaded again after the process has died."""

    def __init__(
        self, process: ModelProcess, code: OperatorCode, sha256: str, device: Device, work: WorkLimit | None
    ) -> None:
        self._process, self._code, self._work = process, code, work
        self._model = code.key if isinstance(code, PythonStep) else str(code)  # key of the model in the process
        self._request: dict[str, Any] = {"do": "load", "path": self._model, "sha256": sha256}
        self._request["device"] = device.name, device.options
        if isinstance(code, PythonStep):
            self._request |= {"function": code.function, "arguments": code.arguments}
        self.inputs, self.outputs = self._load()

    def _load(self) -> tuple[tuple[TensorPort, ...], tuple[TensorPort, ...]]:
        self._generation = self._process.ensure_started(self._work)
        try:
            answer = self._process.load(self._request, self._work).header
        except ModelProcessDiedError as error:
            raise ModelError(f"model {self._code}: loading it crashed: its process {error}") from error
        _raise_fault(answer)
        return _ports(answer["inputs"]), _ports(answer["outputs"])

    def run(self, feed: Feed) -> list[Array]:
        """All outputs, in the model's order. PermanentError if the model fails, crashes or takes too long."""
        if not self.is_loaded:
            self._load()
        try:
            answer = self._process.run(self._model, [feed], self._work)
        except ModelProcessDiedError as error:
            raise _crash(error) from error
        return self._outputs(answer, 1)[0]

    def close(self) -> None:
        """Unload the model until the next run. ModelError if that crashes."""
        if not self.is_loaded:
            return
        self._generation = _UNLOADED
        try:
            self._process.unload(self._model)
        except ModelProcessDiedError as error:
            raise ModelError(f"model {self._code}: unloading it crashed: its process {error}") from error

    @property
    def is_loaded(self) -> bool:
        """True if the current process has loaded the model; false after the process was restarted."""
        return self._generation == self._process.generation and self._process.is_alive

    def can_run_async(self) -> bool:
        """True if the model is loaded. If not, call `run` in another thread, which loads it and waits."""
        if not self.is_loaded:
            self._process.stop_watching()
        return self.is_loaded

    def run_async(
        self,
        feeds: Sequence[Feed],
        done: Callable[[list[list[Array]] | AgentError], None],
        spin_s: float | None = None,
        finish: EmulatedFinish | None = None,
    ) -> None:
        """Start one run per feed and return; `done` gets each run's outputs, or the error. Requires `is_loaded`."""

        def answered(answer: ProcessMessage | ModelProcessDiedError) -> None:
            if isinstance(answer, ModelProcessDiedError):
                done(_crash(answer))
                return
            try:
                result: list[list[Array]] | AgentError = self._outputs(answer, len(feeds))
            except AgentError as error:
                result = error
            except (*_BROKEN, IndexError) as error:  # `done` must be called in any case
                result = PermanentError(f"the model process gave an invalid answer: {error!r}")
            done(result)

        self._process.run_async(self._model, feeds, answered, spin_s, finish)

    def _outputs(self, answer: ProcessMessage, runs: int) -> list[list[Array]]:
        """Outputs of each of `runs` runs, copied, as the next run overwrites the shared memory."""
        _raise_fault(answer.header)
        count = len([port for port in self.outputs if is_served(port)])
        if len(answer.arrays) != runs * count:
            raise PermanentError(f"its process gave {len(answer.arrays)} tensors for {runs} runs with {count} outputs")
        copies = [array.copy() for array in answer.arrays]
        return [copies[at : at + count] for at in range(0, len(copies), count)]


def _crash(error: ModelProcessDiedError) -> CrashError:
    return CrashError(f"the model crashed: its process {error}; it is loaded again")


def _send_run(conversation: Conversation, model: str, feeds: Sequence[Feed], *, is_only: bool = False) -> None:
    """Send a run request. `is_only`: no other request is queued, so the process busy-waits for the next run."""
    names = tuple(feeds[0])
    header = {"do": "run", "path": model, "names": names, "runs": len(feeds), "only": is_only}
    conversation.send((model, names, len(feeds), is_only), header, [array for feed in feeds for array in feed.values()])


def _raise_fault(answer: Mapping[str, Any]) -> None:
    if "fault" in answer:
        raise _FAULTS.get(str(answer["fault"]), PermanentError)(str(answer.get("reason"))[:2000])


def _ports(items: Any) -> tuple[TensorPort, ...]:
    return tuple(TensorPort(str(item[0]), str(item[1]), tuple(int(size) for size in item[2])) for item in items)
