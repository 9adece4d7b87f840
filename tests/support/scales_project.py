"""A small project on two machines: a box doubles (or, more accurately, quintuples), a server triples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.tiny_models import scale

WORKFLOW = """\
kind: Workflow
name: scales
sources:
  x: {tier: edge, rate: 20/s, message: 16 B, arrivals: periodic, inputs: data/heldout.npz#x}
operators:
  first:
    inputs: [x]
    variants:
      two: {model: models/two.onnx, sha256: TWO}
      five: {model: models/five.onnx, sha256: FIVE}
  triple:
    inputs: [first]
    variants: {three: {model: models/three.onnx, sha256: THREE}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 1, price: 0.1 USD/h}
  server: {tier: cloud, count: 1, price: 0.2 USD/h}
links:
  - {from: edge, to: cloud, price: 1 USD/GiB}
"""
PROFILES = """\
kind: Profiles
operators:
  first:
    two: {message: 16 B, latency: {box: 1 ms}}
    five: {message: 32 B, latency: {box: 3 ms}}
  triple: {three: {message: 16 B, latency: {server: 1 ms}}}
accuracy:
  independent:
    first: {two: 80, five: 95}
    triple: {three: 100}
"""
WORKERS = ("box-1", "server-1")


def make_scales_project(folder: Path) -> Path:
    """Write the project's files. Every plan uses both workers; `slo.accuracy=90` needs the variant `five`."""
    hashes = {
        name.upper(): scale(folder / f"models/{name}.onnx", factor)
        for name, factor in (("two", 2.0), ("five", 5.0), ("three", 3.0))
    }
    (folder / "data").mkdir()
    np.savez(folder / "data/heldout.npz", x=np.arange(12, dtype=np.float32).reshape(3, 4))
    text = WORKFLOW
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (folder / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    return folder
