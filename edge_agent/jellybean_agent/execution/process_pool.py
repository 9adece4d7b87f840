"""The pool of model processes: starts and ends the processes in which models run.

Its fork server (`process_main.py`) is forked while this process has no thread but its main one, and later forks every
model process. That takes milliseconds, as all modules are imported already. All processes end when the agent ends, even
if it is killed.

Invariant: a process that forks has one thread. A thread may hold a lock (of malloc, of a library) that no thread of the
child would ever release. The agent starts no thread and no gRPC before the pool; the fork server starts none at all.
OpenBLAS, which has threads from its import on, ends them before a fork by a handler of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import Self

from jellybean_agent.errors import TransientError
from jellybean_agent.execution.process_main import END_PROCESS, NEW_PROCESS, PID_AND_CODE, run_fork_server
from jellybean_agent.execution.process_wire import Conversation, SharedMemory
from jellybean_agent.system.memory import machine_memory_bytes
from jellybean_agent.system.sockets import receive_exactly

POOL_DIED = "the process that starts model processes has died: this agent ends, to be started again"


class ModelProcessPool:
    """Starts and ends model processes. `start` must be called before any thread starts; `close` ends all processes."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        """`memory_bytes`: limit of one model process; half of the machine's memory unless given."""
        self._memory_bytes = memory_bytes
        self._control: socket.socket | None = None
        self._pid = 0
        self._lock = threading.Lock()  # a request and its answer: the fork server serves one after the other

    def start(self) -> Self:
        """Fork the fork server. RuntimeError if this process has more threads than the main one."""
        if (threads := threading.enumerate()) != [threading.main_thread()]:
            names = ", ".join(thread.name for thread in threads)
            raise RuntimeError(f"a process with threads must not fork ({names}): start the pool before them")
        self._control, other = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            run_fork_server(other, self._memory_bytes or default_memory_bytes())
        other.close()
        self._pid = pid
        return self

    @property
    def pid(self) -> int:
        """Process id of the fork server, which must live for model processes to be started."""
        return self._pid

    def new_process(self) -> tuple[Conversation, int]:
        """Start a model process: (connection to it, its process id). TransientError if the fork server has died."""
        mine, other = socket.socketpair()
        conversation = Conversation(mine, SharedMemory.create())
        try:
            with self._lock:
                control = self._open_control()
                socket.send_fds(control, [NEW_PROCESS], [other.fileno(), conversation.memory.file])
                pid, _ = PID_AND_CODE.unpack(receive_exactly(control, PID_AND_CODE.size))
        except OSError as error:
            conversation.close()
            raise TransientError(POOL_DIED) from error
        finally:
            other.close()
        return conversation, int(pid)

    def end_process(self, pid: int) -> int:
        """Kill a model process; returns its exit code (as `os.waitstatus_to_exitcode`): -9 if this call killed it."""
        try:
            with self._lock:
                control = self._open_control()
                control.sendall(END_PROCESS + PID_AND_CODE.pack(pid, 0))
                _, code = PID_AND_CODE.unpack(receive_exactly(control, PID_AND_CODE.size))
        except OSError:
            return -int(signal.SIGKILL)
        return int(code)

    def close(self) -> None:
        """End the fork server, and with it all model processes."""
        if self._control is not None:
            self._control.close()
            self._control = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _open_control(self) -> socket.socket:
        if self._control is None:
            raise ConnectionError("the pool is closed")
        return self._control

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def default_memory_bytes() -> int:
    """Half of this machine's memory, or half of the cgroup's limit if that is lower; bytes."""
    return machine_memory_bytes() // 2
