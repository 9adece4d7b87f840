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
from jellybean.serving.run_processes import AGENT_MODULE, GATEWAY_MODULE, KEEPER_MODULE, KEEPER_NAME
from jellybean.serving.run_state import ProcessState


def idle_command(directory: Path, name: str = GATEWAY_NAME, folder: Path | None = None) -> tuple[str, ...]:
    """The command line of an idle process that reads as that of a process of the run, in the run's `folder` if any."""
    idle = (sys.executable, "-S", "-c", "import time; time.sleep(60)", "-m")
    if name == KEEPER_NAME:
        return (*idle, KEEPER_MODULE, str(directory.resolve()), str(folder))
    module, option = (GATEWAY_MODULE, "--run") if name == GATEWAY_NAME else (AGENT_MODULE, "--root")
    command = (*idle, module, f"{option}={directory.resolve()}")
    if folder is None:
        return command
    return (*command, f"--plan={folder}/1/plan.json", f"--worker={name}", f"--listen=unix:{folder}/1/0.sock")


@contextlib.contextmanager
def idle_process(
    directory: Path, name: str = GATEWAY_NAME, address: str = "unix:none", folder: Path | None = None
) -> Iterator[ProcessState]:
    """An idle process of the project's run, as the state file lists it."""
    command = idle_command(directory, name, folder)
    child = spawn(command, directory, directory.with_name(f"{directory.name}.log"))
    try:
        yield process_state(name, child, command, address, Path("log"))
    finally:
        child.kill()
        child.wait()
