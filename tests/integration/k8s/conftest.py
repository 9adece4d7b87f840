"""Fixtures: small models, shared with the serving tests, and a namespace to deploy to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s_real import RealCluster
from tests.k8s_sites import Sites, running_sites
from tests.k8s_target import Target, running_target, write_kubeconfig


@pytest.fixture
def target(tmp_path: Path, real_cluster: RealCluster | None) -> Iterator[Target]:
    with running_target(tmp_path, real_cluster) as running:
        yield running


@pytest.fixture
def sites(tmp_path: Path, real_cluster: RealCluster | None) -> Iterator[Sites]:
    with running_sites(tmp_path, real_cluster) as running:
        yield running


@pytest.fixture
def kubeconfig(target: Target, tmp_path: Path) -> Path:
    """A kubeconfig for the target's cluster and namespace, with the context `x`."""
    return write_kubeconfig(tmp_path / "kubeconfig", {"x": target})
