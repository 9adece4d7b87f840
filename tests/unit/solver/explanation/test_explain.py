"""Explanations of problems that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jellybean_solver.explanation.explain as explain_module
from jellybean_solver import (
    DeadlineResult,
    Explanation,
    Link,
    Part,
    Plan,
    Problem,
    Question,
    RequirementKind,
    ResolveSettings,
    Solution,
    SolverError,
    explain,
    solve,
)
from jellybean_solver.explanation.counterfactuals import Resolved, compare
from jellybean_solver.explanation.resolver import Resolver
from jellybean_solver.explanation.restrictions import forbid_pool
from jellybean_solver.planning.requirements import drop, relaxed, requirements
from tests.support.small_problems import GIB, box, gpu, operator, problem
from tests.unit.solver.explanation.two_variants import SMALL, change_of, seeing


def test_what_binds_and_what_one_more_unit_is_worth() -> None:
    found = explain(seeing())  # large on the gpu: 3

    assert found.status == "optimal"
    limits = {limit.requirement.kind.value + "".join(limit.requirement.subjects): limit for limit in found.limits}
    accuracy, boxes, gpus = limits["accuracy"], limits["countbox"], limits["countgpu"]
    assert accuracy.binds
    assert accuracy.without is not None
    assert accuracy.without.delta_usd_per_h == pytest.approx(-2)  # small on the box
    assert (accuracy.used, accuracy.reached) == (90.0, False)
    assert boxes.binds  # two boxes would do for 2, though none is used with one
    assert boxes.more is not None
    assert boxes.more.delta_usd_per_h == pytest.approx(-1)
    assert boxes.more.delta_share == pytest.approx(-1 / 3)
    assert (boxes.used, boxes.reached) == (0.0, False)
    assert not gpus.binds
    assert gpus.reached


def test_next_best_choices() -> None:
    found = explain(seeing(target=75.0))  # small on the box: 1

    assert change_of(found, "variant", "see=large").delta_usd_per_h == pytest.approx(2)
    assert change_of(found, "tier", "edge").delta_usd_per_h == pytest.approx(2)
    assert change_of(found, "pool", "box").differences[-2:] == ("see: edge -> cloud", "+1 gpu, -1 box")
    following = change_of(found, "next_accuracy", "next")
    assert (following.accuracy, following.delta_usd_per_h) == (90.0, pytest.approx(2))
    assert change_of(found, "accuracy", "-1").delta_usd_per_h == 0
    assert change_of(found, "rate", "+10 %").delta_usd_per_h == pytest.approx(2)  # a box is full: the gpu
    assert not any(change.subject in ("cloud", "gpu") for change in found.choices)  # not in use


def test_a_choice_that_cannot_be_says_why() -> None:
    change = change_of(explain(seeing()), "variant", "see=small")

    assert change.status == "infeasible"
    assert "80" in change.reason
    assert change.delta_usd_per_h is None


def test_latency_is_predicted_for_every_plan_and_refuses_it() -> None:
    def p99_s(plan: Plan, seed: int) -> dict[str, float]:
        return {"": 0.2 if plan.selection["see"] == "large" else 0.05}

    quick = explain(seeing(target=75.0, latency_p99_s=0.1), settings=ResolveSettings(p99_s=p99_s))
    slow = explain(seeing(target=85.0, latency_p99_s=0.1), settings=ResolveSettings(p99_s=p99_s))

    assert change_of(quick, "variant", "see=large").status == "refused"
    assert next(limit for limit in quick.limits if limit.requirement.kind is RequirementKind.LATENCY_P99).used == 0.05
    assert slow.status == "refused"
    assert slow.conflict is not None
    assert not slow.conflict.proven
    (item,) = slow.conflict.relaxations
    assert (item.requirement.kind, item.value) == (RequirementKind.LATENCY_P99, 0.2)
    assert not item.exact  # small on a gpu might be quicker yet


def test_time_that_ends_leaves_questions_open_and_says_so() -> None:
    ticks = iter(range(10_000))
    found = explain(seeing(), settings=ResolveSettings(time_limit_s=40.0, clock=lambda: float(next(ticks))))

    assert found.plan is not None
    assert found.unanswered > 0
    open_ = [change for change in (*found.choices, *found.values) if change.status == "unknown"]
    assert all(change.delta_usd_per_h is None and change.reason for change in open_)


def test_no_changed_problem_is_made_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of workflows there are thousands, each of which takes time."""

    def fails(*arguments: object) -> Problem:
        raise AssertionError("time has ended")

    for name in ("drop", "relaxed", "forbid_pool", "forbid_tier", "force_variant"):
        monkeypatch.setattr(explain_module, name, fails)
    now_s = 0.0

    def published(explanation: Explanation, part: Part) -> None:
        nonlocal now_s
        now_s = 100.0

    found = explain(seeing(), settings=ResolveSettings(time_limit_s=50.0, clock=lambda: now_s), publish=published)
    assert found.solves == 1
    assert found.unanswered > 0


