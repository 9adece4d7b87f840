"""The runtime beside the simulator, with stages that sleep: idle share, live activations, speed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline.actions import Kind  # noqa: E402
from jellybean_solver.pipeline.schedule import Schedule  # noqa: E402
from jellybean_solver.pipeline.schedules import SCHEDULES  # noqa: E402
from jellybean_solver.pipeline.simulate import Costs, Timeline, bubble_fraction, simulate  # noqa: E402
from tests.integration.training.ranks import run_ranks  # noqa: E402
from tests.integration.training.sleeping import BACKWARD_S, FORWARD_S, NO_FLUSH, Sleeping  # noqa: E402

pytestmark = [pytest.mark.nightly, pytest.mark.alone]
CASES = {
    (name, devices): Sleeping(name, devices, 24 if name in NO_FLUSH else 8) for devices in (2, 4) for name in SCHEDULES
}


@pytest.fixture(scope="module")
def found():
    return dict(zip(CASES, run_ranks(4, list(CASES.values()), seconds=600), strict=True))


def most_kept(schedule: Schedule, device: int) -> int:
    """Chunks between a forward and the last gradient that needs what it left."""
    kept = most = 0
    for action in schedule.actions[device]:
        kept += (action.kind is Kind.FORWARD) - (action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT))
        most = max(most, kept)
    return most


@pytest.mark.parametrize("case", CASES, ids=str)
def test_live_activations_are_the_simulators(found, case):
    schedule = CASES[case].schedule
    for device in range(schedule.devices):
        assert found[case][device].live == most_kept(schedule, device)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_idle_share_is_the_simulators(found, case):
    schedule, parts = CASES[case].schedule, CASES[case].parts
    ranks = [own for own in found[case] if own is not None]
    predicted = simulate(schedule, Costs(FORWARD_S / parts, BACKWARD_S / parts))
    first = min(own.starts_s[0][0] for own in ranks)
    starts, ends = (
        tuple(tuple(second - first for second in every[0]) for every in sides)
        for sides in ([own.starts_s for own in ranks], [own.ends_s for own in ranks])
    )
    assert bubble_fraction(Timeline(schedule, starts, ends)) == pytest.approx(bubble_fraction(predicted), abs=0.05)
