"""A model process that answers nothing, as one that loads or runs a model for ever; without a process."""

from __future__ import annotations

import signal
import socket

from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_wire import Conversation, SharedMemory


class SilentProcesses:
    """Starts and ends them. `ended`: their process ids."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self._others: dict[int, socket.socket] = {}

    def new_process(self) -> tuple[Conversation, int]:
        mine, other = socket.socketpair()
        pid = 1001 + len(self.ended) + len(self._others)
        self._others[pid] = other
        return Conversation(mine, SharedMemory.create()), pid

    def end_process(self, pid: int) -> int:
        self._others.pop(pid).close()
        self.ended.append(pid)
        return -signal.SIGKILL


def silent_process(load_limit_s: float = 60.0) -> ModelProcess:
    return ModelProcess(SilentProcesses(), load_limit_s=load_limit_s)
