"""Three tiny workflows on shared workers, for deployments of which one box is compromised.

alpha joins two branches and beta answers by the children of a fan-out, both on edge-1 and cloud-1. One input of gamma's
join, which cloud-1 runs too, comes from edge-2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jellybean_protos import plan_format
from tests.support.tiny_models import difference, fan_out, make_plan, positives, scale

WORKFLOWS = ("alpha", "beta", "gamma")
WORKERS = ("edge-1", "edge-2", "cloud-1")


def three_workflows(root: Path) -> dict[str, Any]:
    """The plan's document; its models are in the folder `root`."""
    models = root / "models"
    operators: dict[str, Any] = {
        "beta/split": (["beta/y"], positives(models / "beta/split.onnx")),
        "beta/each": ([fan_out("beta/split", "beta/each")], scale(models / "beta/each.onnx", 10.0, 1)),
    }
    route = {"beta/split": "edge-1", "beta/each": "cloud-1"}
    for name, right in (("alpha", "edge-1"), ("gamma", "edge-2")):
        left_of, right_of = f"{name}/left", f"{name}/right"
        operators |= {
            left_of: ([f"{name}/x"], scale(models / f"{left_of}.onnx", 2.0)),
            right_of: ([f"{name}/x"], scale(models / f"{right_of}.onnx", 5.0)),
            f"{name}/join": ([left_of, right_of], difference(models / f"{name}/join.onnx", right_of, left_of)),
        }
        route |= {left_of: "edge-1", right_of: right, f"{name}/join": "cloud-1"}
    sources = {"alpha/x": "edge", "beta/y": "edge", "gamma/x": "edge"}
    document = json.loads(json.dumps(make_plan(root, operators, [(1.0, route)], sources=sources)))
    (whole,) = document["routes"]
    document["routes"] = [{**whole, "workers": _own(whole["workers"], name)} for name in WORKFLOWS]
    shared = {key: document[key] for key in ("slo", "cost", "accuracy")}
    document["workflows"] = [{"name": name, **shared} for name in WORKFLOWS]
    return plan_format.with_header({key: document[key] for key in document if key not in plan_format.HEADER_KEYS})


def _own(table: dict[str, str], workflow: str) -> dict[str, str]:
    return {name: worker for name, worker in table.items() if name.startswith(f"{workflow}/")}
