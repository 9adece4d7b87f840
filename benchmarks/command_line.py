"""Processor time of the command line before any work: version, help, and the completion of a command's name."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

RUNS = 21
COMMANDS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {  # row -> arguments of Python, environment
    "python -c pass": (("-c", "pass"), {}),
    "jellybean --version": (("-m", "jellybean", "--version"), {}),
    "jellybean --help": (("-m", "jellybean", "--help"), {}),
    "jellybean de, completed in bash": (
        ("-m", "jellybean"),
        {"_JELLYBEAN_COMPLETE": "complete_bash", "COMP_WORDS": "jellybean de", "COMP_CWORD": "1"},
    ),
    "jellybean pipeline --help": (("-m", "jellybean", "pipeline", "--help"), {}),
    "jellybean init --help": (("-m", "jellybean", "init", "--help"), {}),
    "jellybean plan --help": (("-m", "jellybean", "plan", "--help"), {}),
}


@benchmark
def command_line(smoke: bool) -> Result:
    """Each command as a process of its own, all of them in turn."""
    runs = 2 if smoke else RUNS
    for row in COMMANDS:
        _processor_s(row)  # once before, so that files are in memory and compiled
    times_s: dict[str, list[float]] = {row: [] for row in COMMANDS}
    for _ in range(runs):
        for row in COMMANDS:
            times_s[row].append(_processor_s(row))
    return Result(
        title="Start of the command line",
        topic=Topic.COMMAND_LINE,
        method=f"Processor time, user and system, of the process and its children: medians and highest of {runs} runs, "
        "all rows in turn, after one run of each that is not counted.",
        reference="the start of Python, which is part of every row; `--version` and `--help` may take 0.25 s.",
        tables=(
            Table.of(
                ["command", "median", "highest"],
                [
                    [f"`{row}`", f"{statistics.median(times):.3f} s", f"{max(times):.3f} s"]
                    for row, times in times_s.items()
                ],
            ),
        ),
    )


def _processor_s(row: str) -> float:
    """Processor time of one run."""
    arguments, environment = COMMANDS[row]
    started = subprocess.Popen(
        [sys.executable, *arguments], env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(started.pid, 0)  # in microseconds, where os.times has hundredths of a second
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise RuntimeError(f"{row} ended with status {started.returncode}")
    return usage.ru_utime + usage.ru_stime
