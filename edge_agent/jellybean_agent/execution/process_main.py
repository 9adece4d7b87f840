"""Code of the forked processes: the fork server, and the loop of a model process.

A model process gets its commands (load, unload, run) over a socket; tensors lie in memory that it shares with the
agent. As a module it is a model process of a command: `python -m` with the files of both, and its limit of memory.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from jellybean_agent.errors import InvalidInputError, ModelError, RefusedValuesError
from jellybean_agent.execution.process_wire import Conversation, SharedMemory
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.session import OperatorCode, Session, open_in_process
from jellybean_agent.system.device import Device
from jellybean_agent.system.sockets import receive_exactly
from jellybean_agent.telemetry.printable import printable
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array

PID_AND_CODE = struct.Struct("<ii")  # process id, exit code
NEW_PROCESS, END_PROCESS = b"n", b"e"
START_BLOCKED = (signal.SIGINT, signal.SIGTERM)  # while a command starts its model process, until that handles them
_NO_HEADER: Mapping[str, Any] = {}


def run_fork_server(control: socket.socket, memory_bytes: int) -> NoReturn:
    """Serve as the fork server; called in a newly forked process. `memory_bytes`: limit of one model process."""
    _run_child(partial(_fork_on_request, control, memory_bytes))


def _run_child(work: Callable[[], None]) -> NoReturn:
    """Call `work` in a forked child, then exit without running the parent's exit handlers."""
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001  (the process' boundary)
        print(f"{type(error).__name__}: {printable(str(error))}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _fork_on_request(control: socket.socket, memory_bytes: int) -> None:
    """Fork and end model processes as the agent asks; end them all once the agent has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent handles these signals, and closes the pool when it ends
    children: set[int] = set()
    while True:
        request, files, _, _ = socket.recv_fds(control, 1, 2)
        if request == NEW_PROCESS:
            pid = os.fork()
            if pid == 0:
                control.close()
                conversation = Conversation(socket.socket(fileno=files[0]), SharedMemory(files[1]))
                _run_child(partial(_serve_models, conversation, memory_bytes))
            for file in files:
                os.close(file)
            children.add(pid)
            control.sendall(PID_AND_CODE.pack(pid, 0))
            continue
        if request != END_PROCESS:  # the agent has ended
            for pid in children:
                _end(pid)
            return
        pid, _ = PID_AND_CODE.unpack(receive_exactly(control, PID_AND_CODE.size))
        code = _end(pid) if pid in children else -int(signal.SIGKILL)  # else it was ended by an earlier request
        children.discard(pid)
        control.sendall(PID_AND_CODE.pack(pid, code))


def _end(pid: int) -> int:
    """Kill a child; returns its exit code (as `os.waitstatus_to_exitcode`)."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve_models(conversation: Conversation, memory_bytes: int) -> None:
    """Load and run models, one request after another, until the agent closes the socket."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(memory_bytes)
    sessions: dict[str, Session] = {}
    spins = False  # True: busy-wait for the next request, as no other was queued
    while True:
        try:
            request = conversation.receive_spinning() if spins else conversation.receive()
        except OSError:
            return
        header, answer = request.header, _NO_HEADER
        spins = bool(header.get("only"))
        outputs: Sequence[Array] = ()
        try:
            if header["do"] == "load":
                session = open_in_process(_code(header), header["sha256"], _device(header["device"]))
                sessions[header["path"]] = session
                answer = {"inputs": _port_list(session.inputs), "outputs": _port_list(session.outputs)}
                gc.freeze()  # exclude current objects from garbage collection: they live as long as the process
            elif header["do"] == "unload":
                sessions.pop(header["path"], None)
            else:
                outputs = _run_each(sessions[header["path"]], header, request.arrays)
        except Exception as error:  # noqa: BLE001  (the process' boundary: the agent reports it)
            full = f"out of memory: {memory_bytes} bytes are the limit" if isinstance(error, MemoryError) else ""
            answer, outputs = {"fault": _fault(error, header["do"]), "reason": full or str(error) or repr(error)}, ()
        try:
            conversation.send(None if answer is _NO_HEADER else json.dumps(answer), answer, outputs)
        except ValueError as error:  # more bytes than allowed, or a dtype that cannot be sent
            conversation.send(str(error), {"fault": "run", "reason": str(error)}, ())


def _fault(error: Exception, request: str) -> str:
    if isinstance(error, ModelError) or request == "load":
        return "model"
    if isinstance(error, RefusedValuesError):
        return "values"
    return "input" if isinstance(error, InvalidInputError) else "run"


def _device(item: Sequence[Any]) -> Device:
    name, options = item
    return Device(name, tuple((option, value) for option, value in options))


def _code(header: Mapping[str, Any]) -> OperatorCode:
    """The model file or function to load. The agent has checked that the function is allowed."""
    if (function := header.get("function")) is None:
        return Path(header["path"])
    return PythonStep(function, header["arguments"], frozenset([function]))


def _run_each(session: Session, header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Array]:
    """Run once per group of inputs. `arrays`: inputs of all runs, concatenated; the outputs are returned likewise."""
    names = header["names"]
    outputs: list[Array] = []
    for run in range(header["runs"]):
        outputs += session.run(dict(zip(names, arrays[run * len(names) : (run + 1) * len(names)], strict=True)))
    return outputs


def limit_memory(memory_bytes: int) -> None:
    """Limit this process's data segment (RLIMIT_DATA) to its current size plus `memory_bytes`."""
    text = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    limit = int(fields["VmData"].split()[0]) * 1024 + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _port_list(ports: Sequence[TensorPort]) -> list[list[Any]]:
    return [[port.name, port.dtype, list(port.shape)] for port in ports]


def main(arguments: Sequence[str]) -> None:
    """Serve a command as its model process, until it closes the connection or ends."""
    connection_file, memory_file, memory_bytes = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the command, which then closes the connection
    signal.pthread_sigmask(signal.SIG_UNBLOCK, START_BLOCKED)
    connection = socket.socket(fileno=connection_file)
    threading.Thread(target=_end_with_peer, args=(connection,), daemon=True).start()
    _serve_models(Conversation(connection, SharedMemory(memory_file)), memory_bytes)


def _end_with_peer(connection: socket.socket) -> None:
    """End this process once the other end is gone, also during a run that never ends."""
    closed = select.poll()
    closed.register(connection, 0)
    closed.poll()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
