"""What tests of pods share with the tests of serving, small models; and a namespace to deploy to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s_target import Target, running_target

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))  # for serving_models


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with running_target(tmp_path) as found:
        yield found
