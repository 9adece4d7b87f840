"""Alternatives under a p99 that binds get the room that the plan in question needs before they are searched for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jellybean.planning import alternatives as settling
from jellybean.planning.alternatives import Settling
from jellybean.planning.simulation import latency_breach
from jellybean_solver import Arrivals, Slo, solve
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.planning.infeasibility import scaled
from tests.support.small_problems import box, operator, problem, variant


def test_an_alternative_gets_the_same_room_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boxes at a load of 0.9 are late for all, three at 0.6 are not; ten per cent more requests need no search."""
    step = operator("see", ["camera"], variant("v", {"box": 0.1}))
    asked = problem(step, pools=[box(10)], rate_per_s=18.0, slo=Slo(latency_p99_s=0.35))
    asked = replace(asked, sources=tuple(replace(source, arrivals=Arrivals.POISSON) for source in asked.sources))
    settled = Settling()
    cheapest = solve(asked)
    assert cheapest.plan is not None and latency_breach(cheapest.plan) is not None
    first = settled(asked, cheapest, True, 600.0, True).solution  # a limit: no plans that only simulation finds
    assert first is not None and first.plan is not None
    assert len(first.plan.workers) == 3

    def search(*_args: Any, **_options: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(settling, "settle", search)
    more = scaled(asked, 1.05)
    found = settled(more, solve(more), True, None, False).solution
    assert found is not None and found.plan is not None
    assert latency_breach(found.plan) is None
    assert evaluate(more, found.plan).complaints == ()
    assert len(found.plan.workers) in (3, 4)
    assert found.plan.certificate.bound <= found.plan.cost.total_usd_per_h
    with pytest.raises(AssertionError, match="searched"):  # nobody knows yet what room is needed
        Settling()(more, solve(more), True, None, False)
