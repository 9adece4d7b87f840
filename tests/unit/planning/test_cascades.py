"""Plans of a workflow with a cascade: which candidate's reasons are told, and what a time limit is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import load_project
from jellybean.planning import plan_project, planned_cascades
from tests.unit.documents.test_cascades import write

ONLY_THE_CASCADE = ("slo.accuracy=94", "accuracy.end_to_end.1.accuracy=93")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_the_candidate_that_is_nearest_to_the_target_says_why(folder: Path) -> None:
    planned = plan_project(load_project(folder, [*ONLY_THE_CASCADE, "slo.latency_p99=1 us"]))
    assert planned.plan is None
    assert planned.nearest_p99_s is not None
    assert "p99 latency would be" in planned.reasons[0]


@pytest.mark.nightly
def test_the_least_latency_is_sought_among_cascades_too(folder: Path) -> None:
    planned = plan_project(load_project(folder, [*ONLY_THE_CASCADE, "objective=latency"]))
    assert planned.best.startswith("least p99 latency that a plan was found for")
    assert planned.plan is not None
    assert planned_cascades(planned.plan)


@pytest.mark.nightly
def test_a_soft_p99_latency_is_weighed_with_cascades_too(folder: Path) -> None:
    soft = "slo.latency_p99={target: 10 ms, penalty: 0.1 USD/h per s}"
    planned = plan_project(load_project(folder, [*ONLY_THE_CASCADE, soft]))
    assert planned.plan is not None and planned_cascades(planned.plan)
    assert planned.plan.certificate.penalty_usd_per_h > 0.0
    assert "p99 targets" in planned.best


def test_a_time_limit_is_for_all_candidates(folder: Path) -> None:
    planned = plan_project(load_project(folder, [*ONLY_THE_CASCADE]), time_limit_s=30.0)
    assert planned.status == "optimal"
    assert planned.baselines[0].name == "no cascade"


@pytest.mark.slow
def test_the_dearest_rate_that_fits(folder: Path) -> None:
    planned = plan_project(load_project(folder, [*ONLY_THE_CASCADE, "objective=rate"]))
    assert planned.best.startswith("highest rates: camera ")
    assert planned.plan is not None
    assert planned_cascades(planned.plan)
