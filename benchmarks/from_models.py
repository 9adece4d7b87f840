"""From four ONNX files to an answered request: the time of each of the six commands."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits" / "models"
MODELS = ("find", "shape-cnn-small", "shape-cnn-large", "number")
SMOKE_PROFILE = ("--seconds", "0.05")


@dataclass(frozen=True)
class _Command:
    """One command: its name, elapsed seconds, CPU seconds of its own processes, and what it printed."""

    name: str
    elapsed_s: float
    cpu_s: float
    text: str


@benchmark
def from_models(smoke: bool) -> Result:
    """The commands that `init` prints, as they are printed, from `init` to `infer`."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        models, project = Path(name) / "models", Path(name) / "mine"
        models.mkdir()
        for model in MODELS:
            shutil.copy(EXAMPLE / f"{model}.onnx", models)
        commands = _run_all(models, project, smoke=smoke)
        hashes = len(re.findall(r"sha256: [0-9a-f]{64}", (project / "workflow.yaml").read_text(encoding="utf-8")))
    total_s = sum(command.elapsed_s for command in commands)
    rows = [[f"`{one.name}`", f"{one.elapsed_s:.1f}", f"{one.cpu_s:.1f}"] for one in commands]
    rows.append(["all", f"{total_s:.0f}", f"{sum(one.cpu_s for one in commands):.0f}"])
    return Result(
        title="From four ONNX files to an answered request",
        topic=Topic.SERVING,
        method="Four models of the digits example (a detector that fans out, a classifier in two sizes, a model that "
        "gathers), copied from their project, and the commands that `jellybean init` prints, one after another, once. "
        "CPU time is that of a command's own processes, without the agents that it leaves running.",
        reference="five minutes.",
        tables=(Table.of(("command", "elapsed, s", "CPU, s"), rows),),
        notes=(
            f"`init` wrote {hashes} hashes; the commands contain none. The machine's load average was "
            f"{load_before:.1f} before and {os.getloadavg()[0]:.1f} after; elapsed times grow with it.",
        ),
    )


def _run_all(models: Path, project: Path, *, smoke: bool) -> list[_Command]:
    """Run `init`, then each command that it prints; the project is down again at the end."""
    first = _run(["init", str(project), "--from", str(models)], project)
    printed = [shlex.split(line.partition("  # ")[0]) for line in first.text.splitlines()[1:]]
    commands = [first]
    try:
        for line in printed:
            more = SMOKE_PROFILE if smoke and line[1] == "profile" else ()
            commands.append(_run([*line[1:], *more], project))
    finally:
        subprocess.run([sys.executable, "-m", "jellybean", "down", str(project)], check=False, capture_output=True)
    return commands


def _run(arguments: Sequence[str], project: Path) -> _Command:
    before, start_s = _children_cpu_s(), time.monotonic()
    done = subprocess.run([sys.executable, "-m", "jellybean", *arguments], check=True, capture_output=True, text=True)
    name = shlex.join(["jellybean", *arguments]).replace(str(project.parent) + "/", "")
    return _Command(name, time.monotonic() - start_s, _children_cpu_s() - before, done.stdout)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
