"""Problems without a plan: the requirements that conflict, and how far each must give way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations

import pytest

from jellybean_solver import (
    Conflict,
    Explanation,
    Objective,
    Part,
    Plan,
    Problem,
    Requirement,
    RequirementKind,
    ResolveSettings,
    Sharing,
    explain,
)
from jellybean_solver.explanation.conflict_search import ConflictSearch
from jellybean_solver.explanation.conflicts import find_conflict
from jellybean_solver.explanation.counterfactuals import Resolved
from jellybean_solver.explanation.resolver import Resolver
from jellybean_solver.planning.requirements import drop, requirements
from tests.support.small_problems import box, gpu, operator, problem, variant
from tests.unit.solver.explanation.two_variants import seeing


def test_a_conflict_names_each_requirement_and_how_far_it_must_give_way() -> None:
    given = replace(seeing(target=85.0, boxes=1, budget_usd_per_h=2.5), utilisation=0.9)
    conflict = explain(given).conflict
    assert conflict is not None

    found = {item.requirement.kind: item for item in conflict.relaxations}
    assert conflict.proven
    assert set(found) == {
        RequirementKind.ACCURACY,
        RequirementKind.RATE,
        RequirementKind.BUDGET,
        RequirementKind.UTILISATION,
    }
    # Large takes 3 boxes, at a cap of 1 only 2; there is one, and a gpu. Small takes more than one box: a gpu (3).
    assert not found[RequirementKind.ACCURACY].helps
    assert found[RequirementKind.BUDGET].value == pytest.approx(4.0)
    assert found[RequirementKind.RATE].value == pytest.approx(0.45, rel=2e-4)  # large on the one box
    assert not found[RequirementKind.UTILISATION].helps


def test_reason_members_and_each_relaxation_are_published_as_they_are_solved() -> None:
    given = replace(seeing(target=85.0, boxes=1, budget_usd_per_h=2.5), utilisation=0.9)
    published: list[tuple[Part, Conflict]] = []

    def publish(explanation: Explanation, part: Part) -> None:
        assert explanation.conflict is not None and explanation.status == "infeasible"
        published.append((part, explanation.conflict))

    conflict = explain(given, publish=publish).conflict
    assert conflict is not None and len(conflict.members) == 4

    parts, conflicts = zip(*published, strict=True)
    assert parts == (Part.REASON, Part.CONFLICT, *(Part.RELAXATION for _ in conflict.members))
    reason, members, *relaxations = conflicts
    assert (reason.reason, reason.members) == (conflict.reason, ())
    assert members.members == conflict.members and {item.helps for item in members.relaxations} == {None}
    for number, known in enumerate(relaxations, 1):
        assert known.relaxations == conflict.relaxations[:number]
    kinds = [member.kind for member in conflict.members]
    assert kinds == sorted(kinds, key=list(RequirementKind).index), "most important to users first"


def test_a_conflict_is_found_without_solving_what_is_decided_already() -> None:
    given = replace(seeing(target=85.0, boxes=1, budget_usd_per_h=2.5), utilisation=0.9)
    resolver = Resolver(ResolveSettings())
    every = requirements(given)
    answer = resolver.ask(given, "the plan")
    solved: list[tuple[frozenset[Requirement], bool]] = []
    by_problem = {repr(drop(given, *dropped)): frozenset(every) - frozenset(dropped) for dropped in subsets(every)}

    def ask(problem: Problem, label: str) -> Resolved:
        found = resolver.ask(problem, label, explained=False)
        kept = by_problem[repr(problem)]
        for known, holds in solved:  # dropping requirements never makes a problem infeasible
            assert not (kept <= known if holds else known <= kept), "a set solved before decides it"
        solved.append((kept, found.holds))
        return found

    search = ConflictSearch(given, every, resolver, ask, answer)
    members, fewest = search.smallest(search.irreducible(every))
    assert len(members) == 4 and fewest and search.proven and len(solved) > 3


def subsets(every: tuple[Requirement, ...]) -> Iterator[tuple[Requirement, ...]]:
    """All subsets."""
    return chain.from_iterable(combinations(every, size) for size in range(len(every) + 1))


def test_one_requirement_may_be_too_much_alone() -> None:
    conflict = explain(seeing(target=95.0)).conflict
    assert conflict is not None

    (item,) = conflict.relaxations
    assert (item.requirement.kind, item.value) == (RequirementKind.ACCURACY, 90.0)
    assert item.cost_usd_per_h == pytest.approx(3.0)


def test_structure_alone_may_forbid_a_plan() -> None:
    given = problem(operator("see", ["camera"], variant("small", {"gpu": 0.1})), pools=[box(), gpu()], links=[])
    conflict = explain(given).conflict
    assert conflict is not None

    assert conflict.members == ()
    assert "see" in conflict.reason


def test_two_reasons_are_told_when_easing_one_does_not_help() -> None:
    # Too little accuracy whatever runs, and too few workers for either variant.
    given = replace(
        seeing(target=95.0), pools=(box(0), gpu(1)), sources=(replace(seeing().sources[0], rate_per_s=100.0),)
    )
    conflict = explain(given).conflict
    assert conflict is not None

    assert all(item.helps is False for item in conflict.relaxations)
    assert conflict.remaining
    assert not set(conflict.remaining) & {conflict.members[0]}


def test_exclusive_pools_are_eased_by_what_made_them_so() -> None:
    two = [operator(name, ["camera"], variant("v", {"box": 0.01, "gpu": 0.01})) for name in ("a", "b")]
    given = problem(*two, pools=[box(1, sharing=Sharing.EXCLUSIVE), gpu(0, sharing=Sharing.EXCLUSIVE)])
    conflict = explain(given, settings=ResolveSettings(exclusive=(("box", "gpu"),))).conflict
    assert conflict is not None

    shared = next(item for item in conflict.relaxations if item.requirement.kind is RequirementKind.SHARING)
    assert shared.requirement.subjects == ("box", "gpu")
    assert shared.helps
    assert shared.value is None


def test_a_latency_eased_to_the_cheapest_plans_is_not_said_to_be_the_least() -> None:
    def p99_s(plan: Plan, seed: int) -> dict[str, float]:
        return {"": 0.2 if plan.selection["see"] == "large" else 0.05}

    given = seeing(target=85.0, latency_p99_s=0.1)
    found = find_conflict(given, Resolved("infeasible", None, "none"), Resolver(ResolveSettings(p99_s=p99_s)))

    item = next(item for item in found.relaxations if item.requirement.kind is RequirementKind.LATENCY_P99)
    assert (item.value, item.exact) == (0.2, False)
    assert not found.proven


@pytest.mark.parametrize("status", ["unknown", "infeasible"])
def test_no_conflict_is_named_when_time_ends_before_the_first_probe(status: str) -> None:
    def ask(problem: Problem, label: str) -> Resolved:
        return Resolved(status, None, "an answer")

    found = find_conflict(
        seeing(target=95.0), Resolved("infeasible", None, "too much"), Resolver(ResolveSettings()), ask
    )

    assert found.members == ()
    assert found.proven == (status == "infeasible")  # that structure alone forbids a plan


@pytest.mark.slow
def test_a_budget_eased_to_a_plan_that_is_not_proven_cheapest_is_not_said_to_be_the_least() -> None:
    given = seeing(target=85.0, budget_usd_per_h=2.0)  # large on the gpu: 3

    def ask(problem: Problem, label: str) -> Resolved:
        found = Resolver(ResolveSettings()).ask(problem, label)
        return replace(found, status="gap") if found.status == "optimal" else found

    for exact, asked in ((True, None), (False, ask)):
        found = find_conflict(given, Resolved("infeasible", None, "too dear"), Resolver(ResolveSettings()), asked)
        item = next(item for item in found.relaxations if item.requirement.kind is RequirementKind.BUDGET)
        assert (item.value, item.exact) == (pytest.approx(3.0), exact)


@pytest.mark.slow
def test_the_least_budget_of_the_most_accurate_plan_is_not_what_that_plan_costs() -> None:
    asked = seeing(target=75.0, budget_usd_per_h=0.5)  # small on the box: 1; large, more accurate, on the gpu: 3
    conflict = explain(replace(asked, objective=Objective.MEAN_ACCURACY)).conflict
    assert conflict is not None
    item = next(item for item in conflict.relaxations if item.requirement.kind is RequirementKind.BUDGET)
    assert item.helps and item.exact
    assert item.value == pytest.approx(1.0, rel=2e-4)
