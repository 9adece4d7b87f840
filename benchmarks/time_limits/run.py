"""How soon each command ends after its time limit, and after Ctrl-C, on random large projects."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.time_limits.problems import KINDS, PROBLEMS, write_problem

LIMIT_S = 5.0
ALLOWED_S = 2.0  # after the limit, at two idle processors
SIGNAL_S = 1.0  # from Ctrl-C to the end
KILL_S = 60.0
TRACE = "time_s,source,rate_per_s\n0,camera,{low}\n3600,camera,{high}\n7200,camera,{low}\n10800,camera,{low}\n"
COMMANDS: Mapping[str, Sequence[str]] = {  # row -> arguments; DIR and TRACE stand for a project's
    "plan": ("plan", "DIR", "--time-limit", f"{LIMIT_S:g}"),
    "plan --from": ("plan", "DIR", "--from", "DIR", "--dry-run", "--time-limit", f"{LIMIT_S:g}"),
    "explain": ("explain", "DIR", "--time-limit", f"{LIMIT_S:g}"),
    "frontier": ("frontier", "DIR", "--json", "--time-limit", f"{LIMIT_S:g}"),
    "calendar": ("calendar", "DIR", "TRACE", "--time-limit", f"{LIMIT_S:g}"),
    "simulate": ("simulate", "DIR", "--time-limit", f"{LIMIT_S:g}"),
    "plan --check": ("plan", "DIR", "--check", "TRACE", "--time-limit", f"{LIMIT_S:g}"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One command on one problem. `status`: of its exit. `text`: what it printed on both outputs."""

    command: str
    kind: str
    seconds: float
    status: int
    text: str

    @property
    def has_answer(self) -> bool:
        """True if it gave a result, or reasons why there is none, and no error of the program."""
        return self.status in (0, 3, 6) or "cannot" in self.text or "does not know" in self.text


@benchmark
def time_limits(smoke: bool) -> Result:
    """Each command with a limit on each problem, one after the other, and each once more with Ctrl-C in between."""
    seeds = range(1) if smoke else range(PROBLEMS)
    commands = dict(list(COMMANDS.items())[:1]) if smoke else COMMANDS
    before = os.getloadavg()[0]
    runs: list[Run] = []
    signalled: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            project = Path(folder) / f"p{seed}"
            kind = write_problem(seed, project)
            trace = _trace(project)
            for row, arguments in commands.items():
                filled = [{"DIR": str(project), "TRACE": str(trace)}.get(word, word) for word in arguments]
                runs.append(_run(row, kind, filled))
            row = list(commands)[seed % len(commands)]
            filled = [{"DIR": str(project), "TRACE": str(trace)}.get(word, word) for word in commands[row]]
            signalled.append(_run(row, kind, filled, interrupt_after_s=1.0 + 0.5 * (seed % 7)))
    load = f"{before:.1f} before and {os.getloadavg()[0]:.1f} after, of {os.cpu_count()} processors"
    return Result(
        title="Time limits and Ctrl-C",
        topic=Topic.COMMAND_LINE,
        method=f"{len(seeds)} random large projects of {min(len(seeds), len(KINDS))} kinds "
        f"(`benchmarks/time_limits/problems.py`), each command as a process of its own with `--time-limit "
        f"{LIMIT_S:g}`, from its start to its end, Python's start included. Ctrl-C: SIGINT to the process, 1 to 4 s "
        f"after its start. Load of the machine, this benchmark included: {load}. A command that gets half a "
        "processor reads its documents and prints its result half as fast, after a limit that is in real time.",
        reference=f"{LIMIT_S:g} s, and {ALLOWED_S:g} s for the end; {SIGNAL_S:g} s after Ctrl-C.",
        tables=(
            Table.of(
                ["command", "runs", "median s", "longest s", f"within {LIMIT_S + ALLOWED_S:g} s", "with an answer"],
                [_limit_row(row, [run for run in runs if run.command == row]) for row in commands],
            ),
            Table.of(
                ["after Ctrl-C", "runs", "median s", "longest s", "status 130", "tracebacks"],
                [_signal_row(row, [run for run in signalled if run.command == row]) for row in commands],
            ),
        ),
        notes=tuple(_kinds_without_answer(runs)),
    )


def _trace(project: Path) -> Path:
    """A trace with half the project's rate and the whole."""
    text = (project / "workflow.yaml").read_text(encoding="utf-8")
    rate = float((re.search(r"rate: ([0-9.]+)/s", text) or [None, "1"])[1] or 1.0)
    path = project / "trace.csv"
    path.write_text(TRACE.format(low=rate / 2, high=rate), encoding="utf-8")
    return path


def _run(row: str, kind: str, arguments: Sequence[str], interrupt_after_s: float | None = None) -> Run:
    """Run a command; with `interrupt_after_s` its seconds count from Ctrl-C."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "jellybean", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    text = ""
    if interrupt_after_s is not None:
        try:
            text, _ = process.communicate(timeout=interrupt_after_s)
        except subprocess.TimeoutExpired:
            started = time.perf_counter()
            process.send_signal(signal.SIGINT)
    try:
        text = process.communicate(timeout=KILL_S)[0] or text
    except subprocess.TimeoutExpired:
        process.kill()
        text = process.communicate()[0]
    return Run(row, kind, time.perf_counter() - started, process.returncode, text)


def _limit_row(row: str, runs: Sequence[Run]) -> list[object]:
    seconds = [run.seconds for run in runs]
    within = sum(one <= LIMIT_S + ALLOWED_S for one in seconds)
    answered = sum(run.has_answer for run in runs)
    figures = f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}"
    return [f"`{row}`", len(runs), *figures, within, answered]


def _signal_row(row: str, runs: Sequence[Run]) -> list[object]:
    ended = [run for run in runs if run.status == 130]
    seconds = [run.seconds for run in ended] or [0.0]
    tracebacks = sum("Traceback" in run.text for run in runs)
    return [f"`{row}`", len(runs), f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", len(ended), tracebacks]


def _kinds_without_answer(runs: Sequence[Run]) -> list[str]:
    """Which kinds of problems ended without an answer, and what the command said last."""
    missing: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if not run.has_answer:
            missing[run.command, run.kind].append(run)
    return [
        f"`{command}` of {kind}: {len(ended)} without an answer, for example: "
        f"{(ended[0].text.strip().splitlines() or ['killed'])[-1][:160]}"
        for (command, kind), ended in missing.items()
    ]
