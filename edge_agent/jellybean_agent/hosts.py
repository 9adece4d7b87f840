"""Processes that models run in, so that one that crashes, hangs or grows takes nothing else with it.

A nursery is forked before gRPC starts, when that is still safe, and forks every host from then on: that takes
milliseconds, as everything is imported. A host is told what to load and run over a socket; tensors lie in memory that
both map. What comes back is checked like what comes from a network. A host ends when the agent does, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from jellybean_agent.errors import AgentError, CrashError, ModelError, PermanentError, TransientError
from jellybean_agent.executor import LocalSession, Port
from jellybean_agent.host_wire import Heard, Memory, Talk
from jellybean_agent.tensors import Array

NURSERY_DIED = "the process that starts models' processes has died: this agent ends, to be started again"
LOAD_LIMIT_S = 300.0
RUN_LIMIT_S = 60.0  # a request has no longer than that
_PID = struct.Struct("<ii")
_NEW, _END = b"n", b"e"
_FAULTS: Mapping[str, type[AgentError]] = {"model": ModelError, "run": PermanentError}


_NOTHING: Mapping[str, Any] = {}
_BROKEN = (OSError, ValueError, KeyError, TypeError, MemoryError)
Feed = Mapping[str, Array]  # a model's inputs by name


class HostDiedError(Exception):
    """A host has ended, or was ended; says why."""


class Nursery:
    """Starts and ends hosts. Make one before anything of gRPC is used; close it, or let this process end."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._control, other = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _leave(partial(_nurse, other, memory_bytes or default_memory_bytes()))
        other.close()
        self._pid = pid

    @property
    def pid(self) -> int:
        """Of its process, which no host is started without: whoever serves watches it."""
        return self._pid

    def new(self) -> _Process:
        """A new host. TransientError when the nursery has died."""
        mine, other = socket.socketpair()
        memory = Memory(os.memfd_create("jellybean-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(memory.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a host must not pull it from under the agent
        try:
            socket.send_fds(self._control, [_NEW], [other.fileno(), memory.file])
            pid, _ = _PID.unpack(_receive(self._control, _PID.size))
        except OSError as error:
            _Process(Talk(mine, memory), 0).close()
            raise TransientError(NURSERY_DIED) from error
        finally:
            other.close()
        return _Process(Talk(mine, memory), pid)

    def end(self, pid: int) -> int:
        """End a host; what it ended with, as `os.waitstatus_to_exitcode` says it: -9 when this ended it."""
        try:
            self._control.sendall(_END + _PID.pack(pid, 0))
            _, code = _PID.unpack(_receive(self._control, _PID.size))
        except OSError:
            return -int(signal.SIGKILL)
        return int(code)

    def close(self) -> None:
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Host:
    """One process for all models of a worker. Not safe for several threads: a worker runs one thing at a time."""

    def __init__(
        self, nursery: Nursery, *, load_limit_s: float = LOAD_LIMIT_S, run_limit_s: float = RUN_LIMIT_S
    ) -> None:
        self._nursery, self._limits_s = nursery, {"load": load_limit_s, "run": run_limit_s}
        self._process: _Process | None = None
        self.generation = 0  # hosts so far: what was loaded into an earlier one is gone

    def open(self, path: Path, sha256: str, *, accelerated: bool) -> HostedSession:
        """Load a model. ModelError when it cannot be, or when its loading crashes."""
        return HostedSession(self, path, sha256, accelerated=accelerated)

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def alive(self) -> int:
        """Start the process if there is none; its generation."""
        if self._process is None:
            self._start()
        return self.generation

    def _start(self) -> _Process:
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
        patience_s: float = 0.0,
    ) -> None:
        """The same without waiting: the event loop calls `done`. Nothing else is asked until then.

        `patience_s`: for so long the answer is looked for at once, then `done` is called before this returns.
        """
        process = self._process or self._start()
        loop, connection, limit_s = asyncio.get_running_loop(), process.talk.connection, self._limits_s["run"]
        if process.loop is not loop:
            process.loop = loop
            loop.add_reader(connection, self._answered, process)
        connection.setblocking(False)
        process.done = done
        process.until_s = loop.time() + limit_s
        if process.timer is None:
            process.timer = loop.call_at(process.until_s, self._look, process, loop)
        try:
            _say_run(process.talk, model, feeds)
        except _BROKEN as error:
            loop.call_soon(self._failed, process, error)
            return
        until_s = loop.time() + patience_s
        while process.done is not None and loop.time() < until_s:
            self._answered(process)

    def detach(self) -> None:
        """Leave the process' answers to whoever waits for them."""
        if self._process is not None:
            self._process.detach()

    def _answered(self, process: _Process) -> None:
        try:
            found = process.talk.heard()
        except BlockingIOError:
            return
        except _BROKEN as error:
            self._failed(process, error)
            return
        if found is not None:
            self._tell(process, found)

    def _look(self, process: _Process, loop: asyncio.AbstractEventLoop) -> None:
        """End a run that takes too long. One timer goes through many runs: they are short beside it."""
        process.timer = None
        if process.done is not None and loop.time() < process.until_s:
            process.timer = loop.call_at(process.until_s, self._look, process, loop)
        elif process.done is not None:
            self._failed(process, TimeoutError())

    def _failed(self, process: _Process, error: Exception) -> None:
        if process is self._process:
            self._tell(process, self._died(error, self._limits_s["run"]))

    def _tell(self, process: _Process, what: Heard | HostDiedError) -> None:
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

    def __init__(self, host: Host, path: Path, sha256: str, *, accelerated: bool) -> None:
        self._host, self._path = host, path
        self._what = {"path": str(path), "sha256": sha256, "accelerated": accelerated}
        self._hosted = Hosted(str(path))
        self.inputs, self.outputs = self._load()

    def _load(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        self._loaded = self._host.alive()
        try:
            answer = self._host.ask({"do": "load", **self._what}).header
        except HostDiedError as error:
            raise ModelError(f"model {self._path}: loading it crashed: its process {error}") from error
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
        patience_s: float = 0.0,
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

        self._host.begin(self._hosted, feeds, told, patience_s)

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


def _say_run(talk: Talk, model: Hosted, feeds: Sequence[Feed]) -> None:
    names = tuple(feeds[0])
    header = {"do": "run", "path": model.path, "names": names, "runs": len(feeds)}
    talk.say((model.path, names, len(feeds)), header, [array for feed in feeds for array in feed.values()])


def default_memory_bytes() -> int:
    """Half of what this machine, or its cgroup, has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // 2


def _raise_fault(answer: Mapping[str, Any]) -> None:
    if "fault" in answer:
        raise _FAULTS.get(str(answer["fault"]), PermanentError)(str(answer.get("reason"))[:2000])


def _ports(items: Any) -> tuple[Port, ...]:
    return tuple(Port(str(item[0]), str(item[1]), tuple(int(size) for size in item[2])) for item in items)


# -- in the nursery and in hosts --------------------------------------------------------------------------------------


def _leave(work: Callable[[], None]) -> NoReturn:
    """Do the child's work and end it, without what the parent would do at its end."""
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001  (the process' boundary)
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _nurse(control: socket.socket, memory_bytes: int) -> None:
    """Fork a host whenever the agent asks for one; end them all when the agent has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the agent, which says when it is over
    hosts: set[int] = set()
    while True:
        what, given, _, _ = socket.recv_fds(control, 1, 2)
        if what == _NEW:
            pid = os.fork()
            if pid == 0:
                control.close()
                _leave(partial(_host, Talk(socket.socket(fileno=given[0]), Memory(given[1])), memory_bytes))
            for file in given:
                os.close(file)
            hosts.add(pid)
            control.sendall(_PID.pack(pid, 0))
            continue
        asked = {_PID.unpack(_receive(control, _PID.size))[0]} if what == _END else set(hosts)
        for pid in asked & hosts:
            hosts.discard(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if what == _END:
                control.sendall(_PID.pack(pid, code))
        if what != _END:
            return


def _host(talk: Talk, memory_bytes: int) -> None:
    """Load and run what is asked for, one after another, until the agent closes the socket."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(memory_bytes)
    sessions: dict[str, LocalSession] = {}
    while True:
        try:
            heard = talk.hear()
        except OSError:
            return
        header, answer = heard.header, _NOTHING
        outputs: Sequence[Array] = ()
        try:
            if header["do"] == "load":
                session = LocalSession(Path(header["path"]), header["sha256"], accelerated=header["accelerated"])
                sessions[header["path"]] = session
                answer = {"inputs": _told(session.inputs), "outputs": _told(session.outputs)}
                gc.freeze()  # nothing that is here now goes before the process does
            else:
                outputs = _outputs(sessions[header["path"]], header, heard.arrays)
        except Exception as error:  # noqa: BLE001  (the host's boundary: the agent says it)
            full = f"out of memory: {memory_bytes} bytes are the limit" if isinstance(error, MemoryError) else ""
            fault = "model" if isinstance(error, ModelError) or header["do"] == "load" else "run"
            answer, outputs = {"fault": fault, "reason": full or str(error) or repr(error)}, ()
        try:
            talk.say(None if answer is _NOTHING else json.dumps(answer), answer, outputs)
        except ValueError as error:  # too many bytes, or of a kind that is not sent
            talk.say(str(error), {"fault": "run", "reason": str(error)}, ())


def _outputs(session: LocalSession, header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Array]:
    """One run after another: their inputs lie behind each other, and so do their outputs."""
    names = header["names"]
    found: list[Array] = []
    for run in range(header["runs"]):
        found += session.run(dict(zip(names, arrays[run * len(names) : (run + 1) * len(names)], strict=True)))
    return found


def _limit_memory(memory_bytes: int) -> None:
    """What the process may have besides what it was born with."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    limit = int(fields["VmData"].split()[0]) * 1024 + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _told(ports: Sequence[Port]) -> list[list[Any]]:
    return [[port.name, port.dtype, list(port.shape)] for port in ports]


# -- between them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model that a host has loaded."""

    path: str


@dataclass(slots=True, eq=False)
class _Process:
    """A host as the agent holds it. `loop`, `done`, `timer`, `until_s`: of a run that is not waited for."""

    talk: Talk
    pid: int
    loop: asyncio.AbstractEventLoop | None = None
    done: Callable[[Heard | HostDiedError], None] | None = None
    timer: asyncio.TimerHandle | None = None
    until_s: float = 0.0

    def detach(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(self.talk.connection)
        self.loop = None

    def close(self) -> None:
        self.detach()
        self.talk.connection.close()
        os.close(self.talk.memory.file)


def _receive(connection: socket.socket, size: int) -> bytearray:
    """Exactly so many bytes. ConnectionError when the other end is gone."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise ConnectionError("the other end is gone")
        view = view[got:]
    return data
