"""What all tests share: Hypothesis profiles (derandomised; `HYPOTHESIS_PROFILE=nightly` runs more)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.tools.cost", "tests.tools.listed_skips", "tests.tools.tiers"]
_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# A shell without job control starts background commands with SIGINT ignored, which the tests' processes would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, print_blob=True, suppress_health_check=_quiet
)
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """SIGTERM as a command of its own finds it: a runner of tests in parallel has a handler for it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Any]:
    """The `RealCluster` that JELLYBEAN_TEST_KUBECONFIG names; None if it names none."""
    if not (kubeconfig := os.environ.get("JELLYBEAN_TEST_KUBECONFIG")):
        yield None
        return
    from tests.k8s_real import RealCluster

    with RealCluster(Path(kubeconfig)) as cluster:
        yield cluster
