"""A small project with a Python step, a fan-out, a gather, a join by position and a cut, and with true provenance."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from jellybean.documents import (
    AccuracyProfile,
    BatchProfile,
    CutProfile,
    CutsOrigin,
    DocumentProvenance,
    MeasuredSelection,
    Origin,
    ProfileRun,
    ProfilesDocument,
    StageProfile,
    VariantProfile,
    VariantProvenance,
    load_project,
    write_profiles,
)
from jellybean.documents.checks.files import sha256_of
from jellybean_agent import this_machine
from tests.support.tiny_models import difference, save, scale, total

MODULE = "measured_steps"
STEPS = """\
from jellybean_agent.steps import step


@step(inputs={"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1, 4))})
def enlarge(inputs, *, factor: float = 1.0):
    return {"y": inputs["x"] * 2 * factor}
"""
WORKFLOW = """\
kind: Workflow
name: gate
sources:
  left: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#left}
  right: {tier: edge, rate: 2/s, message: 16 B, inputs: data/heldout.npz#right}
operators:
  prepare:
    inputs: [left]
    variants: {double: {python: "measured_steps:enlarge", with: {factor: 1.5}}}
  split:
    inputs: [prepare]
    variants:
      few: {model: models/few.onnx, sha256: FEW}
      many: {model: models/many.onnx, sha256: MANY}
  sum:
    inputs: [{from: split, ratio: 2, gather: false}]
    variants: {net: {model: models/sum.onnx, sha256: SUM}}
  all:
    inputs: [{from: sum, gather: true}]
    variants: {net: {model: models/all.onnx, sha256: ALL}}
  compare:
    inputs: [left, right]
    cuts: 1
    variants: {net: {model: models/compare.onnx, sha256: COMPARE}}
labels: data/heldout.npz#labels
labels_of: all
metric: exact_match
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 2, price: 0.05 USD/h, speed: 0.5}
  gpu: {tier: cloud, count: 1, price: 0.50 USD/h, type: t4, speed: 1}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB, latency: 20 ms}
"""


def positives_above(path: Path, threshold: float) -> str:
    """The values of [1, 4] above a threshold, and the others, each as [n, 1]; its sha256."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["v"]),
        helper.make_node("Greater", ["v", "least"], ["keep"]),
        helper.make_node("Compress", ["v", "keep"], ["kept"], axis=0),
        helper.make_node("Reshape", ["kept", "column"], ["y"]),
    ]
    constants = {
        "flat": np.array([-1], np.int64),
        "column": np.array([-1, 1], np.int64),
        "least": np.float32(threshold),
    }
    return save(path, nodes, {"x": [1, 4]}, ("y", ["n", 1]), **constants)


def make_project(folder: Path) -> Path:
    """Write the project's files, and profiles as a run on this machine with today's content would record them."""
    models, stages = folder / "models", folder / "models" / "stages"
    stages.mkdir(parents=True)
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(6, 4)).astype(np.float32) for name in ("left", "right")}
    np.savez(folder / "data/heldout.npz", **arrays, labels=np.arange(6))
    hashes = {
        "FEW": positives_above(models / "few.onnx", 1.0),
        "MANY": positives_above(models / "many.onnx", 0.0),
        "SUM": scale(models / "sum.onnx", 2.0, 1),
        "ALL": total(models / "all.onnx"),
        "COMPARE": difference(models / "compare.onnx", "a", "b"),
    }
    for side in ("head", "tail"):
        scale(stages / f"compare.net.1.{side}.onnx", 1.0)
    text = WORKFLOW.replace(", gather: false", "")
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    write_profiles(folder / "profiles.yaml", measured_profiles(folder, [{"split": name} for name in ("few", "many")]))
    return folder


def make_project_beside_steps(folder: Path) -> Path:
    """The project in `folder`/gate, with the module of its step in `folder`, which is importable only meanwhile."""
    (folder / f"{MODULE}.py").write_text(STEPS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return make_project(folder / "gate")


def copied_project(project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project in `folder`; the module of its step is importable during the test."""
    monkeypatch.syspath_prepend(str(project.parent))
    return Path(shutil.copytree(project, folder / project.name))


def measured_profiles(folder: Path, selections: Sequence[dict[str, str]]) -> ProfilesDocument:
    """Profiles of the project with made-up times and the provenance of a run of now."""
    project = load_project(folder, profiles=False)
    content, machine = project.content, this_machine()
    assert content is not None
    facts = {name: getattr(machine, name) for name in ("cpu", "cores", "system", "onnxruntime", "threads")}
    speeds = {name: speed for name, speed in content.speeds.items() if speed is not None}
    latency = {name: {1: BatchProfile(mean=1e-3 / speed)} for name, speed in speeds.items()}

    def origins(model: str | None) -> dict[str, Origin]:
        return {name: Origin(model=model, speed=speed, run=1) for name, speed in speeds.items()}

    operators: dict[str, dict[str, VariantProfile]] = {}
    allowed = content.cuts
    for operator, variants in content.measured.models.items():
        for variant, digest in variants.items():
            cuts = _cuts(folder, latency, origins(None)) if allowed[operator, variant] else None
            operators.setdefault(operator, {})[variant] = VariantProfile(
                message={"*": 16.0},
                latency=latency,
                cuts=cuts,
                provenance=VariantProvenance(
                    latency=origins(digest),
                    outputs=Origin(model=digest, run=1),
                    cuts=CutsOrigin(run=1, allowed=1) if cuts else None,
                ),
            )
    rows = tuple(MeasuredSelection(selection=selection, accuracy=90.0) for selection in selections)
    return ProfilesDocument(
        runs={1: ProfileRun(date="2026-11-23 10:00 UTC", **facts, batches=(1, 4), measured=content.measured)},
        hop=1e-3,
        operators=operators,
        accuracy=AccuracyProfile(end_to_end=rows),
        provenance=DocumentProvenance(hop=Origin(run=1), accuracy=Origin(run=1)),
    )


def _cuts(
    folder: Path, latency: dict[str, dict[int, BatchProfile]], origins: dict[str, Origin]
) -> tuple[CutProfile, ...]:
    stages = {}
    for side in ("head", "tail"):
        file = f"models/stages/compare.net.1.{side}.onnx"
        stages[side] = StageProfile(model=file, sha256=sha256_of(folder / file), latency=latency, provenance=origins)
    whole = sha256_of(folder / "models/compare.onnx")
    return (CutProfile(layers=1, of=2, crossing=16.0, inputs=("left",), whole=whole, **stages),)
