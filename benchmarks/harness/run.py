"""Run benchmarks, write their results and render the page."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.files import RESULTS, load_all, save
from benchmarks.harness.page import PAGE, render, result_text
from benchmarks.harness.registry import BENCHMARKS, BenchmarkError
from benchmarks.harness.result import Record


@dataclass(frozen=True)
class Target:
    """Where results and page are written."""

    results: Path = RESULTS
    page: Path = PAGE


def main(arguments: Sequence[str] | None = None, target: Target | None = None) -> None:
    """The command line of `python -m benchmarks`."""
    target = target or Target()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmarks; render docs/benchmarks.md."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--smoke", action="store_true", help="short runs that show that it works; nothing is written")
    parser.add_argument("--render", action="store_true", help="only render docs/benchmarks.md from the results")
    asked = parser.parse_args(arguments)
    unknown = set(asked.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    if asked.render:
        write_page(target)
        return
    for name in asked.names or BENCHMARKS:
        run(name, asked.smoke, target)


def run(name: str, smoke: bool, target: Target) -> None:
    """Run one benchmark and print its result; unless it is a smoke run, write it and render the page."""
    try:
        result = BENCHMARKS[name](smoke)
    except BenchmarkError as error:
        print(f"\n{name} cannot run here: {error}", flush=True)
        return
    print("\n" + result_text(result), flush=True)
    if smoke:
        return
    command = f"`python -m benchmarks {name}`"
    save(Record(name, result, command, datetime.date.today().isoformat(), hardware()), target.results)
    write_page(target)


def write_page(target: Target) -> None:
    """Render the page from all results."""
    target.page.write_text(render(load_all(target.results)), encoding="utf-8")


def hardware() -> str:
    """Cores this process may use, processor, system and Python version."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({_processor()}), {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
