"""Loki's traffic pipeline served by emulated devices at a twentieth of the rates, beside the simulator's figures."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from benchmarks.harness.commands import cell, jellybean
from benchmarks.harness.registry import BenchmarkError, benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.mixed_variants import FOLDER
from jellybean.display.formats import accuracy, duration, percent, rate
from jellybean.serving.client import Client
from jellybean.serving.run_state import read_state
from jellybean.serving.top.top import parse

SLOWER = 20  # times are as many times longer than published, rates as many times lower
RATES = (100, 200, 400, 800)  # of the published pipeline
ALLOW = ("--allow-python", "loki_steps:detect", "--allow-python", "loki_steps:classify")
METRICS = {
    "throughput_per_s": (rate, 0.05),
    "latency_p50_s": (duration, 0.15),
    "latency_p90_s": (duration, 0.20),
    "latency_p99_s": (duration, 0.30),
}
STEPS = '''\
"""What the published models would give: so many objects a frame, and an answer for each."""
import numpy as np
from jellybean_agent.steps import step

@step(
    inputs={"frame": ("float32", (-1, 1))},
    outputs={
        "cars": ("float32", (-1, 1)),
        "persons": ("float32", (-1, 1)),
        "car_counts": ("int64", (-1,)),
        "person_counts": ("int64", (-1,)),
    },
)
def detect(inputs, *, cars: float, persons: float):
    levels = inputs["frame"][:, 0]  # the same for both, as in the simulator
    counts = [(int(mean) + (levels < mean % 1)).astype(np.int64) for mean in (cars, persons)]
    found = [np.zeros((int(own.sum()), 1), np.float32) for own in counts]
    return {"cars": found[0], "persons": found[1], "car_counts": counts[0], "person_counts": counts[1]}

@step(inputs={"found": ("float32", (-1, 1))}, outputs={"answer": ("float32", (-1, 1))})
def classify(inputs):
    return {"answer": inputs["found"] + 1}
'''


@benchmark
def mixed_served(smoke: bool) -> Result:
    """The plans of `mixed_variants`, served by 20 agents on emulated devices that are 20 times slower."""
    folder = os.environ.get(FOLDER)
    if not folder:
        raise BenchmarkError(f"{FOLDER} names no folder: see the benchmark mixed_variants")
    seconds = "20" if smoke else "120"
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "loki"
        _make(Path(folder), project)
        rows = [_row(project, at, seconds) for at in (RATES[:1] if smoke else RATES)]
    return Result(
        title="Mixed variants: Loki's traffic pipeline served by emulated devices",
        topic=Topic.PREDICTION,
        method=f"20 agents on one machine, times {SLOWER} times the published ones and rates as many times lower, so "
        f"that all workers are as busy; p99 within {250 * SLOWER / 1000:g} s; {seconds} s of Poisson arrivals. "
        "Steps give as many objects as were published; nothing is seen.",
        reference="the simulator's prediction. A cell is predicted -> measured, their ratio, and in brackets what "
        "simulations of the very arrivals of the run give, least to greatest.",
        tables=(Table.of(("frames", "mean accuracy", "variants (workers)", *_HEADINGS, "children by variant"), rows),),
        notes=("Bold: outside of the tolerance (throughput 5 %, p50 15 %, p90 20 %, p99 30 %) and of that range.",),
    )


_HEADINGS = tuple(key.removesuffix("_s").replace("_", " ") for key in METRICS)


def _make(published: Path, project: Path) -> None:
    """The published documents with steps in place of models, longer times, and one random number per frame as input."""
    yaml = YAML(typ="safe", pure=True)
    workflow, fleet = (
        yaml.load((published / f"{name}.yaml").read_text(encoding="utf-8")) for name in ("workflow", "infrastructure")
    )
    (project / "data").mkdir(parents=True)
    (project / "loki_steps.py").write_text(STEPS, encoding="utf-8")
    np.savez(project / "data/heldout.npz", frames=np.random.default_rng(0).random((997, 1), np.float32))
    ratios = {name: workflow["operators"][name]["inputs"][0]["ratio"] for name in ("cars", "faces")}
    for name, spec in workflow["operators"].items():
        spec["variants"] = {
            variant: _detector(ratios["cars"][variant], ratios["faces"][variant])
            if name == "detect"
            else {"python": "loki_steps:classify"}
            for variant in spec["variants"]
        }
    workflow["sources"]["frame"] |= {"inputs": "data/heldout.npz#frames", "message": "4 B"}
    workflow |= {"slo": {"latency_p99": f"{250 * SLOWER} ms"}, "objective": "mean_accuracy"}
    for pool in fleet["workers"].values():
        pool["speed"] = 0.5  # emulated: a worker is busy as long as the profile says
    fleet["limits"]["utilisation"] = "auto"
    head, operators, rest = (published / "profiles.yaml").read_text(encoding="utf-8").partition("\noperators:")
    slower = re.sub(r"(\d+(?:\.\d+)?) ms", _slower, rest)  # but for the hop before, which is real
    (project / "profiles.yaml").write_text(head + operators + slower, encoding="utf-8")
    for name, document in (("workflow", workflow), ("infrastructure", fleet)):
        (project / f"{name}.yaml").write_text(json.dumps(document), encoding="utf-8")


def _detector(cars: float, persons: float) -> dict[str, Any]:
    rows = {"cars": "car_counts", "persons": "person_counts"}
    return {"python": "loki_steps:detect", "with": {"cars": cars, "persons": persons}, "rows": rows}


def _slower(found: re.Match[str]) -> str:
    return f"{SLOWER * float(found[1]):g} ms"


def _row(project: Path, at: int, seconds: str) -> list[str]:
    options = ("--set", f"sources.frame.rate={at / SLOWER:g}/s")
    plan = json.loads(jellybean("plan", str(project), "--json", *options))
    jellybean("simulate", str(project), *options)
    jellybean("up", str(project), "--detach", *options, *ALLOW)
    try:
        jellybean("bench", str(project), "--duration", seconds, may_fail=True)
        counts = _children(project)
    finally:
        jellybean("down", str(project))
    report = json.loads(jellybean("report", str(project), "--json", *options))
    run = {comparison["metric"]: comparison for comparison in report["comparisons"]}
    row = [
        f"{at / SLOWER:g}/s",
        accuracy(plan["accuracy"]),
        ", ".join(f"{place['variant']} ({place['count']})" for place in plan["placements"]),
        *(cell(run[key], show, tolerance) for key, (show, tolerance) in METRICS.items()),
        "; ".join(_shares(plan, counts)),
    ]
    print(" | ".join(row), file=sys.stderr, flush=True)
    return row


def _children(project: Path) -> Counter[tuple[str, str]]:
    """(operator, variant) -> requests that were completed."""
    state = read_state(project)
    if state is None:
        raise BenchmarkError("the run is gone")
    gateway = next(process.address for process in state.processes if process.name == "gateway")
    with Client(gateway) as owner:
        found = parse(owner.metrics())["jellybean_requests_total"]
    counts: Counter[tuple[str, str]] = Counter()
    for labels, value in found.items():
        told = dict(labels)
        counts[told["operator"], told["variant"]] += int(value)
    return counts


def _shares(plan: Mapping[str, Any], counts: Counter[tuple[str, str]]) -> Iterator[str]:
    """`efficientnet-b5 24 % -> 24 %`: planned and measured share of an operator's requests, where variants mix."""
    for operator in dict.fromkeys(place["operator"] for place in plan["placements"]):
        own = [place for place in plan["placements"] if place["operator"] == operator]
        total = sum(place["rate_per_s"] for place in own)
        done = sum(counts[operator, place["variant"]] for place in own)
        for place in own if len(own) > 1 else ():
            measured = counts[operator, place["variant"]] / max(1, done)
            yield f"{place['variant']} {percent(place['rate_per_s'] / total)} -> {percent(measured)}"
