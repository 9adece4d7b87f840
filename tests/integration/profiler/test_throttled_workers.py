"""Profiles are those of the workers that measure: two agents with unlike CPU quotas get unlike rows.

How unlike depends on what else runs here: that they differ as the quotas do is shown by `nightly`.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from jellybean.documents import read_profiles
from jellybean_agent import Role
from tests.support.command_line import jellybean
from tests.support.cpu_quota import cpu_quota
from tests.support.tiny_models import chain, save
from tests.support.tls_run import tls_run

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SHARES = {"edge-1": 0.3, "cloud-1": 0.75}  # of one CPU
QUOTAS = SHARES["cloud-1"] / SHARES["edge-1"]
ATTEMPTS = 5
LAYERS, SIZE = 40, 512  # some 50 ms: many periods of the quota
WORKFLOW = """\
kind: Workflow
name: heavy
sources:
  x: {tier: edge, rate: 1/s, message: 1 MiB, inputs: data/heldout.npz#x}
operators:
  work: {inputs: [x], variants: {net: {model: models/net.onnx, sha256: SHA256}}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  edge: {tier: edge, count: 1, price: 0.1 USD/h}
  cloud: {tier: cloud, count: 1, price: 0.2 USD/h}
links:
  - {from: edge, to: cloud, price: 1 USD/GiB}
"""
PROFILES = """\
kind: Profiles
hop: 1 ms
operators:
  work: {net: {message: 1 MiB, latency: {edge: 1 ms, cloud: 1 ms}}}
"""


def make_project(folder: Path) -> Path:
    names = ["x", *(f"h{layer}" for layer in range(LAYERS - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[layer], "w"], [names[layer + 1]]) for layer in range(LAYERS)]
    shape = [1, SIZE, SIZE]
    weights = np.eye(SIZE, dtype=np.float32)
    sha256 = save(folder / "models/net.onnx", nodes, {"x": shape}, ("y", shape), w=weights)
    (folder / "data").mkdir()
    np.savez(folder / "data/heldout.npz", x=np.ones((2, SIZE, SIZE), np.float32))
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("SHA256", sha256), encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    (folder / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("least", "most"),
    [(1.2, math.inf), pytest.param(0.85 * QUOTAS, 1.15 * QUOTAS, marks=pytest.mark.nightly)],
    ids=["unlike", "as the quotas"],
)
def test_rows_differ_as_the_quotas_of_their_workers(tmp_path: Path, least: float, most: float) -> None:
    folder = make_project(tmp_path / "heavy")
    with contextlib.ExitStack() as stack:
        groups = {name: stack.enter_context(cpu_quota(name, share)) for name, share in SHARES.items()}
        run = stack.enter_context(tls_run(tmp_path, chain(tmp_path), tuple(SHARES)))
        for name, group in groups.items():
            group.write_text(str(run.processes[name].pid), encoding="ascii")  # what it starts from now on is in it, too
        workers = [option for name in SHARES for option in ("--on", name)]
        admin = str(run.certificate(Role.ADMIN, "root"))
        own = ["--fresh", "--seconds", "2", "--peers", str(tmp_path / "peers.json"), "--tls", admin]
        for _ in range(ATTEMPTS):  # other programs on this machine take time from the quotas
            jellybean("profile", str(folder), *workers, *own)
            slow_s, fast_s = measured_s(folder)
            if least <= slow_s / fast_s <= most:
                break
    assert least <= slow_s / fast_s <= most, (slow_s, fast_s)


def measured_s(folder: Path) -> tuple[float, float]:
    """The mean times of the edge's and the cloud's row."""
    found = read_profiles(folder)
    assert found is not None
    rows = found.operators["work"]["net"].latency
    slow_s, fast_s = rows["edge"][1].mean_s, rows["cloud"][1].mean_s
    assert slow_s is not None and fast_s is not None
    return slow_s, fast_s
