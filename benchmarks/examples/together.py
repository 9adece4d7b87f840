"""Digits and ocr served on one fleet: each beside its prediction, what both cost, and what a flood of one does."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.examples.ocr import ALLOW
from benchmarks.harness.commands import cell, jellybean
from benchmarks.harness.registry import BenchmarkError, benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.display.formats import duration, rate, usd

WORKFLOWS = ("digits", "ocr")
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  camera-box: {tier: edge, count: 4, price: 0.05 USD/h, memory: 1 GiB, speed: 0.1}
  hub: {tier: edge, count: 1, price: 0.60 USD/h, memory: 4 GiB, speed: 0.2}
  cloud: {tier: cloud, count: 4, price: 0.40 USD/h, memory: 8 GiB, speed: 0.3}
links:
  - {from: edge, to: cloud, price: 0.50 USD/GiB, bandwidth: 50 Mbit/s, latency: 20 ms}
limits: {utilisation: 0.6, batch: 1}
"""
VARIANTS = ("v4-480", "v4-640", "v6-int8-480", "v6-int8-640", "v6", "v6-int8")  # of ocr's 16, to be profiled sooner
FLOOD = 10
_UP_AND_DOWN = ("up", "down")
METRICS = {"throughput_per_s": (rate, 0.05), "latency_p50_s": (duration, 0.15), "latency_p99_s": (duration, 0.30)}
HEADINGS = ("workflow", "throughput", "p50 latency", "p99 latency", "USD/h")


@benchmark
def served_together(smoke: bool) -> Result:
    """Digits and ocr on one fleet: each at its rate, and each while the other gets ten times its own."""
    missing = [name for name in ("rapidocr", "rapidocr_onnxruntime", "cv2") if importlib.util.find_spec(name) is None]
    if missing:
        raise BenchmarkError(f"{', '.join(missing)} not installed: pip install 'jellybean-serving[ocr]'")
    seconds = "5" if smoke else "60"
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "both"
        _make(project, smoke=smoke)
        told = json.loads(jellybean("plan", str(project), "--json"))
        jellybean("simulate", str(project))
        alone = {own: _cost(project / "workflows" / own) for own in WORKFLOWS}
        jellybean("up", str(project), "--detach", *ALLOW)
        try:
            jellybean("bench", str(project), "--duration", seconds, may_fail=True)
        finally:
            jellybean("down", str(project))
        paid = json.loads(jellybean("cost", str(project), "--by", "workflow", "--json"))
        hours = _hours(project)
        report = json.loads(jellybean("report", str(project), "--json"))
        floods = list(_floods(project, seconds))
    planned = {
        own["name"]: own["cost"]["compute_usd_per_h"] + own["cost"]["network_usd_per_h"] for own in report["workflows"]
    }
    total = told["cost_usd_per_h"]["total"]
    rows = list(_rows(report, planned, {line["workflow"]: line["usd"] / hours for line in paid["lines"]}))
    return Result(
        title="Two workflows served on one fleet",
        topic=Topic.PREDICTION,
        method="digits at 10/s and ocr at 1/s (four of its detectors, two of its recognisers) on nine workers of three "
        f"kinds, profiled, planned together and served by one gateway for {seconds} s; then each while the other is "
        f"offered {FLOOD} times its rate.",
        reference="the simulator's prediction of both together; the cost in the ledger beside the plan's; each planned "
        "alone on the same fleet.",
        tables=(
            Table.of(HEADINGS, rows, "Served"),
            Table.of(("workflow", "neighbour", "sent", "answered", "p99", "target"), floods, "Flooded"),
        ),
        notes=(
            f"Together they cost {usd(total)} USD/h, alone {' and '.join(usd(cost) for cost in alone.values())}: "
            f"{1 - total / sum(alone.values()):.0%} less.",
        ),
    )  # fmt: skip


def _make(project: Path, *, smoke: bool) -> None:
    """Both examples' workflows on one fleet, profiled here."""
    (project / "workflows").mkdir(parents=True)
    for name in WORKFLOWS:
        folder = project / "workflows" / name
        jellybean("init", name, str(folder))
        (folder / "infrastructure.yaml").unlink()
    (project / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    file = project / "workflows" / "digits" / "workflow.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace(", budget: 1.50 USD/h", ""), encoding="utf-8")
    file = project / "workflows" / "ocr" / "workflow.yaml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if _variant_of(line) in ("", *VARIANTS)]
    file.write_text("".join(kept), encoding="utf-8")
    fresh = ("--seconds", "0.05") if smoke else ()
    jellybean("profile", str(project), "--fresh", *ALLOW, *fresh)


def _variant_of(line: str) -> str:
    """The variant of detect or recognise that a line of ocr's workflow.yaml states; empty for other lines."""
    found = re.match(r"\s+(\S+): \{model: models/(detect|recognise)-", line)
    return "" if found is None else found[1]


def _cost(folder: Path) -> float:
    """USD per hour of a workflow that has the fleet to itself."""
    told = json.loads(jellybean("plan", str(folder), "--dry-run", "--json"))
    return float(told["cost_usd_per_h"]["total"])


def _hours(project: Path) -> float:
    """How long the plan was served, by the ledger's events."""
    events = [
        entry for entry in json.loads(jellybean("history", str(project), "--json")) if entry["what"] in _UP_AND_DOWN
    ]
    return float(events[-1]["at_unix_s"] - events[-2]["at_unix_s"]) / 3600.0


def _rows(report: Mapping[str, Any], planned: Mapping[str, float], paid: Mapping[str, float]) -> Iterator[list[str]]:
    for own in report["workflows"]:
        found = {one["metric"]: one for one in own["comparisons"]}
        name = own["name"]
        cells = [cell(found[key], show, tolerance) for key, (show, tolerance) in METRICS.items()]
        yield [name, *cells, f"{usd(planned[name])} -> {usd(paid[name])} ({paid[name] / planned[name]:.3f})"]


def _floods(project: Path, seconds: str) -> Iterator[list[str]]:
    """Each workflow at its rate while the other is offered ten times its own."""
    jellybean("up", str(project), "--detach", *ALLOW)
    try:
        for flooded, other in (WORKFLOWS, WORKFLOWS[::-1]):
            scale = ("--rate-scale", f"{flooded}={FLOOD}")
            told = json.loads(jellybean("bench", str(project), "--duration", seconds, "--json", *scale, may_fail=True))
            own = told["workflows"][other]
            target = {"digits": 3.0, "ocr": 20.0}[other]
            counts = [f"{own[key]:,}" for key in ("offered", "completed")]
            yield [other, f"{flooded} x {FLOOD}", *counts, duration(own["latency_p99_s"]), duration(target)]
    finally:
        jellybean("down", str(project))
