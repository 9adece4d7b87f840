"""The processes that models run in, and the one that starts them.

A nursery is forked before gRPC starts, when that is still safe, and forks every host from then on: that takes
milliseconds, as everything is imported. A host is told what to load and run over a socket; tensors lie in memory that
both map. A host ends when the agent does, however that ends.
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
from typing import TYPE_CHECKING, Any, NoReturn, Self

from jellybean_agent.errors import InvalidInputError, ModelError, TransientError
from jellybean_agent.execution.executor import OperatorCode, Session, open_local
from jellybean_agent.execution.process_wire import Heard, Memory, Talk
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.system.sockets import receive_exactly
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array

if TYPE_CHECKING:
    from jellybean_agent.execution.model_process import HostDiedError

NURSERY_DIED = "the process that starts models' processes has died: this agent ends, to be started again"
_PID = struct.Struct("<ii")
_NEW, _END = b"n", b"e"
_NOTHING: Mapping[str, Any] = {}


@dataclass(slots=True, eq=False)
class Process:
    """A host as the agent holds it. `loop`, `done`, `timer`, `until_s`: of a run that is not waited for."""

    talk: Talk
    pid: int
    loop: asyncio.AbstractEventLoop | None = None
    done: Callable[[Heard | HostDiedError], None] | None = None
    timer: asyncio.TimerHandle | None = None
    until_s: float = 0.0

    def detach(self) -> None:
        """Look for no answer."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(self.talk.connection)
        self.loop = None

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.detach()
        self.talk.connection.close()
        os.close(self.talk.memory.file)


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

    def new(self) -> Process:
        """A new host. TransientError when the nursery has died."""
        mine, other = socket.socketpair()
        memory = Memory(os.memfd_create("jellybean-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(memory.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a host must not pull it from under the agent
        try:
            socket.send_fds(self._control, [_NEW], [other.fileno(), memory.file])
            pid, _ = _PID.unpack(receive_exactly(self._control, _PID.size))
        except OSError as error:
            Process(Talk(mine, memory), 0).close()
            raise TransientError(NURSERY_DIED) from error
        finally:
            other.close()
        return Process(Talk(mine, memory), pid)

    def end(self, pid: int) -> int:
        """End a host; what it ended with, as `os.waitstatus_to_exitcode` says it: -9 when this ended it."""
        try:
            self._control.sendall(_END + _PID.pack(pid, 0))
            _, code = _PID.unpack(receive_exactly(self._control, _PID.size))
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


def default_memory_bytes() -> int:
    """Half of what this machine, or its cgroup, has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // 2


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
        asked = {_PID.unpack(receive_exactly(control, _PID.size))[0]} if what == _END else set(hosts)
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
    sessions: dict[str, Session] = {}
    is_only = False
    while True:
        try:
            heard = talk.hear_soon() if is_only else talk.hear()
        except OSError:
            return
        header, answer = heard.header, _NOTHING
        is_only = bool(header.get("only"))
        outputs: Sequence[Array] = ()
        try:
            if header["do"] == "load":
                session = open_local(_code(header), header["sha256"], accelerated=header["accelerated"])
                sessions[header["path"]] = session
                answer = {"inputs": _told(session.inputs), "outputs": _told(session.outputs)}
                gc.freeze()  # nothing that is here now goes before the process does
            else:
                outputs = _outputs(sessions[header["path"]], header, heard.arrays)
        except Exception as error:  # noqa: BLE001  (the host's boundary: the agent says it)
            full = f"out of memory: {memory_bytes} bytes are the limit" if isinstance(error, MemoryError) else ""
            answer, outputs = {"fault": _fault(error, header["do"]), "reason": full or str(error) or repr(error)}, ()
        try:
            talk.say(None if answer is _NOTHING else json.dumps(answer), answer, outputs)
        except ValueError as error:  # too many bytes, or of a kind that is not sent
            talk.say(str(error), {"fault": "run", "reason": str(error)}, ())


def _fault(error: Exception, doing: str) -> str:
    if isinstance(error, ModelError) or doing == "load":
        return "model"
    return "input" if isinstance(error, InvalidInputError) else "run"


def _code(header: Mapping[str, Any]) -> OperatorCode:
    """What is to be loaded. Whether a function may run here the agent has seen to."""
    if (function := header.get("function")) is None:
        return Path(header["path"])
    return PythonStep(function, header["arguments"], frozenset([function]))


def _outputs(session: Session, header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Array]:
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


def _told(ports: Sequence[TensorPort]) -> list[list[Any]]:
    return [[port.name, port.dtype, list(port.shape)] for port in ports]
