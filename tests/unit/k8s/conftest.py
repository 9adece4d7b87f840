"""The plan that tests of deployments render."""

from __future__ import annotations

import pytest

from jellybean_solver import Plan
from tests import report_plans
from tests.k8s_plans import with_models


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The plan of the digits example, with a model for each operator."""
    return with_models(report_plans.digits())
