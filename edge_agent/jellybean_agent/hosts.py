"""Processes that models run in, so that one that crashes, hangs or grows takes nothing else with it.

A nursery is forked before gRPC starts, when that is still safe, and forks every host from then on: that takes
milliseconds, as everything is imported. A host is told what to load and run over a socket; tensors lie in memory that
both map. What comes back is checked like what comes from a network. A host ends when the agent does, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
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

import numpy as np

from jellybean_agent.errors import AgentError, CrashError, ModelError, PermanentError, TransientError
from jellybean_agent.executor import LocalSession, Port
from jellybean_agent.tensors import DTYPES, MAX_RANK, Array

NURSERY_DIED = "the process that starts models' processes has died: this agent ends, to be started again"
LOAD_LIMIT_S = 300.0
RUN_LIMIT_S = 60.0  # a request has no longer than that
MAX_OUTPUT_BYTES = 2**30  # of the inputs, and of the outputs, of one run
_ALIGNED = 64
_MAX_HEADER_BYTES = 2**20
_SIZE = struct.Struct("<I")
_PID = struct.Struct("<ii")
_NEW, _END = b"n", b"e"
_Item = tuple[str, tuple[int, ...], int]  # dtype, shape, where it begins
_FAULTS: Mapping[str, type[AgentError]] = {"model": ModelError, "run": PermanentError}


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
        memory = _Memory(os.memfd_create("jellybean-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(memory.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a host must not pull it from under the agent
        try:
            socket.send_fds(self._control, [_NEW], [other.fileno(), memory.file])
            pid, _ = _PID.unpack(_receive(self._control, _PID.size))
        except OSError as error:
            _Process(mine, 0, memory).close()
            raise TransientError(NURSERY_DIED) from error
        finally:
            other.close()
        return _Process(mine, pid, memory)

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

    def alive(self) -> int:
        """Start the process if there is none; its generation."""
        if self._process is None:
            self._start()
        return self.generation

    def _start(self) -> _Process:
        self._process = self._nursery.new()
        self.generation += 1
        return self._process

    def ask(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> tuple[dict[str, Any], list[Array]]:
        """One question to the process and its answer. HostDiedError when there is none: then the process has ended."""
        process = self._process or self._start()
        limit_s = self._limits_s[header["do"]]
        process.connection.settimeout(limit_s)
        try:
            _send(process.connection, header, process.memory, arrays)
            answer, items = _read(process.connection)
            return answer, process.memory.get(items)
        except TimeoutError as error:
            self.close()
            raise HostDiedError(f"took longer than {limit_s:g} s and was ended") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            code = self.close()
            told = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise HostDiedError(told if isinstance(error, OSError) else f"answered nonsense: {error}") from error

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
        self.inputs, self.outputs = self._load()

    def _load(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        self._loaded = self._host.alive()
        try:
            answer, _ = self._host.ask({"do": "load", **self._what})
        except HostDiedError as error:
            raise ModelError(f"model {self._path}: loading it crashed: its process {error}") from error
        _raise_fault(answer)
        return _ports(answer["inputs"]), _ports(answer["outputs"])

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """All outputs. PermanentError when the model fails, crashes or takes too long."""
        if self._loaded != self._host.generation or self._host.alive() != self._loaded:
            self._load()
        header = {"do": "run", "path": self._what["path"], "names": list(feed)}
        try:
            answer, arrays = self._host.ask(header, list(feed.values()))
        except HostDiedError as error:
            raise CrashError(f"the model crashed: its process {error}; it is loaded again") from error
        _raise_fault(answer)
        return arrays


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
                _leave(partial(_host, socket.socket(fileno=given[0]), _Memory(given[1]), memory_bytes))
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


def _host(connection: socket.socket, memory: _Memory, memory_bytes: int) -> None:
    """Load and run what is asked for, one after another, until the agent closes the socket."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(memory_bytes)
    sessions: dict[str, LocalSession] = {}
    while True:
        try:
            header, items = _read(connection)
        except OSError:
            return
        answer: dict[str, Any] = {}
        outputs: Sequence[Array] = ()
        try:
            if header["do"] == "load":
                session = LocalSession(Path(header["path"]), header["sha256"], accelerated=header["accelerated"])
                sessions[header["path"]] = session
                answer = {"inputs": _told(session.inputs), "outputs": _told(session.outputs)}
            else:
                feed = dict(zip(header["names"], memory.get(items, copy=False), strict=True))
                outputs = sessions[header["path"]].run(feed)
        except Exception as error:  # noqa: BLE001  (the host's boundary: the agent says it)
            full = f"out of memory: {memory_bytes} bytes are the limit" if isinstance(error, MemoryError) else ""
            fault = "model" if isinstance(error, ModelError) or header["do"] == "load" else "run"
            answer, outputs = {"fault": fault, "reason": full or str(error) or repr(error)}, ()
        try:
            _send(connection, answer, memory, outputs)
        except ValueError as error:  # too many bytes, or of a kind that is not sent
            _send(connection, {"fault": "run", "reason": str(error)}, memory, ())


