"""Processes that a project's state file may list.

With the command line of its gateway or an agent, and idle.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from jellybean.serving import GATEWAY_NAME
from jellybean.serving.local.processes import process_state, spawn
from jellybean.serving.run_processes import AGENT_MODULE, GATEWAY_MODULE
from jellybean.serving.run_state import ProcessState


def idle_command(directory: Path, name: str = GATEWAY_NAME) -> tuple[str, ...]:
    """The command line of an idle process that reads as that of a process of the run."""
    module, option = (GATEWAY_MODULE, "--run") if name == GATEWAY_NAME else (AGENT_MODULE, "--root")
    idle = ("-S", "-c", "import time; time.sleep(60)")
    return (sys.executable, *idle, "-m", module, f"{option}={directory.resolve()}")


@contextlib.contextmanager
def idle_process(directory: Path, name: str = GATEWAY_NAME, address: str = "unix:none") -> Iterator[ProcessState]:
    """An idle process of the project's run, as the state file lists it."""
    command = idle_command(directory, name)
    child = spawn(command, directory, directory.with_name(f"{directory.name}.log"))
    try:
        yield process_state(name, child, command, address, Path("log"))
    finally:
        child.kill()
        child.wait()
