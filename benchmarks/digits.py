"""Predicted beside measured on the digits example, served here: repeated whole runs, medians and the worst ratio."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.registry import benchmark, print_table

FIGURES = {
    "accuracy": "accuracy %",
    "latency_p50_s": "latency p50 s",
    "latency_p99_s": "latency p99 s",
    "highest_rate_per_s": "highest sustained rate /s",
}


@benchmark
def digits_prediction(smoke: bool) -> None:
    """The whole main job, `runs` times from a fresh profile."""
    runs, seconds = (1, 5) if smoke else (3, 30)
    reports = [_run(seconds) for _ in range(runs)]
    rows = []
    for key, label in FIGURES.items():
        compared = [next(c for c in report["comparisons"] if c["metric"] == key) for report in reports]
        known = [(c["predicted"], c["measured"]) for c in compared if c["predicted"] and c["measured"]]
        ratios = [predicted / measured for predicted, measured in known]
        if not ratios:
            continue
        worst = max(ratios, key=lambda ratio: abs(ratio - 1))
        predicted, measured = (statistics.median(column) for column in zip(*known, strict=True))
        rows.append([label, f"{predicted:.4g}", f"{measured:.4g}", f"{statistics.median(ratios):.3f}", f"{worst:.3f}"])
    print_table(
        f"digits: predicted beside measured, {runs} whole runs, {seconds} s of load each",
        ["figure", "predicted", "measured", "ratio (median)", "ratio (worst)"],
        rows,
    )


def _run(seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        project = str(Path(folder) / "digits")
        _jellybean("demo", project, "--duration", str(seconds))
        found: dict[str, Any] = json.loads(_jellybean("report", project, "--json"))
        return found


def _jellybean(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "jellybean", *arguments], check=True, capture_output=True, text=True)
    return done.stdout
