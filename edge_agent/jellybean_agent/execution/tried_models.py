"""Models that a command tries: loaded and run in a process of their own, with limits of time and memory.

A file from elsewhere may crash onnxruntime, run for ever, or take all memory, also while it is loaded: onnxruntime
computes what depends on constants alone. A command has threads, so that its processes are started from scratch.
"""

from __future__ import annotations

import atexit
import functools
import signal
import socket
import subprocess
import sys

from jellybean_agent.errors import TransientError
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_main import START_BLOCKED
from jellybean_agent.execution.process_wire import Conversation, SharedMemory
from jellybean_agent.system.memory import available_memory_bytes

_MODULE = "jellybean_agent.execution.process_main"
_LOAD_LIMIT_S = 120.0  # to load a model: ten gigabytes from a slow disk take a minute
_MEMORY_SHARE = 0.9  # of the memory that is free: all variants of a project are loaded beside each other


class SpawnedProcesses:
    """Starts and ends model processes one by one: half a second each, in place of an agent's pool."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def new_process(self) -> tuple[Conversation, int]:
        """Start a model process: (connection to it, its process id). TransientError if none can be started."""
        mine, other = socket.socketpair()
        conversation = Conversation(mine, SharedMemory.create())
        files = (other.fileno(), conversation.memory.file)
        memory_bytes = int(_MEMORY_SHARE * available_memory_bytes())
        command = [sys.executable, "-P", "-m", _MODULE, *map(str, files), str(memory_bytes)]
        nowhere = subprocess.DEVNULL  # what libraries print there is no answer, and a crash is told by its status
        # Ctrl-C, which a terminal sends to the child as well, must not end it before it ignores that (`process_main`).
        before = signal.pthread_sigmask(signal.SIG_BLOCK, START_BLOCKED)
        try:
            child = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, pass_fds=files)
            self._children[child.pid] = child
        except OSError as error:
            conversation.close()
            raise TransientError(f"no process could be started to try models in: {error.strerror}") from error
        finally:
            other.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return conversation, child.pid

    def end_process(self, pid: int) -> int:
        """Kill a model process; returns its exit code: -9 if this call killed it."""
        child = self._children.pop(pid, None)
        if child is None:
            return -int(signal.SIGKILL)
        child.kill()
        return child.wait()


@functools.cache
def trial_process() -> ModelProcess:
    """The process in which this one tries models; it ends with this one. Used by one thread at a time."""
    process = ModelProcess(SpawnedProcesses(), load_limit_s=_LOAD_LIMIT_S)
    atexit.register(process.close)
    return process
