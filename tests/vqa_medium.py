"""The published visual-question-answering instance as a Problem, straight from its CSV files.

Every worker is its own pool of one. Load is the p75 latency, the cap on utilisation 1, as published.
"""

from __future__ import annotations

import csv
import json

from jellybean_solver import (
    Edge,
    EndToEnd,
    Link,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
)
from tests.support.paths import PUBLISHED

DATA = PUBLISHED / "jellybean"
USD_PER_GIB = 0.1
NAMES = {"ExtractImageFeature": "image_features", "SpeechRecognition": "speech_to_text", "VQA": "answer"}


def vqa_problem(rate_per_s: float = 40.0, accuracy: float | None = 56.0, sharing: Sharing = Sharing.SHARED) -> Problem:
    """The instance at another rate, accuracy target or sharing."""
    low, high = json.loads((DATA / "workers_partition.json").read_text(encoding="utf-8"))
    tier = dict.fromkeys(low, "edge") | dict.fromkeys(high, "cloud")
    short = {name: name.removeprefix("workflow-compute-") for name in tier}
    pools = tuple(Pool(short[name], tier[name], 1, float(price), sharing) for name, price in _rows("workers_specs"))
    latency: dict[str, dict[str, dict[str, float]]] = {}
    for operator, worker, variant, milliseconds in _rows("execution_profile"):
        latency.setdefault(operator, {}).setdefault(variant, {})[short[worker]] = float(milliseconds) / 1e3
    kib = {(up, variant): float(size) for up, _, variant, _, size in _rows("message_sizes")}

    def operator(name: str, *inputs: str) -> Operator:
        variants = tuple(
            Variant(
                variant,
                {pool: {1: ServiceTime(load_s, load_s)} for pool, load_s in loads.items()},
                {"answer": kib.get((name, variant), kib.get((name, "default"), 0.0)) * 1024},
            )
            for variant, loads in latency[name].items()
        )
        return Operator(NAMES[name], tuple(Edge(upstream, NAMES[name]) for upstream in inputs), variants)

    profile = json.loads((DATA / "accuracy_profiles.json").read_text(encoding="utf-8"))["end_to_end"]
    return Problem(
        name="visual-question-answering",
        tiers=("edge", "cloud"),
        sources=(
            Source("image", "edge", rate_per_s, kib["ReadImage", "default"] * 1024),
            Source("speech", "edge", rate_per_s, kib["ReadSpeech", "default"] * 1024),
        ),
        operators=(
            operator("ExtractImageFeature", "image"),
            operator("SpeechRecognition", "speech"),
            operator("VQA", "image_features", "speech_to_text"),
        ),
        pools=pools,
        links=(Link("edge", "cloud", USD_PER_GIB),),
        accuracy=EndToEnd(
            tuple(NAMES[name] for name in profile["operators"]),
            {tuple(row["variants"]): row["accuracy"] for row in profile["accuracy"]},
        ),
        slo=Slo(accuracy=accuracy),
        utilisation=1.0,
    )


def _rows(name: str) -> list[list[str]]:
    with (DATA / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.reader(file) if row]
