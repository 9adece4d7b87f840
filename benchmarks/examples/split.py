"""Predicted and measured figures of the split example: a model cut in two, beside plans of whole models."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.commands import jellybean
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.display.formats import duration, rate, usd

SERVED_S = 20
UNCUT = ("--set", "operators.read.cuts=0")
PLANS = {
    "a model cut in two": (),
    "the cheapest of whole models": UNCUT,
    "whole, all in the cloud": (*UNCUT, "--set", "operators.read.tiers=[cloud]"),
}
METRICS = {
    "throughput_per_s": ("throughput", rate),
    "latency_p50_s": ("p50", duration),
    "latency_p99_s": ("p99", duration),
    "highest_rate_per_s": ("highest rate", rate),
}


@benchmark
def split(smoke: bool) -> Result:
    """`examples/split`, profiled; three plans, each served at its rate and then for its highest one."""
    seconds = 5 if smoke else SERVED_S
    with tempfile.TemporaryDirectory() as name:
        project = str(Path(name) / "split")
        jellybean("init", "split", project)
        jellybean("profile", project, *(("--seconds", "0.05") if smoke else ()))
        plans = dict(list(PLANS.items())[:1]) if smoke else PLANS
        rows = [row for plan, options in plans.items() for row in _served(project, plan, options, seconds)]
    return Result(
        title="split: a model cut in two beside whole models",
        topic=Topic.PREDICTION,
        method=f"`examples/split`: 20 pictures/s, accuracy 93. Each plan is served for {seconds} s at its rate, then "
        "saturated; slow devices are emulated ([why](adr/0003-emulated-devices.md)).",
        reference="plans of whole models, and the simulator's prediction; a ratio is measured over predicted.",
        tables=(Table.of(("plan", "USD/h", "figure", "predicted", "measured", "ratio"), rows),),
    )


def _served(project: str, plan: str, options: tuple[str, ...], seconds: int) -> Iterator[list[str]]:
    """A row for each figure of a plan; the first has the plan's name and cost."""
    plan_document = json.loads(jellybean("plan", project, "--json", *options))
    jellybean("simulate", project, *options)
    jellybean("up", project, "--detach", *options)
    try:
        jellybean("bench", project, "--duration", str(seconds), may_fail=True)
        jellybean("bench", project, "--saturate", may_fail=True)
    finally:
        jellybean("down", project)
    report = json.loads(jellybean("report", project, "--json", *options))
    comparisons = {comparison["metric"]: comparison for comparison in report["comparisons"]}
    name = [plan, usd(plan_document["cost_usd_per_h"]["total"])]
    for metric in METRICS:
        yield [*name, *_cells(metric, comparisons[metric])]
        name = ["", ""]


def _cells(metric: str, comparison: Mapping[str, Any]) -> list[str]:
    title, show = METRICS[metric]
    ratio = comparison["ratio"]
    return [title, show(comparison["predicted"]), show(comparison["measured"]), "" if ratio is None else f"{ratio:.2f}"]