@pytest.mark.parametrize(("limit_s", "most"), [(None, 5 + 100), (20.0, 3), (300.0, 40)])
def test_simulations_keep_to_the_time_allowed(limit_s: float | None, most: int) -> None:
    """A simulation takes 10 s here, and nothing else any: the plan's own takes half of the time, but is made."""
    now_s, seeds = 0.0, list[int]()

    def p99_s(plan: Plan, seed: int) -> dict[str, float]:
        nonlocal now_s
        now_s += 10.0
        seeds.append(seed)
        return {"": 0.1 * (1 + seed)}

    settings = ResolveSettings(time_limit_s=limit_s, clock=lambda: now_s, p99_s=p99_s)
    found = explain(seeing(latency_p99_s=1.0), settings=settings)

    latency = next(limit for limit in found.limits if limit.requirement.kind is RequirementKind.LATENCY_P99)
    own = 1 if limit_s == 20.0 else 5
    assert seeds[:own] == list(range(own))
    assert latency.used == pytest.approx(0.1 if own == 1 else 0.3)  # the median
    assert set(seeds[own:]) <= {0}
    assert len(seeds) <= most
    assert (found.unanswered > 0) == (limit_s == 20.0)
    assert found.solves + found.unanswered > len(found.choices) + len(found.values)
    assert limit_s is None or now_s <= limit_s + 10.0
    for change in (*found.choices, *found.values):
        assert change.status != "unknown" or change.reason.startswith("time ended")


def test_a_difference_that_is_not_proven_is_a_range() -> None:
    base = explain(seeing()).plan
    assert base is not None
    proof = base.certificate
    unproven = replace(base, certificate=replace(proof, bound=2.0, gap=1 / 3, termination="time_limit"))

    fewer = compare(base, Resolved("time_limit", unproven), "variant", "see=large", "")
    more = compare(base, Resolved("time_limit", unproven), "drop", "", "")

    assert (fewer.delta_usd_per_h, fewer.delta_between_usd_per_h) == (0, (0, 0))
    assert (more.delta_usd_per_h, more.delta_between_usd_per_h) == (0, (-1, 0))
    assert more.gap == pytest.approx(1 / 3)


def test_no_time_for_a_plan_is_an_error() -> None:
    ticks = iter(range(10_000))
    with pytest.raises(SolverError, match="time"):
        explain(seeing(), settings=ResolveSettings(time_limit_s=0.5, clock=lambda: float(next(ticks))))
    with pytest.raises(SolverError, match="clock"):
        explain(seeing(), settings=ResolveSettings(time_limit_s=0.5))


def test_traffic_is_part_of_what_a_choice_costs() -> None:
    given = problem(
        operator("see", ["camera"], SMALL),
        pools=[box(), gpu()],
        message_bytes=GIB / 3600 / 10,  # 1 GiB an hour
        links=[Link("edge", "cloud", 0.5)],
    )
    found = explain(given)

    assert change_of(found, "tier", "edge").delta_usd_per_h == pytest.approx(3 + 0.5 - 1)


