"""Predicted and measured figures of the digits example: whole runs on this machine, from a fresh profile."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.display.formats import duration, rate

SETTINGS = ("sources.strip.rate=6/s", "sources.strip.rate=15/s", "slo.accuracy=80", "sources.strip.arrivals=poisson")
DECLARED_RUNS = 3
SHOWN = {"latency_p50_s": duration, "highest_rate_per_s": rate}
AGREEING = ("cost_usd_per_h", "accuracy")
Comparisons = Mapping[str, Mapping[str, Any]]  # by metric: `predicted`, `measured`, `ratio`, `verdict`


@benchmark
def digits_prediction(smoke: bool) -> Result:
    """`jellybean demo` as declared, several times, and once for each other setting."""
    seconds, count = (5, 1) if smoke else (30, DECLARED_RUNS)
    declared = [_run(seconds) for _ in range(count)]
    others = {} if smoke else {setting: _run(seconds, setting) for setting in SETTINGS}
    rows = [[f"as declared: 10/s, accuracy 89 (worst of {count})", *_row(max(declared, key=_deviation))]]
    rows += [[f"`{setting}`", *_row(run)] for setting, run in others.items()]
    runs = [*declared, *others.values()]
    within = sum(all(run[metric]["verdict"] == "within" for metric in AGREEING) for run in runs)
    columns = ("p50 predicted", "measured", "ratio", "highest rate predicted", "measured", "ratio")
    return Result(
        title="digits: predicted and measured",
        topic=Topic.PREDICTION,
        method=f"Whole runs of `jellybean demo`: profile, plan, simulate, {seconds} s of serving here, and a search "
        "for the "
        "highest sustained rate. Slow devices are emulated: the real model runs, then the worker stays busy for as "
        "long as "
        "its profile says ([why](adr/0003-emulated-devices.md)). So the table tests queues, joins, routes, links and "
        "hops, not "
        "the profiler.",
        reference="the simulator's prediction; a ratio is measured over predicted.",
        tables=(Table.of(("setting", *columns), rows),),
        notes=(f"Cost and accuracy are within tolerance of the prediction in {within} of {len(runs)} runs.",),
    )


def _row(run: Comparisons) -> list[str]:
    return [cell for metric in SHOWN for cell in _cells(metric, run)]


def _cells(metric: str, run: Comparisons) -> tuple[str, str, str]:
    show, ratio = SHOWN[metric], run[metric]["ratio"]
    return show(run[metric]["predicted"]), show(run[metric]["measured"]), "" if ratio is None else f"{ratio:.2f}"


def _deviation(run: Comparisons) -> float:
    """The largest deviation of a shown figure from its prediction."""
    return max(abs(float(run[metric]["ratio"] or 1.0) - 1.0) for metric in SHOWN)


def _run(seconds: int, setting: str | None = None) -> Comparisons:
    overrides = ("--set", setting) if setting else ()
    with tempfile.TemporaryDirectory() as folder:
        project = str(Path(folder) / "digits")
        _jellybean("demo", project, "--duration", str(seconds), *overrides)
        report = json.loads(_jellybean("report", project, "--json"))
    return {comparison["metric"]: comparison for comparison in report["comparisons"]}


def _jellybean(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "jellybean", *arguments], check=True, capture_output=True, text=True)
    return done.stdout
