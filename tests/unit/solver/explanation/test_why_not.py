"""Why a plan does not use something: what the choice costs, or which requirements forbid it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean_solver import Question, RequirementKind, explain
from jellybean_solver.planning.requirements import requirements
from tests.support.small_problems import box, gpu, operator, problem
from tests.unit.solver.explanation.two_variants import SMALL, seeing


@pytest.mark.parametrize(
    ("question", "verdict", "delta", "said"),
    [
        (Question("q", "see", variant="large"), "used", None, "see uses large"),
        (Question("q", "see", place="cloud"), "used", None, "all of see in cloud"),
        (Question("q", "see", place="gpu"), "used", None, "all of see in gpu"),
        (Question("q", "see", variant="small"), "no_plan", None, "accuracy target of 85"),
        (Question("q", "see", place="edge"), "no_plan", None, "the 1 worker of box"),
        # The first half of the work on one box leaves the gpu as dear as before: 3 + 1.
        (Question("q", place="edge"), "dearer", 1.0, "box would not pay"),
    ],
)
def test_why_not(question: Question, verdict: str, delta: float | None, said: str) -> None:
    (answer,) = explain(seeing(), [question]).why_not

    assert answer.verdict == verdict
    assert said in answer.sentence
    assert (answer.change.delta_usd_per_h if answer.change else None) == (pytest.approx(delta) if delta else None)


def test_why_not_a_worker_that_costs_more_than_the_budget() -> None:
    given = seeing(target=75.0, budget_usd_per_h=2.0)  # small on the box: 1; a gpu alone costs 3

    (answer,) = explain(given, [Question("gpu", place="gpu")]).why_not

    assert answer.verdict == "no_plan"
    assert (
        "no plan keeps the budget of 2 USD/h: the cheapest costs 3.00 USD/h, 3.00 of it for the worker"
        in answer.sentence
    )
    assert answer.conflict is not None
    assert answer.conflict.proven
    (item,) = answer.conflict.relaxations
    assert item.requirement in requirements(given)
    assert (item.requirement.kind, item.requirement.value, item.value) == (
        RequirementKind.BUDGET,
        2.0,
        pytest.approx(3.0),
    )
    assert item.exact


def test_why_not_a_worker_conflicts_in_terms_of_the_problem_as_given() -> None:
    # Large on the gpu costs 3; with a box beside it 4. Small on the box would keep the budget.
    given = seeing(target=85.0, budget_usd_per_h=3.5)

    (answer,) = explain(given, [Question("edge", place="edge")]).why_not

    assert answer.conflict is not None
    found = {item.requirement.kind: item for item in answer.conflict.relaxations}
    assert set(answer.conflict.members) <= set(requirements(given))
    assert found[RequirementKind.BUDGET].value == pytest.approx(4.0)
    assert found[RequirementKind.ACCURACY].value == 80.0
    assert found[RequirementKind.ACCURACY].cost_usd_per_h == pytest.approx(1.0)
    boxes = next(item for kind, item in found.items() if kind is RequirementKind.COUNT)
    assert (boxes.requirement.subjects, boxes.value) == (("box",), 2.0)
    assert boxes.cost_usd_per_h == pytest.approx(2.0)


def test_why_not_a_worker_within_the_budget() -> None:
    (answer,) = explain(seeing(budget_usd_per_h=4.0), [Question("edge", place="edge")]).why_not

    assert (answer.verdict, answer.conflict) == ("dearer", None)
    assert answer.change is not None
    assert answer.change.cost_usd_per_h == pytest.approx(4.0)


def test_why_not_a_place_without_a_profile() -> None:
    only_box = replace(SMALL, service={"box": SMALL.service["box"]})
    given = problem(operator("see", ["camera"], only_box), pools=[box(), gpu()])

    (answer,) = explain(given, [Question("gpu", place="gpu")]).why_not

    assert answer.verdict == "no_profile"
    assert "see" in answer.sentence