def test_json_values_are_complete() -> None:
    found = explain(seeing(), [Question("edge", place="edge")]).to_dict()

    assert set(found) == {
        "status", "plan", "limits", "values", "choices", "why_not", "conflict", "solves", "unanswered",
    }  # fmt: skip
    assert found["plan"]["cost_usd_per_h"]["total"] == pytest.approx(3)
    assert {"binds", "reached", "used", "value", "without", "one_more"} <= set(found["limits"][0])
    assert {"cost_usd_per_h", "delta_usd_per_h", "delta_share", "gap", "differences"} <= set(found["choices"][0])


def test_the_parts_are_published_in_order_of_value() -> None:
    published: list[tuple[Part, Explanation]] = []
    found = explain(seeing(), settings=None, publish=lambda explanation, part: published.append((part, explanation)))
    assert [part for part, _ in published] == [Part.PLAN, Part.WHY_NOT, Part.LIMITS, Part.VALUES, Part.CHOICES]
    limits, values = published[2][1], published[3][1]
    assert limits.limits == found.limits and limits.values == ()
    assert values.values == found.values and values.choices == () and values.solves < found.solves
    assert published[-1][1] == found


def test_alternatives_far_below_the_target_are_not_simulated() -> None:
    seeds = list[int]()

    def p99_s(plan: Plan, seed: int) -> dict[str, float]:
        seeds.append(seed)
        return {"": 1.0}

    full = seeing(latency_p99_s=100.0)  # two orders of magnitude above all plans without a full queue
    asked = relaxed(full, next(r for r in requirements(full) if r.kind is RequirementKind.RATE), 0.5)
    made: dict[float, list[int]] = {}
    for share in (0.0, 0.5):
        seeds.clear()
        explain(asked, settings=ResolveSettings(p99_s=p99_s, estimated_below=share))
        made[share] = [*seeds]
    assert made[0.0][:5] == made[0.5][:5] == list(range(5))  # the plan itself
    assert len(made[0.5]) < len(made[0.0])


def test_a_relaxation_that_saves_nothing_is_not_simulated() -> None:
    simulated = list[Plan]()

    def p99_s(plan: Plan, seed: int) -> dict[str, float]:
        simulated.append(plan)
        return {"": 1.0}

    asked = seeing(target=75.0, latency_p99_s=100.0)
    valid = solve(asked).plan
    assert valid is not None
    resolver = Resolver(ResolveSettings(p99_s=p99_s))
    without = resolver.ask(drop(asked, requirements(asked)[0]), "without accuracy", valid=valid)
    assert (without.status, simulated) == ("optimal", [])
    assert compare(valid, without, "drop", "", "").delta_usd_per_h == 0
    resolver.ask(asked, "as it is")
    assert len(simulated) == 1


def test_an_alternative_that_is_late_gives_way_to_one_that_settling_finds() -> None:
    asked = seeing(target=75.0, latency_p99_s=1.0)

    def p99_s(plan: Plan, seed: int) -> dict[str, float]:
        return {"": 2.0 if any(worker.pool == "box" for worker in plan.workers) else 0.5}

    def settle(
        changed: Problem, cheapest: Solution, late: bool, time_limit_s: float | None, thorough: bool
    ) -> DeadlineResult:
        if not late:
            return DeadlineResult(cheapest)
        on_gpu = solve(forbid_pool(changed, "box"))
        return DeadlineResult(on_gpu if on_gpu.plan is not None else None, cheapest.plan)

    found = explain(asked, settings=ResolveSettings(p99_s=p99_s, keep_deadline=settle))

    assert found.status == "optimal"
    assert found.plan is not None
    assert {worker.pool for worker in found.plan.workers} == {"gpu"}  # the cheapest, a box, would be late
    (other,) = {"small", "large"} - {found.plan.selection["see"]}
    assert change_of(found, "variant", f"see={other}").cost_usd_per_h == pytest.approx(3)
    late = change_of(found, "pool", "gpu")  # boxes only
    assert (late.status, late.holds) == ("refused", False)
    refused = explain(asked, settings=ResolveSettings(p99_s=p99_s))  # nobody looks for another
    assert refused.status == "refused"