def _limit_memory(memory_bytes: int) -> None:
    """What the process may have besides what it was born with."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    limit = int(fields["VmData"].split()[0]) * 1024 + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _told(ports: Sequence[Port]) -> list[list[Any]]:
    return [[port.name, port.dtype, list(port.shape)] for port in ports]


# -- between them -----------------------------------------------------------------------------------------------------


class _Memory:
    """Memory that agent and host map: the inputs of a run, and after it its outputs. It only grows."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map: mmap.mmap | None = None
        self._size = 0

    def put(self, arrays: Sequence[Array]) -> list[_Item]:
        """Lay arrays down; where they lie. ValueError when they are too many bytes or of a dtype that is not sent."""
        found: list[_Item] = []
        at = 0
        for array in arrays:
            if array.dtype.name not in DTYPES:
                raise ValueError(f"a tensor of {array.dtype.name}; known: {', '.join(DTYPES)}")
            found.append((array.dtype.name, array.shape, at))
            at += -(-array.nbytes // _ALIGNED) * _ALIGNED
        for array, item in zip(arrays, found, strict=True):
            self._array(item, at)[...] = array
        return found

    def get(self, items: Sequence[Any], *, copy: bool = True) -> list[Array]:
        """The arrays that lie there; `copy`: they outlive the next run. ValueError and the like for nonsense."""
        arrays = [self._array((str(dtype), tuple(map(int, shape)), int(at)), 0) for dtype, shape, at in items]
        return [array.copy() for array in arrays] if copy else arrays

    def _array(self, item: _Item, at_least: int) -> Array:
        (name, shape, at), dtype = item, DTYPES[item[0]]
        if len(shape) > MAX_RANK or any(size < 0 for size in shape) or at < 0 or at % _ALIGNED:
            raise ValueError(f"{name} {shape[:MAX_RANK]} at {at}")
        size = math.prod(shape) * dtype.itemsize
        view = self._view(max(at + size, at_least))
        return np.frombuffer(view, dtype, math.prod(shape), at).reshape(shape) if size else np.empty(shape, dtype)

    def _view(self, size: int) -> mmap.mmap:
        if size > MAX_OUTPUT_BYTES:
            raise ValueError(f"tensors of {size} bytes in one run; {MAX_OUTPUT_BYTES} are the limit")
        if self._map is None or size > self._size:
            self._size = max(os.fstat(self.file).st_size, 1 << max(16, (size - 1).bit_length()))
            if os.fstat(self.file).st_size < self._size:
                os.ftruncate(self.file, self._size)
            self._map = mmap.mmap(self.file, self._size)
        return self._map


@dataclass(frozen=True, slots=True)
class _Process:
    """A host as the agent holds it."""

    connection: socket.socket
    pid: int
    memory: _Memory

    def close(self) -> None:
        self.connection.close()
        os.close(self.memory.file)


def _send(connection: socket.socket, header: Mapping[str, Any], memory: _Memory, arrays: Sequence[Array]) -> None:
    told = json.dumps({**header, "arrays": memory.put(arrays)}).encode()
    connection.sendall(_SIZE.pack(len(told)) + told)


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[Any]]:
    """ValueError and the like when what comes is no message."""
    (size,) = _SIZE.unpack(_receive(connection, _SIZE.size))
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size} bytes")
    header = json.loads(_receive(connection, size))
    return header, header.pop("arrays")


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
