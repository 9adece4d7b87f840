"""Predicted and measured figures of the ocr example: pretrained models, whose times vary with the picture."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.commands import cell, jellybean
from benchmarks.harness.registry import BenchmarkError, benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.display.formats import accuracy, duration, rate, usd

STEPS = ("decode", "cut_lines", "thumbnail", "turn", "spell", "join")
ALLOW = tuple(option for step in STEPS for option in ("--allow-python", f"ocr_steps:{step}"))
RATES, ACCURACIES = ("1", "2", "4"), ("78", "88", "92")
SERVED = (("1", "88", 0), ("2", "88", 0), ("2", "92", 0), ("2", "92", 1))  # rate, accuracy, seed of the arrivals
FIRST_SEED, SECOND_SEED, HELD_OUT = "1", "2", "60"
SERVED_AGAIN = (("1", "88", 1), ("1", "90", 0), ("2", "90", 0))  # of the second pictures, on which no plan reaches 92
METRICS = {
    "throughput_per_s": (rate, 0.05),
    "latency_p50_s": (duration, 0.15),
    "latency_p90_s": (duration, 0.20),
    "latency_p99_s": (duration, 0.30),
    "highest_rate_per_s": (rate, 0.10),
}
Run = Mapping[str, Mapping[str, Any]]  # by metric: a comparison of `report --json`


@benchmark
def ocr_prediction(smoke: bool) -> Result:
    """Plans of the ocr example at three rates and accuracies; some served for a minute."""
    return _predicted(smoke, "ocr: predicted and measured", FIRST_SEED, SERVED[:1] if smoke else SERVED)


@benchmark
def ocr_other_pictures(smoke: bool) -> Result:
    """The same with other pictures, on which everything is profiled anew."""
    served = SERVED_AGAIN[:1] if smoke else SERVED_AGAIN
    return _predicted(smoke, "ocr: predicted and measured with other pictures", SECOND_SEED, served)


def _predicted(smoke: bool, title: str, pictures: str, served: Sequence[tuple[str, str, int]]) -> Result:
    missing = [name for name in ("rapidocr", "rapidocr_onnxruntime", "cv2") if importlib.util.find_spec(name) is None]
    if missing:
        raise BenchmarkError(f"{', '.join(missing)} not installed: pip install 'jellybean-serving[ocr]'")
    seconds = "5" if smoke else "60"
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "ocr"
        jellybean("init", "ocr", str(project))
        if smoke or pictures != FIRST_SEED:
            _make_pictures(project, count="4" if smoke else HELD_OUT, seed=pictures)
        jellybean("profile", str(project), *ALLOW, *(("--seconds", "0.05") if smoke else ()))
        plans = [_planned(project, per_s, least) for per_s in RATES for least in ACCURACIES]
        rows = list(_served(project, served, seconds, pictures))
    columns = ("pictures, rate, accuracy, arrivals", *(key.removesuffix("_s").replace("_", " ") for key in METRICS))
    within = sum(cell.endswith("**") for row in rows for cell in row)
    return Result(
        title=title,
        topic=Topic.PREDICTION,
        method=f"`jellybean init ocr` (60 pictures, seed {pictures}), `profile`, nine plans; of these some are served "
        f"for {seconds} s by real processes here and then saturated; slow devices are emulated "
        "([why](adr/0003-emulated-devices.md)).",
        reference="the simulator's prediction. A cell is predicted -> measured, their ratio, and in brackets what "
        "simulations of the very arrivals of the run, or of such a search, give, least to greatest: a minute is short. "
        "On an emulated device every run takes the mean, in the prediction each takes its time, as on a real one: so "
        "p50 is above the prediction and p99 below.",
        tables=(
            Table.of(("rate, accuracy", "cost", "accuracy", "variants", "where"), plans, "Plans"),
            Table.of((*columns, "accuracy"), rows, "Served"),
        ),
        notes=(
            f"{within} figures lie outside both their tolerance (throughput 5 %, p50 15 %, p90 20 %, p99 30 %, highest "
            "rate 10 %, accuracy 1 point) and the range of these simulations, of the throughput with its tolerance; "
            "they are bold.",
        ),
    )


def _planned(project: Path, per_s: str, least: str) -> list[str]:
    name = f"{per_s}/s, {least} %"
    plan = json.loads(jellybean("plan", str(project), "--dry-run", "--json", *_options(per_s, least), may_fail=True))
    if plan["status"] == "infeasible":
        return [name, "infeasible", "", "", ""]
    variants = ", ".join(plan["selection"][operator] for operator in ("detect", "recognise"))
    counts: dict[str, int] = {}
    for place in plan["placements"]:
        counts[place["pool"]] = max(counts.get(place["pool"], 0), place["count"])
    places = ", ".join(f"{count} {pool}" for pool, count in sorted(counts.items()))
    return [name, f"{usd(plan['cost_usd_per_h']['total'])} USD/h", accuracy(plan["accuracy"]), variants, places]


def _served(
    project: Path, settings: Sequence[tuple[str, str, int]], seconds: str, pictures: str
) -> Iterator[list[str]]:
    """A row for each plan that is served, measured at its rate and then for its highest one."""
    for number, (per_s, least, seed) in enumerate(settings):
        name = f"seed {pictures}, {per_s}/s, {least} %, {seed}"
        told = json.loads(jellybean("plan", str(project), "--json", *_options(per_s, least), may_fail=True))
        if told["status"] == "infeasible":
            yield [name, *("infeasible" for _ in METRICS), ""]
            continue
        jellybean("simulate", str(project), *_options(per_s, least))
        jellybean("up", str(project), "--detach", *_options(per_s, least), *ALLOW)
        try:
            jellybean("bench", str(project), "--duration", seconds, "--seed", str(seed), may_fail=True)
            if (per_s, least) not in [(rate, accuracy) for rate, accuracy, _ in settings[:number]]:
                jellybean("bench", str(project), "--saturate", may_fail=True)
        finally:
            jellybean("down", str(project))
        report = json.loads(jellybean("report", str(project), "--json", *_options(per_s, least)))
        run = {comparison["metric"]: comparison for comparison in report["comparisons"]}
        row = [
            name,
            *(cell(run[key], show, tolerance) for key, (show, tolerance) in METRICS.items()),
            _accuracy_cell(run["accuracy"]),
        ]
        print(" | ".join(row), file=sys.stderr, flush=True)  # the whole run takes hours
        yield row


def _accuracy_cell(found: Mapping[str, Any]) -> str:
    text = f"{accuracy(found['predicted'])} -> {accuracy(found['measured'])}"
    return text if abs(found["measured"] - found["predicted"]) <= 1.0 else f"**{text}**"


def _options(per_s: str, least: str) -> tuple[str, ...]:
    return ("--set", f"sources.picture.rate={per_s}/s", "--set", f"slo.accuracy={least}")


def _make_pictures(project: Path, *, count: str, seed: str) -> None:
    make = (sys.executable, str(project / "make.py"), "--only", "pictures", "--count", count, "--seed", seed)
    subprocess.run(make, check=True, capture_output=True)
