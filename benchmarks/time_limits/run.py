"""How soon each command ends after its time limit, and after Ctrl-C."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.time_limits.interrupted import Interrupted, interrupted_commands
from benchmarks.time_limits.problems import KINDS, PROBLEMS, write_problem
from benchmarks.time_limits.processes import Run, interrupt_command, run_command

LIMIT_S = 5.0
ALLOWED_S = 2.0  # after the limit, at two idle processors
SIGNAL_S = 1.0  # from Ctrl-C to the end
TRACED_PARTS = (0.5, 1.0, 0.5, 0.5)  # of the sources' rates, by hour
WHOLE_S = 39 * 60.0  # no further problem is begun that would end later
_FOLDER = re.compile(r"/\S*/p\d+")  # of a project: the next run has another one
TIME_LIMIT = ("--time-limit", f"{LIMIT_S:g}")
COMMANDS: Mapping[str, Sequence[str]] = {  # row -> arguments; DIR and TRACE stand for a project's
    "plan": ("plan", "DIR", *TIME_LIMIT),
    "plan --from": ("plan", "DIR", "--from", "DIR", "--dry-run", *TIME_LIMIT),
    "explain": ("explain", "DIR", *TIME_LIMIT),
    "frontier": ("frontier", "DIR", "--json", *TIME_LIMIT),
    "calendar": ("calendar", "DIR", "TRACE", *TIME_LIMIT),
    "simulate": ("simulate", "DIR", *TIME_LIMIT),
    "plan --check": ("plan", "DIR", "--check", "TRACE", *TIME_LIMIT),
}


@benchmark
def time_limits(smoke: bool) -> Result:
    """Each command with a limit on each problem, one after the other; each that takes long once more with Ctrl-C."""
    seeds = range(1) if smoke else range(PROBLEMS)
    commands = dict(list(COMMANDS.items())[:1]) if smoke else COMMANDS
    before, started = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        signalled, interrupted = _interrupted(Path(folder), smoke)
        runs = _limited(Path(folder), seeds, commands, started + WHOLE_S)
    load = f"{before:.1f} before and {os.getloadavg()[0]:.1f} after, of {os.cpu_count()} processors"
    solved = sum(run.command == "plan" for run in runs)
    return Result(
        title="Time limits and Ctrl-C",
        topic=Topic.COMMAND_LINE,
        method=f"{solved} random large projects of {min(solved, len(KINDS))} kinds, each of which has a plan by "
        "construction, but for losses (`benchmarks/time_limits/problems.py`); each command as a process of "
        f"its own with `--time-limit {LIMIT_S:g}`, from its start to its end, Python's start included. Ctrl-C: SIGINT "
        "to the process group, as a terminal sends it, at each of three moments; the seconds from the signal to the "
        f"end of the last process that the command started. Load of the machine, this benchmark included: {load}. A "
        "command that gets half a processor reads its documents and prints its result half as fast, after a limit that "
        "is in real time.",
        reference=f"{LIMIT_S:g} s, and {ALLOWED_S:g} s for the end; {SIGNAL_S:g} s after Ctrl-C.",
        tables=(
            Table.of(
                ["command", "runs", "median s", "longest s", f"within {LIMIT_S + ALLOWED_S:g} s", "with an answer",
                 "without a plan"],
                [_limit_row(row, [run for run in runs if run.command == row]) for row in commands],
            ),
            Table.of(
                ["after Ctrl-C", "runs", "median s", "longest s", "status", "tracebacks", "processes left"],
                [_signal_row(one, [run for run in signalled if run.command == one.row]) for one in interrupted],
            ),
        ),
        notes=tuple(_kinds_without_answer(runs)),
    )  # fmt: skip


def _interrupted(folder: Path, smoke: bool) -> tuple[list[Run], Sequence[Interrupted]]:
    """The runs with Ctrl-C, and the commands that were interrupted."""
    runs: list[Run] = []
    with interrupted_commands(folder) as commands:
        chosen = commands[:1] if smoke else commands
        progress = _Progress("Ctrl-C", len(chosen) if smoke else sum(len(one.moments) for one in chosen))
        for one in chosen:
            for moment in one.moments[:1] if smoke else one.moments:
                runs.append(interrupt_command(one.row, f"{moment:g} s", one.arguments, moment))
                progress.done(one.row)
    return runs, chosen


def _limited(folder: Path, seeds: Sequence[int], commands: Mapping[str, Sequence[str]], end_s: float) -> list[Run]:
    """The runs with a time limit, of as many problems as the time is enough for."""
    runs: list[Run] = []
    progress = _Progress("time limits", len(seeds) * len(commands))
    for seed in seeds:
        if time.monotonic() + (LIMIT_S + ALLOWED_S) * len(commands) > end_s:
            break
        project = folder / f"p{seed}"
        kind = write_problem(seed, project)
        trace = _trace(project)
        for row, arguments in commands.items():
            filled = [{"DIR": str(project), "TRACE": str(trace)}.get(word, word) for word in arguments]
            runs.append(run_command(row, kind, filled))
            progress.done(f"{row} of {kind}")
    return runs


class _Progress:
    """Prints what was done last, and the time left at the speed so far."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.count, self.started = title, total, 0, time.monotonic()

    def done(self, label: str) -> None:
        """One more run has ended."""
        self.count += 1
        left_s = (time.monotonic() - self.started) / self.count * (self.total - self.count)
        print(f"{self.title}: {self.count} of {self.total}, {label}, about {left_s:.0f} s left", file=sys.stderr)


