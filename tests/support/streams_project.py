"""A small project with a state: a box doubles, a server remembers what its stream sent before."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.tiny_models import recurrent, scale

DECAYS = {"long": 0.9, "short": 0.5}
STREAMS, ROWS = 3, 4  # held-out streams, and chunks of each
WORKFLOW = """\
kind: Workflow
name: streams
sources:
  x: {tier: edge, rate: 20/s, message: 16 B, arrivals: periodic, streams: 4, inputs: data/heldout.npz#x}
operators:
  double:
    inputs: [x]
    variants: {two: {model: models/two.onnx, sha256: TWO}}
  remember:
    inputs: [double]
    state: {by: stream, tensors: {state: state_next}}
    variants:
      long: {model: models/long.onnx, sha256: LONG}
      short: {model: models/short.onnx, sha256: SHORT}
stream_ids: data/heldout.npz#streams
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
  double: {two: {message: 16 B, latency: {box: 1 ms}}}
  remember:
    long: {message: 16 B, latency: {server: 1 ms}}
    short: {message: 16 B, latency: {server: 1 ms}}
accuracy:
  independent:
    double: {two: 100}
    remember: {long: 95, short: 80}
"""


def make_streams_project(folder: Path) -> Path:
    """Write the project's files. `slo.accuracy=90` needs the variant `long`."""
    hashes = {"TWO": scale(folder / "models/two.onnx", 2.0)}
    hashes |= {name.upper(): recurrent(folder / f"models/{name}.onnx", decay) for name, decay in DECAYS.items()}
    rows = np.random.default_rng(0).normal(size=(STREAMS * ROWS, 4)).astype(np.float32)
    (folder / "data").mkdir()
    np.savez(folder / "data/heldout.npz", x=rows, streams=np.arange(STREAMS * ROWS) % STREAMS)
    text = WORKFLOW
    for name, digest in hashes.items():
        text = text.replace(f"sha256: {name}", f"sha256: {digest}")
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (folder / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    return folder


def uninterrupted(inputs: np.ndarray, decay: float = DECAYS["long"]) -> np.ndarray:
    """The answers to one stream's chunks by one process."""
    state, answers = np.zeros((1, 4), np.float32), []
    for x in inputs:
        state = np.tanh(np.float32(decay) * state + 2 * x)
        answers.append(state)
    return np.concatenate(answers)
