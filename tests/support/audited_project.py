"""A small audited project of two classifiers whose errors are known: requests say how hard they are, from 0 to 1.

A model answers a request rightly if that is below its accuracy, else with class 0, which is never right. So the better
model is right wherever the other one is, and their answers differ by as much as their accuracies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.support.tiny_models import save

CLASSES = 10
ROWS = 1000
RATE_PER_S = 400.0
LARGE, SMALL, POINTS_WORSE = 0.98, 0.975, 0.05

WORKFLOW = """\
kind: Workflow
name: audited
sources:
  x: {tier: edge, rate: RATE/s, message: 44 B, arrivals: periodic, inputs: data/heldout.npz#x}
operators:
  classify:
    inputs: [x]
    variants:
      small: {model: models/small.onnx, sha256: SMALL}
      large: {model: models/large.onnx, sha256: LARGE}
labels: data/heldout.npz#labels
metric: top1
slo: {accuracy: 97, audit: SHARE %}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 1, price: 0.1 USD/h}
  server: {tier: cloud, count: 2, price: 0.2 USD/h}
links:
  - {from: edge, to: cloud, price: 1 USD/GiB}
"""
PROFILES = """\
kind: Profiles
operators:
  classify:
    small: {message: 40 B, latency: {box: 0.5 ms}}
    large: {message: 40 B, latency: {server: 3 ms}}
accuracy:
  end_to_end:
    - {selection: {classify: small}, accuracy: 97.5, agreement: 99.5}
    - {selection: {classify: large}, accuracy: 98, agreement: 100}
  reference: {classify: large}
  requests: 1000
"""


def make_audited_project(folder: Path, *, share_percent: float = 5.0, served: float = SMALL) -> Path:
    """Write the project's files. `served`: true accuracy of the model `small`, which the profiles say is `SMALL`."""
    hashes = {"SMALL": classifier(folder / "models/small.onnx", served)}
    hashes["LARGE"] = classifier(folder / "models/large.onnx", LARGE)
    rows, labels = requests(ROWS, seed=0)
    (folder / "data").mkdir(parents=True)
    np.savez(folder / "data/heldout.npz", x=rows, labels=labels)
    text = WORKFLOW.replace("SHARE", f"{share_percent:g}").replace("RATE", f"{RATE_PER_S:g}")
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    for name, content in (("workflow", text), ("infrastructure", INFRASTRUCTURE), ("profiles", PROFILES)):
        (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
    return folder


def classifier(path: Path, accuracy: float) -> str:
    """A model that is right on this share of the requests, [1, 11] to scores [1, 10]; its sha256."""
    weights = np.vstack([np.eye(CLASSES), np.zeros((1, CLASSES))]).astype(np.float32)
    weights[CLASSES, 0] = 1.0 / accuracy
    node = helper.make_node("MatMul", ["x", "weights"], ["y"])
    return save(path, [node], {"x": ["n", CLASSES + 1]}, ("y", ["n", CLASSES]), weights=weights)


def requests(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Requests as rows, the hard ones evenly among the easy, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, CLASSES, count)
    rows = np.zeros((count, CLASSES + 1), np.float32)
    rows[np.arange(count), labels] = 1.0
    rows[:, CLASSES] = rng.permutation((np.arange(count) + 0.5) / count)
    return rows, labels