def _trace(project: Path) -> Path:
    """A trace with half of each source's rate and the whole."""
    rows = ["time_s,source,rate_per_s"]
    for prefix, document in _workflows(project):
        for name, source in document["sources"].items():
            rate_per_s = float(source["rate"].removesuffix("/s"))
            for hour, part in enumerate(TRACED_PARTS):
                rows.append(f"{3600 * hour},{prefix}{name},{part * rate_per_s}")
    path = project / "trace.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _workflows(project: Path) -> list[tuple[str, dict[str, Any]]]:
    """The workflows of a project, each with what its names begin with."""
    several = sorted(project.glob("workflows/*/workflow.yaml"))
    paths = [(f"{path.parent.name}/", path) for path in several] or [("", project / "workflow.yaml")]
    if (project / "sites.csv").exists():
        sites = (project / "sites.csv").read_text(encoding="utf-8").splitlines()[1:]
        paths = [(f"{site.split(',')[0]}/", project / "workflow.yaml") for site in sites]
    return [(prefix, yaml.safe_load(path.read_text(encoding="utf-8"))) for prefix, path in paths]


def _limit_row(row: str, runs: Sequence[Run]) -> list[object]:
    seconds = [run.seconds for run in runs]
    within = sum(one <= LIMIT_S + ALLOWED_S for one in seconds)
    answered, infeasible = sum(run.has_answer for run in runs), sum(run.is_infeasible for run in runs)
    figures = f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}"
    return [f"`{row}`", len(runs), *figures, within, answered, infeasible]


def _signal_row(command: Interrupted, runs: Sequence[Run]) -> list[object]:
    ended = [run for run in runs if run.status in command.statuses]
    seconds = [run.seconds for run in ended] or [0.0]
    statuses = ", ".join(dict.fromkeys(str(run.status) for run in runs))
    tracebacks, left = sum("Traceback" in run.text for run in runs), sum(run.left for run in runs)
    figures = f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"
    return [f"`{command.row}`", len(runs), *figures, statuses, tracebacks, left]


def _kinds_without_answer(runs: Sequence[Run]) -> list[str]:
    """Which kinds of problems ended without an answer, and what the command said last."""
    missing: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if not run.has_answer:
            missing[run.command, run.kind].append(run)
    return [
        f"`{command}` of {kind}: {len(ended)} without an answer, for example: "
        f"{_FOLDER.sub('DIR', (ended[0].text.strip().splitlines() or ['killed'])[-1])[:160]}"
        for (command, kind), ended in missing.items()
    ]
