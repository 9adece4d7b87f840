"""The bubble fraction of the runtime equals the simulated one, with stages that sleep."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline.schedule.simulator import ScheduleCosts, bubble_fraction, simulate  # noqa: E402
from jellybean_solver.pipeline.schedules import SCHEDULES  # noqa: E402
from tests.integration.training.ranks import run_ranks  # noqa: E402
from tests.integration.training.sleeping import (  # noqa: E402
    BACKWARD_S,
    FORWARD_S,
    NO_FLUSH,
    Sleeping,
    Urgent,
    awake,
    measured_idle,
)

pytestmark = [pytest.mark.nightly, pytest.mark.alone]
CASES = {
    (name, devices): Sleeping(name, devices, 24 if name in NO_FLUSH else 8) for devices in (2, 4) for name in SCHEDULES
}


@pytest.fixture(scope="module")
def found():
    with awake():
        return dict(zip(CASES, run_ranks(4, [Urgent(), *CASES.values()], seconds=600)[1:], strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_idle_share_is_the_simulators(found, case):
    schedule = CASES[case].schedule
    ranks = [own for own in found[case] if own is not None]
    predicted = simulate(schedule, ScheduleCosts(FORWARD_S, BACKWARD_S))
    assert measured_idle(schedule, ranks, 0) == pytest.approx(bubble_fraction(predicted), abs=0.05)
