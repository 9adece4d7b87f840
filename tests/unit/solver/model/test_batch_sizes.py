"""Which batch size a plan uses, and that every figure counts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning.simulation import load_by_worker
from jellybean.report.breakdown import operator_loads
from jellybean_solver import (
    Edge,
    EdgeKind,
    Plan,
    PlanDocumentError,
    Problem,
    ServiceTime,
    best_batch,
    evaluate,
    from_document,
    plan_diff,
    solve,
    to_document,
)
from tests.plan_check import complaints
from tests.support.small_problems import box, operator, problem, variant


def times(**by_size: float) -> dict[int, ServiceTime]:
    return {int(size[1:]): ServiceTime(time_s, time_s) for size, time_s in by_size.items()}


@pytest.mark.parametrize(
    ("known", "best"),
    [
        (times(b1=1.0), 1),
        (times(b1=1.0, b4=2.0), 4),
        (times(b1=1.0, b4=4.0), 1),  # a tie
        (times(b1=1.0, b4=3.93), 1),  # 1.75 % less
        (times(b1=1.0, b4=3.9), 4),  # 2.5 % less
        (times(b1=1.0, b2=1.02, b4=2.01), 2),  # 4 is better than 2 by 1.5 %
        (times(b1=1.0, b2=3.0, b8=4.0), 8),  # what lies between may be worse
        (times(b1=0.0, b4=0.0), 1),
    ],
)
def test_the_smallest_size_that_nothing_beats(known: dict[int, ServiceTime], best: int) -> None:
    assert best_batch(known) == best


def batched(problem: Problem, **by_size: float) -> Problem:
    """All variants with these times, everywhere."""
    return replace(
        problem,
        operators=tuple(
            replace(
                operator,
                variants=tuple(
                    replace(v, service=dict.fromkeys(v.service, times(**by_size))) for v in operator.variants
                ),
            )
            for operator in problem.operators
        ),
    )


def planned(case: Problem) -> Plan:
    plan = solve(case).plan
    assert plan is not None
    assert not complaints(case, plan)
    return plan


def test_capacity_counts_a_request_at_its_part_of_a_batch() -> None:
    alone = problem(operator("a", ["camera"], variant("x", {"box": 0.3})), pools=[box(5)])
    plan = planned(batched(alone, b1=0.3, b4=0.6, b8=1.2))
    assert [worker.load for worker in planned(alone).workers] == [pytest.approx(1.0)] * 3
    assert [worker.load for worker in plan.workers] == [pytest.approx(0.75)] * 2
    assert plan.operators[0].batch == {"box": 4}
    assert set(plan.operators[0].service["box"]) == {1, 4}
    assert plan.operators[0].request_s("box") == pytest.approx(0.15)
    assert plan.placements[0].load == pytest.approx(0.75)
    assert sum(operator_loads(plan, plan.workers[0]).values()) == pytest.approx(0.75)
    assert load_by_worker(plan) == {"box-1": pytest.approx(0.75), "box-2": pytest.approx(0.75)}
    assert from_document(to_document(plan)) == plan


def test_what_gathers_or_fans_out_runs_one_request_at_a_time() -> None:
    case = problem(
        operator("find", ["camera"], variant("f", {"box": 0.01}, {"read": 1.0})),
        operator("read", [Edge("find", "read", EdgeKind.FAN_OUT, 4.0)], variant("r", {"box": 0.01}, {"join": 1.0})),
        operator("join", [Edge("read", "join", EdgeKind.GATHER, 0.25)], variant("j", {"box": 0.01})),
        pools=[box(9)],
    )
    case = batched(case, b1=0.01, b4=0.02)
    plan = planned(case)
    assert {operator.name: operator.batch["box"] for operator in plan.operators} == {"find": 1, "read": 4, "join": 1}
    wrong = replace(plan, operators=tuple(replace(o, batch={"box": 4}) for o in plan.operators))
    assert [text for text in evaluate(case, wrong).violations if "batches" in text] == [
        "box-1 runs find in batches, but it gathers or fans out",
        "box-1 runs join in batches, but it gathers or fans out",
    ]


@pytest.mark.parametrize(("batch", "told"), [({"box": 3}, "batch size 3"), ({}, "any batch size")])
def test_a_batch_size_without_a_profile_is_a_violation(batch: dict[str, int], told: str) -> None:
    case = problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()])
    plan = planned(case)
    wrong = replace(plan, operators=(replace(plan.operators[0], batch=batch),))
    assert evaluate(case, wrong).violations == (f"box-1 cannot run a with variant x: no profile at {told}",)


def test_another_batch_size_is_a_difference() -> None:
    alone = problem(operator("a", ["camera"], variant("x", {"box": 0.03})), pools=[box()])
    (change,) = plan_diff(planned(alone), planned(batched(alone, b1=0.03, b4=0.06))).placements
    assert (change.batch_before, change.batch_after) == (1, 4)


def test_a_plan_of_an_older_version_says_to_plan_again() -> None:
    document = to_document(planned(problem(operator("a", ["camera"], variant("x", {"box": 0.01})), pools=[box()])))
    with pytest.raises(PlanDocumentError, match=r"plan version 1; this JellyBean reads 2 to 8: plan again"):
        from_document({**document, "version": 1})
