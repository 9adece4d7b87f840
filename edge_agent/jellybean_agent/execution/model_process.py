"""Models in a process of their own, so that one that crashes, hangs or grows takes nothing else with it.

What comes back from a host (`nursery.py`) is checked like what comes from a network.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jellybean_agent.errors import AgentError, CrashError, InvalidInputError, ModelError, PermanentError
from jellybean_agent.execution.executor import Hold, OperatorCode
from jellybean_agent.execution.process_pool import Nursery, Process
from jellybean_agent.execution.process_wire import Heard, Talk
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array

LOAD_LIMIT_S = 300.0
RUN_LIMIT_S = 60.0  # a request has no longer than that
_FAULTS: Mapping[str, type[AgentError]] = {"model": ModelError, "run": PermanentError, "input": InvalidInputError}
_BROKEN = (OSError, ValueError, KeyError, TypeError, MemoryError)
Feed = Mapping[str, Array]  # a model's inputs by name


class HostDiedError(Exception):
    """A host has ended, or was ended; says why."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model that a host has loaded. `path`: of its file; of a function, its name and arguments."""

    path: str


class Host:
    """One process for all models of a worker. Not safe for several threads: a worker runs one thing at a time."""

    def __init__(
        self, nursery: Nursery, *, load_limit_s: float = LOAD_LIMIT_S, run_limit_s: float = RUN_LIMIT_S
    ) -> None:
        self._nursery, self._limits_s = nursery, {"load": load_limit_s, "run": run_limit_s}
        self._process: Process | None = None
        self.generation = 0  # hosts so far: what was loaded into an earlier one is gone

    def open(self, code: OperatorCode, sha256: str, *, accelerated: bool) -> HostedSession:
        """Load a model. ModelError when it cannot be, or when its loading crashes."""
        return HostedSession(self, code, sha256, accelerated=accelerated)

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def alive(self) -> int:
        """Start the process if there is none; its generation."""
        if self._process is None:
            self._start()
        return self.generation

    def _start(self) -> Process:
        self._process = self._nursery.new()
        self.generation += 1
        return self._process

    def ask(self, header: Mapping[str, Any]) -> Heard:
        """One question to the process and its answer. HostDiedError when there is none: then the process has ended."""
        process = self._process or self._start()
        limit_s = self._limits_s[header["do"]]
        process.talk.connection.settimeout(limit_s)
        try:
            process.talk.say(tuple(header.items()), header, ())
            return process.talk.hear()
        except _BROKEN as error:
            raise self._died(error, limit_s) from error

    def run(self, model: Hosted, feeds: Sequence[Feed]) -> Heard:
        """Run a model of this host once for each feed, one after another. HostDiedError as `ask`."""
        process = self._process or self._start()
        limit_s = self._limits_s["run"]
        process.talk.connection.settimeout(limit_s)
        try:
            _say_run(process.talk, model, feeds)
            return process.talk.hear()
        except _BROKEN as error:
            raise self._died(error, limit_s) from error

    def begin(
        self,
        model: Hosted,
        feeds: Sequence[Feed],
        done: Callable[[Heard | HostDiedError], None],
        patience_s: float | None = None,
        hold: Hold | None = None,
    ) -> None:
        """The same without waiting: the event loop calls `done`. Nothing else is asked until then.

        `patience_s`: for so long the answer is looked for at once, then `done` is called before this returns; not None
        where nothing else is to be done: the host looks for the next question too.
        `hold`: it is looked for then, and not before.
        """
        process = self._process or self._start()
        loop, connection, limit_s = asyncio.get_running_loop(), process.talk.connection, self._limits_s["run"]
        if hold is None:
            self._watch(process, loop)
        else:
            process.detach()
        connection.setblocking(False)
        process.done = done
        process.until_s = max(loop.time(), hold.due_s if hold is not None else 0.0) + limit_s
        if process.timer is None:
            process.timer = loop.call_at(process.until_s, self._look, process, loop)
        try:
            _say_run(process.talk, model, feeds, is_only=patience_s is not None)
        except _BROKEN as error:
            loop.call_soon(self._failed, process, error)
            return
        if hold is not None:
            hold.at(hold.due_s, partial(self._due, process, loop, hold))
            return
        until_s = loop.time() + (patience_s or 0.0)
        while process.done is not None and loop.time() < until_s:
            self._answered(process)

    def _watch(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        if process.loop is not loop:
            process.loop = loop
            loop.add_reader(process.talk.connection, self._answered, process)

    def _due(self, process: Process, loop: asyncio.AbstractEventLoop, hold: Hold) -> None:
        """The time at which an answer counts has come."""
        waiting = process.done
        self._answered(process)
        if waiting is not None and process.done is waiting and process is self._process:  # no other run began with it
            hold.is_late = True
            self._watch(process, loop)

    def detach(self) -> None:
        """Leave the process' answers to whoever waits for them."""
        if self._process is not None:
            self._process.detach()

    def _answered(self, process: Process) -> None:
        try:
            found = process.talk.heard()
        except BlockingIOError:
            return
        except _BROKEN as error:
            self._failed(process, error)
            return
        if found is not None:
            self._tell(process, found)

    def _look(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        """End a run that takes too long. One timer goes through many runs: they are short beside it."""
        process.timer = None
        if process.done is not None and loop.time() < process.until_s:
            process.timer = loop.call_at(process.until_s, self._look, process, loop)
        elif process.done is not None:
            self._failed(process, TimeoutError())

    def _failed(self, process: Process, error: Exception) -> None:
        if process is self._process:
            self._tell(process, self._died(error, self._limits_s["run"]))

    def _tell(self, process: Process, what: Heard | HostDiedError) -> None:
        done, process.done = process.done, None
        if done is not None:
            done(what)

    def _died(self, error: Exception, limit_s: float) -> HostDiedError:
        """End a process that gave no answer; why it gave none."""
        if isinstance(error, TimeoutError):
            self.close()
            return HostDiedError(f"took longer than {limit_s:g} s and was ended")
        code = self.close()
        told = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return HostDiedError(told if isinstance(error, OSError) else f"answered nonsense: {error}")

    def close(self) -> int:
        """End the process; what it ended with, 0 where there was none."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.close()
        return self._nursery.end(process.pid)


class HostedSession:
    """A model in a host, loaded again where the host before it has died."""

    def __init__(self, host: Host, code: OperatorCode, sha256: str, *, accelerated: bool) -> None:
        self._host, self._code = host, code
        self._hosted = Hosted(code.key if isinstance(code, PythonStep) else str(code))
        self._what = {"path": self._hosted.path, "sha256": sha256, "accelerated": accelerated}
        if isinstance(code, PythonStep):
            self._what |= {"function": code.function, "arguments": code.arguments}
        self.inputs, self.outputs = self._load()

    def _load(self) -> tuple[tuple[TensorPort, ...], tuple[TensorPort, ...]]:
        self._loaded = self._host.alive()
        try:
            answer = self._host.ask({"do": "load", **self._what}).header
        except HostDiedError as error:
            raise ModelError(f"model {self._code}: loading it crashed: its process {error}") from error
        _raise_fault(answer)
        return _ports(answer["inputs"]), _ports(answer["outputs"])

    def run(self, feed: Feed) -> list[Array]:
        """All outputs. PermanentError when the model fails, crashes or takes too long."""
        if not self.is_loaded:
            self._load()
        try:
            heard = self._host.run(self._hosted, [feed])
        except HostDiedError as error:
            raise _crash(error) from error
        return self._outputs(heard, 1)[0]

    @property
    def is_loaded(self) -> bool:
        """Whether a run needs no loading first."""
        return self._loaded == self._host.generation and self._host.is_alive

    def may_begin(self) -> bool:
        """Whether a run may begin without waiting. Where not, `run` may be waited for in another thread."""
        if not self.is_loaded:
            self._host.detach()
        return self.is_loaded

    def begin(
        self,
        feeds: Sequence[Feed],
        done: Callable[[list[list[Array]] | AgentError], None],
        patience_s: float | None = None,
        hold: Hold | None = None,
    ) -> None:
        """Run once for each feed, without waiting; the outputs of each, or why there are none. It must be loaded."""

        def told(what: Heard | HostDiedError) -> None:
            if isinstance(what, HostDiedError):
                done(_crash(what))
                return
            try:
                found: list[list[Array]] | AgentError = self._outputs(what, len(feeds))
            except AgentError as error:
                found = error
            except (*_BROKEN, IndexError) as error:  # whoever waits must learn of it
                found = PermanentError(f"what its process gave cannot be read: {error!r}")
            done(found)

        self._host.begin(self._hosted, feeds, told, patience_s, hold)

    def _outputs(self, heard: Heard, runs: int) -> list[list[Array]]:
        """Each run's outputs, copied: they outlive the next one."""
        _raise_fault(heard.header)
        count = len(self.outputs)
        if len(heard.arrays) != runs * count:
            raise PermanentError(f"its process gave {len(heard.arrays)} tensors for {runs} runs with {count} outputs")
        found = [array.copy() for array in heard.arrays]
        return [found[at : at + count] for at in range(0, len(found), count)]


def _crash(error: HostDiedError) -> CrashError:
    return CrashError(f"the model crashed: its process {error}; it is loaded again")


def _say_run(talk: Talk, model: Hosted, feeds: Sequence[Feed], *, is_only: bool = False) -> None:
    """`is_only`: nothing else is to be done, so another question may follow at once."""
    names = tuple(feeds[0])
    header = {"do": "run", "path": model.path, "names": names, "runs": len(feeds), "only": is_only}
    talk.say((model.path, names, len(feeds), is_only), header, [array for feed in feeds for array in feed.values()])


def _raise_fault(answer: Mapping[str, Any]) -> None:
    if "fault" in answer:
        raise _FAULTS.get(str(answer["fault"]), PermanentError)(str(answer.get("reason"))[:2000])


def _ports(items: Any) -> tuple[TensorPort, ...]:
    return tuple(TensorPort(str(item[0]), str(item[1]), tuple(int(size) for size in item[2])) for item in items)
