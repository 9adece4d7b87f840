"""What is proven of a plan that keeps a p99 latency only by simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning import simulated_deadline as in_time
from jellybean.planning.simulation import Judged
from jellybean_solver import Link, Slo, solve
from jellybean_solver.model.plan import Certificate, Cost, Plan
from jellybean_solver.planning.solver import Solution
from tests.support.small_problems import box, gpu, operator, problem, variant

TARGET_S = 1.0


def _judged(plan: Plan) -> Judged:
    late = plan.cost.total_usd_per_h != 8.0
    return Judged("late" if late else "", {"": 1.5 if late else 0.9}, {"": TARGET_S})


def _solution(plan: Plan, cost: float, bound: float) -> Solution:
    proof = Certificate(cost, bound, (cost - bound) / cost, "optimal" if bound == cost else "gap")
    return Solution(proof.termination, replace(plan, cost=Cost(cost, 0.0), certificate=proof), None, 1, proof)


def test_a_search_under_less_than_the_whole_p99_proves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem(
        operator("see", ["camera"], variant("small", {"box": 0.1, "gpu": 0.05})),
        pools=[box(1), gpu(1)],
        slo=Slo(latency_p99_s=TARGET_S),
        links=[Link("edge", "cloud")],
    )
    cheapest = solve(asked)
    assert cheapest.plan is not None
    answers = {1.0: _solution(cheapest.plan, 6.0, 5.0), 0.8: _solution(cheapest.plan, 8.0, 8.0)}
    monkeypatch.setattr(in_time, "solve_cut", lambda _p, _c, *, p99_s, **_o: answers[round(p99_s / TARGET_S, 6)])
    monkeypatch.setattr(in_time, "judged_latency", _judged)
    monkeypatch.setattr(in_time, "FAR", 1.0)

    kept = in_time.in_time(asked, {}, cheapest, 0.0, None)
    found = kept.solution

    assert kept.judged is not None and kept.judged.p99_s == {"": 0.9}
    assert kept.cheapest is not None and kept.cheapest[0] == cheapest.plan and kept.cheapest[1].p99_s == {"": 1.5}
    assert found.plan is not None
    proof = found.plan.certificate
    assert (proof.objective, proof.bound, proof.termination) == (8.0, 5.0, "gap")  # not the 8.0 of a shorter deadline
    assert proof.gap == pytest.approx(3.0 / 8.0)
    assert found.status == "gap"
