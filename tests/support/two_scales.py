"""Two workflows on one fleet: shop multiplies by 6 and yard by 4, or more accurately by 15 and 10."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.tiny_models import scale

FACTORS = {"shop": 6.0, "yard": 4.0}
RATES_PER_S = {"shop": 12.0, "yard": 6.0}
_LAST = {"shop": 3.0, "yard": 2.0}  # what the last operator multiplies by
WORKFLOW = """\
kind: Workflow
name: NAME
sources:
  x: {tier: edge, rate: RATE/s, message: 16 B, inputs: data/heldout.npz#x}
operators:
  first:
    inputs: [x]
    variants:
      two: {model: models/two.onnx, sha256: TWO}
      five: {model: models/five.onnx, sha256: FIVE}
  last:
    inputs: [first]
    variants: {last: {model: models/last.onnx, sha256: LAST}}
slo: {latency_p99: 2 s}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 2, price: 0.1 USD/h, speed: 0.1}
  server: {tier: cloud, count: 2, price: 0.2 USD/h, speed: 0.1}
links:
  - {from: edge, to: cloud, price: 1 USD/GiB}
"""
PROFILES = """\
kind: Profiles
operators:
  first:
    two: {message: 16 B, latency: {box: 16 ms}}
    five: {message: 32 B, latency: {box: 24 ms}}
  last: {last: {message: 16 B, latency: {server: 10 ms}}}
accuracy:
  independent:
    first: {two: 80, five: 95}
    last: {last: 100}
"""


def make_two_scales(folder: Path) -> Path:
    """Write the project's files. Both workflows fit on one box and one server."""
    (folder / "workflows").mkdir(parents=True)
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    for name, last in _LAST.items():
        own = folder / "workflows" / name
        text = WORKFLOW.replace("NAME", name).replace("RATE", f"{RATES_PER_S[name]:g}")
        for model, factor in (("two", 2.0), ("five", 5.0), ("last", last)):
            text = text.replace(f"sha256: {model.upper()}", f"sha256: {scale(own / f'models/{model}.onnx', factor)}")
        (own / "data").mkdir()
        np.savez(own / "data/heldout.npz", x=np.arange(12, dtype=np.float32).reshape(3, 4))
        (own / "workflow.yaml").write_text(text, encoding="utf-8")
        (own / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    return folder
