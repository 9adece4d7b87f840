"""Fast plans where the number of requests depends on the variant."""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver import Edge, evaluate, fast_plans
from jellybean_solver.model.problem import EdgeKind
from jellybean_solver.outcome import Clock
from tests.support.small_problems import gpu, operator, problem, variant


def test_each_combination_of_ratios_has_fast_plans() -> None:
    few = replace(variant("few", {"gpu": 0.01}, {"read": 0.0}), ratios={"read": 2.0})
    many = replace(variant("many", {"gpu": 0.005}, {"read": 0.0}), ratios={"read": 4.0})
    reads = Edge("find", "read", EdgeKind.FAN_OUT, 2.0)
    asked = problem(
        operator("find", ["camera"], few, many),
        operator("read", [reads], variant("x", {"gpu": 0.001})),
        pools=[gpu(4)],
    )
    plans = list(fast_plans(asked, Clock()))

    assert {plan.selection["find"] for plan in plans} == {"few", "many"}
    assert not any(evaluate(asked, plan).complaints for plan in plans)
