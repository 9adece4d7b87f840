"""Fixtures: small models, shared with the serving tests, and a namespace to deploy to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.k8s_real import RealCluster
from tests.k8s_sites import Sites, running_sites
from tests.k8s_target import Target, running_target


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
    """A kubeconfig for the target's cluster."""
    if target.server is None:
        return target.real.kubeconfig
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    config |= {"clusters": [{"name": "c", "cluster": {"server": target.server.url}}]}
    config |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
    config |= {"users": [{"name": "u", "user": {}}]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")
    return tmp_path / "kubeconfig"
