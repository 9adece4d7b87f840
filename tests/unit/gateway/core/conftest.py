"""Plans of one operator, `double`, that tests of the gateway serve."""

from __future__ import annotations

import pytest

from tests.support.gateway_in_process import Document
from tests.unit.gateway.core.process_calls import plan_of


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """The plan of one worker, edge-1."""
    return plan_of(tmp_path_factory.mktemp("plan"), "edge-1")
