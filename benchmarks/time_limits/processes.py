"""Runs commands in sessions of their own, and waits for the last of all processes that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KILL_S = 60.0
# Of features that a command is not for.
REFUSALS = ("cannot", "does not know", "takes one workflow", "chooses plans by their cost", "is planned without")
POLL_S = 0.01
MARK = "JELLYBEAN_BENCHMARK_COMMAND"  # environment variable by which the processes of a command are known


@dataclass(frozen=True, slots=True)
class Run:
    """One command. `text`: what it printed on both outputs.

    `seconds`: from its start to its end, or with a signal from that to the end of the last process that it started.
    `left`: processes that were still there `KILL_S` later.
    """

    command: str
    kind: str
    seconds: float
    status: int
    text: str
    left: int = 0

    @property
    def has_answer(self) -> bool:
        """True if it gave a result, or reasons why there is none, and no error of the program."""
        return self.status in (0, 3, 6) or any(words in self.text for words in REFUSALS)

    @property
    def is_infeasible(self) -> bool:
        """True if no plan meets the targets."""
        return self.status == 3


def run_command(command: str, kind: str, arguments: Sequence[str]) -> Run:
    """Run `jellybean` to its end."""
    started = time.perf_counter()
    process = _started(arguments, {})
    try:
        text = process.communicate(timeout=KILL_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text = process.communicate()[0]
    return Run(command, kind, time.perf_counter() - started, process.returncode, text)


def interrupt_command(command: str, kind: str, arguments: Sequence[str], after_s: float) -> Run:
    """Run `jellybean`, with SIGINT to its process group some seconds after its start, as a terminal sends it."""
    mark = uuid.uuid4().hex
    process = _started(arguments, {MARK: mark})
    try:
        text, _ = process.communicate(timeout=after_s)
        return Run(command, kind, 0.0, process.returncode, text)
    except subprocess.TimeoutExpired:
        started = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
    while (_marked(mark) or process.poll() is None) and time.perf_counter() - started < KILL_S:
        time.sleep(POLL_S)
    seconds, left = time.perf_counter() - started, _marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return Run(command, kind, seconds, process.wait(), process.communicate()[0], len(left))


def _started(arguments: Sequence[str], more: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jellybean", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **more},
        start_new_session=True,
    )


def _marked(mark: str) -> list[int]:
    """Process ids of the running processes that have inherited a mark."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is another user's
                continue
    return found
