"""A small digits project: the real models, few held-out strips, two kinds of workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import EXAMPLES

DIGITS = EXAMPLES / "digits"
STRIPS = 30

INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge, cloud]
workers:
  box: {tier: edge, count: 2, price: 0.04 USD/h, speed: 0.5}
  cloud: {tier: cloud, count: 1, price: 0.45 USD/h, speed: 1}
links:
  - {from: edge, to: cloud, price: 4 USD/GiB, latency: 20 ms}
"""


def make_project(folder: Path) -> Path:
    """A copy of the example with `STRIPS` strips."""
    shutil.copytree(DIGITS, folder, ignore=shutil.ignore_patterns(".jellybean", "profiles.yaml", "__pycache__"))
    data = np.load(DIGITS / "data/heldout.npz")
    np.savez(folder / "data/heldout.npz", strips=data["strips"][:STRIPS], labels=data["labels"][:STRIPS])
    (folder / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    workflow = folder / "workflow.yaml"
    text = workflow.read_text(encoding="utf-8")
    assert "ratio: 3.84" in text
    workflow.write_text(
        text.replace("ratio: 3.84", f"ratio: {data['held'][:STRIPS].sum(1).mean():.4f}"), encoding="utf-8"
    )
    return folder


@pytest.fixture
def project_folder(tmp_path: Path) -> Path:
    return make_project(tmp_path / "digits")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that tests only read, or profile again."""
    return make_project(tmp_path_factory.mktemp("profiled") / "digits")


@pytest.fixture
def edit() -> Callable[[Path, str, str], None]:
    def replace(path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return replace
