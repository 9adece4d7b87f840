"""What all tests share: plug-ins, and Hypothesis profiles (`slow` and `nightly` run more examples).

All but the nightly one are derandomised: a run fails because of a change, never by chance.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from jellybean_protos.library_telemetry import turn_off_telemetry
from tests.tools.repeatable_examples import use_repeatable_examples

pytest_plugins = [f"tests.tools.{_name}" for _name in ("cost", "listed_skips", "shared_imports", "tiers")]
turn_off_telemetry()  # tests load onnxruntime before any package of the project
_quiet = [HealthCheck.too_slow]  # wall-clock time: on a busy machine it would fail by chance
# A shell without job control starts background commands with SIGINT ignored, which the tests' processes would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

_state_home = tempfile.TemporaryDirectory(prefix="jb-state-")  # folders of runs: not the user's; removed at the end
os.environ["XDG_STATE_HOME"] = _state_home.name

for _profile, _examples in (("default", 20), ("slow", 60), ("nightly", 1000)):
    settings.register_profile(
        _profile,
        derandomize=_profile != "nightly",
        deadline=None,
        max_examples=_examples,
        print_blob=True,
        suppress_health_check=_quiet,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
if os.environ.get("HYPOTHESIS_PROFILE") != "nightly":
    use_repeatable_examples()


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """SIGTERM as a command of its own finds it: a runner of tests in parallel has a handler for it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _log_handlers() -> Iterator[None]:
    """A command that runs in the test's process logs to a stream that ends with the test: its handler goes too."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        is_of_pytest = type(handler).__module__ == "_pytest.logging"
        if isinstance(handler, logging.StreamHandler) and not is_of_pytest and handler not in before:
            root.removeHandler(handler)
            root.setLevel(level)


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


def pytest_collection_finish() -> None:
    """Imported modules and collected tests stay: the garbage collector need not look at them again and again."""
    gc.freeze()
