"""A small project with two pools of one kind of machine: its CPU, and another device of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.support.tiny_models import save

WORKFLOW = """\
kind: Workflow
name: rows
sources:
  x: {tier: here, rate: 20/s, message: 256 B, inputs: data/heldout.npz#x}
operators:
  net:
    inputs: [x]
    variants: {dense: {model: models/net.onnx, sha256: NET}}
labels: data/heldout.npz#labels
metric: top1
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [here]
workers:
  plain: {tier: here, count: 1, price: 0.2 USD/h, speed: 1}
  other: {tier: here, count: 1, price: 0.1 USD/h, speed: 1, device: DEVICE}
"""
SIZE, CLASSES = 64, 8


def make_device_project(folder: Path, device: str) -> Path:
    """Write the project's files, without profiles; `other` is the cheaper pool."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(SIZE, 4 * SIZE)).astype(np.float32)
    second = rng.normal(size=(4 * SIZE, CLASSES)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "b"], ["y"]),
    ]
    digest = save(folder / "models/net.onnx", nodes, {"x": ["n", SIZE]}, ("y", ["n", CLASSES]), a=first, b=second)
    (folder / "data").mkdir()
    rows = rng.normal(size=(64, SIZE)).astype(np.float32)
    labels = np.argmax(np.tanh(rows @ first) @ second, axis=1)
    np.savez(folder / "data/heldout.npz", x=rows, labels=labels)
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("NET", digest), encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE.replace("DEVICE", device), encoding="utf-8")
    return folder
