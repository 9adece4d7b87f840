"""A small sound project, and a way to break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from jellybean.documents import load_project
from jellybean.errors import DocumentError, DocumentProblem

WORKFLOW = """\
kind: Workflow
name: parcels
sources:
  camera: {tier: edge, rate: 12/s, message: 50 KiB}
  scale: {tier: edge, rate: 12/s, message: 64 B}
operators:
  detect:
    inputs: [camera]
    variants: [small, large]
  read:
    inputs: [{from: detect, ratio: 4}]
    variants: [cnn]
  label:
    inputs: [{from: read, gather: true}, scale]
    variants: [rules]
slo: {accuracy: 90, latency_p99: 800 ms, budget: 10 USD/h}
"""

INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 4, price: 0.05 USD/h, memory: 4 GiB}
  gpu: {tier: cloud, count: 2, price: 0.50 USD/h, type: t4}
links:
  - {from: edge, to: cloud, price: 0.10 USD/GiB, bandwidth: 100 Mbit/s, latency: 20 ms}
limits: {utilisation: 0.8, sharing: shared}
"""

PROFILES = """\
kind: Profiles
machine: {cpu: some}
hop: 0.9 ms
operators:
  detect:
    small:
      message: 10 KiB
      latency: {box: 30 ms, t4: {mean: 5 ms, p50: 4.8 ms, p90: 6 ms, memory: 40 MiB, noise: 3 %}}
    large:
      message: {read: 12 KiB}
      latency: {t4: {1: 20 ms, 8: {mean: 90 ms, p99: 120 ms}}}
  read:
    cnn: {message: 100 B, latency: {box: 8 ms, t4: 1 ms}}
  label:
    rules: {latency: {box: 100 us, t4: 50 us}}
accuracy:
  end_to_end:
    - {selection: {detect: small}, accuracy: 91.5}
    - {selection: {detect: large}, accuracy: 95}
"""

Break = Callable[..., tuple[DocumentProblem, ...]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the sound project."""
    (tmp_path / "workflow.yaml").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (tmp_path / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    return tmp_path


@pytest.fixture
def breaking(folder: Path) -> Break:
    """Replace text in one document and return the problems of the project."""

    def apply(
        file: str, old: str = "", new: str = "", overrides: Sequence[str] = (), profiles: bool = True
    ) -> tuple[DocumentProblem, ...]:
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text, encoding="utf-8")
        try:
            load_project(folder, overrides, profiles=profiles)
        except DocumentError as error:
            return error.problems
        return ()

    return apply
