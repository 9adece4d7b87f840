"""The bubble fraction of the runtime equals the simulated one, with stages that sleep."""

from __future__ import annotations

import statistics

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean_solver.pipeline import SCHEDULES, bubble_fraction, simulate
from tests.integration.training.ranks import run_ranks
from tests.integration.training.sleeping import (
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
PLANS = {
    (name, replicas): Sleeping(name, sum(replicas), 30 if name in NO_FLUSH else 12, rounds=3, replicas=replicas)
    for replicas in ((2, 1), (3, 1), (2, 2), (1, 2, 1))
    for name in ("1f1b", "pipedream")
}


def _run(cases):
    with awake():
        return dict(zip(cases, run_ranks(4, [Urgent(), *cases.values()], seconds=600)[1:], strict=True))


@pytest.fixture(scope="module")
def found():
    return _run(CASES)


@pytest.fixture(scope="module")
def planned():
    return _run(PLANS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_idle_share_is_the_simulators(found, case):
    schedule = CASES[case].schedule
    ranks = [own for own in found[case] if own is not None]
    predicted = simulate(schedule, CASES[case].costs)
    assert measured_idle(schedule, ranks, 0) == pytest.approx(bubble_fraction(predicted), abs=0.05)


@pytest.mark.parametrize("case", PLANS, ids=str)
def test_idle_share_of_unlike_replica_counts_is_the_simulators(planned, case):
    """Within three points, in the middle one of three rounds."""
    schedule = PLANS[case].schedule
    ranks = [own for own in planned[case] if own is not None]
    measured = statistics.median(measured_idle(schedule, ranks, number) for number in range(PLANS[case].rounds))
    assert measured == pytest.approx(bubble_fraction(simulate(schedule, PLANS[case].costs)), abs=0.03)
