"""Commands of JellyBean as a user gives them, and a figure of their reports as a cell: predicted beside measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.registry import BenchmarkError
from jellybean.report.comparison import is_sampled


def jellybean(*arguments: str, may_fail: bool = False) -> str:
    """Standard output of a command. `may_fail`: its status tells of a target or a plan that is missed."""
    done = subprocess.run([sys.executable, "-m", "jellybean", *arguments], check=False, capture_output=True, text=True)
    if done.returncode and not (may_fail and done.stdout):
        raise BenchmarkError(f"jellybean {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def cell(found: Mapping[str, Any], show: Any, tolerance: float) -> str:
    """`found`: a comparison of `report --json`. Bold outside of the tolerance and of simulations of the arrivals."""
    predicted, measured, between = found["predicted"], found["measured"], found["sampled_between"]
    if measured is None or not predicted:
        return f"{show(predicted)} -> {show(measured)}"
    ratio = measured / predicted
    text = f"{show(predicted)} -> {show(measured)}, {ratio:.2f}"
    if between is not None:
        text += f" [{show(between[0])} to {show(between[1])}]"
    is_within = abs(ratio - 1.0) <= tolerance or (
        between is not None and is_sampled(found["metric"], measured, between, tolerance)
    )
    return text if is_within else f"**{text}**"
