"""Plans of one operator, `double`, that tests of the gateway serve."""

from __future__ import annotations

import pytest

from jellybean_agent import PlanView
from tests.support.gateway_in_process import Document
from tests.support.scripted_workers import scale_view
from tests.unit.gateway.core.process_calls import plan_of


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """The plan of one worker, edge-1."""
    return plan_of(tmp_path_factory.mktemp("plan"), "edge-1")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    """The plan of one worker, edge-1."""
    return scale_view(tmp_path_factory.mktemp("one"), "edge-1")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    """The plan of two workers in equal shares, edge-1 and edge-2."""
    return scale_view(tmp_path_factory.mktemp("two"), "edge-1", "edge-2")
