"""What is said of conflicts that are not known in full."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from jellybean.documents import Location
from jellybean.planning import Explained
from jellybean.report.explanation.view import explained_text
from jellybean_solver import (
    Conflict,
    Explanation,
    LeastRelaxation,
    Requirement,
    RequirementKind,
    ResolveSettings,
    explain,
)
from jellybean_solver.planning.requirements import requirements as asked
from tests.support.small_problems import box, operator, problem, variant
from tests.unit.solver.explanation.test_explain import seeing

LATENCY = Requirement(RequirementKind.LATENCY_P99, (), 0.1, "the p99 latency of 100 ms")


def told(status: str, found: Conflict) -> str:
    given = problem(operator("see", ["camera"], variant("small", {"box": 0.1})), pools=[box()])
    places = {LATENCY: (Location("workflow.yaml", 3, "slo.latency_p99", "100 ms"),)}
    out = StringIO()
    Console(file=out, width=200).print(
        explained_text(Explained(given, Explanation(status, None, conflict=found), places, 0.1))
    )
    return out.getvalue()


def test_a_conflict_that_was_not_found_in_time_is_not_put_down_to_structure() -> None:
    known, unknown = (told("infeasible", Conflict((), "too few workers", proven)) for proven in (True, False))

    assert known.index("too few workers") < known.index("This holds regardless of the targets")
    assert "The conflict is unknown" in unknown
    assert "too few workers" in unknown
    assert "Whatever" not in unknown


def test_a_conflict_does_not_promise_a_plan_without_one_member() -> None:
    """A requirement outside the conflict may forbid it."""
    budget = Requirement(RequirementKind.BUDGET, (), 3.0, "the budget of 3 USD/h")
    given = problem(operator("see", ["camera"], variant("small", {"box": 0.1})), pools=[box()])
    places = {item: (Location("workflow.yaml", 3, item.kind.value, "1"),) for item in (LATENCY, budget)}
    found = Conflict(tuple(LeastRelaxation(item, False) for item in (LATENCY, budget)), "too few workers", True, True)
    out = StringIO()
    explanation = Explanation("infeasible", None, conflict=found)
    Console(file=out, width=200).print(explained_text(Explained(given, explanation, places, 0.1)))
    assert (
        "These 2 requirements cannot be met together, whatever the others are (a minimum conflict); dropping one "
        "resolves this conflict, another may remain:"
    ) in out.getvalue()


def test_what_had_no_time_is_listed_and_not_called_loose() -> None:
    given = replace(seeing(), name="by hand")
    places = {
        item: (Location("workflow.yaml", 3, item.kind.value + "".join(item.subjects), "1"),) for item in asked(given)
    }
    for ticks, in_time in ((10_000, True), (30, False)):
        clock = iter(range(100_000))
        found = explain(
            given, settings=ResolveSettings(time_limit_s=float(ticks), clock=lambda clock=clock: float(next(clock)))
        )
        out = StringIO()
        Console(file=out, width=200).print(explained_text(Explained(given, found, places, 0.1, float(ticks))))
        text = out.getvalue()
        assert ("Not answered within the time limit" in text) != in_time
        assert ("not solved for lack of time: try --time-limit" in text.rstrip().splitlines()[-1]) != in_time
        assert "Nothing binds" not in text
        assert "no plan: time" not in text
        assert all(change.words in text for change in (*found.values, *found.choices))
        assert in_time == (found.unanswered == 0)


@pytest.mark.parametrize("exact", [True, False])
def test_a_relaxation_that_may_be_too_much_says_so(exact: bool) -> None:
    item = LeastRelaxation(LATENCY, True, 0.2, 3.0, None, exact)
    text = told("refused", Conflict((item,), "the cheapest plan would take 200 ms", False))

    assert ("less may suffice" in text) != exact
    assert "least" not in text
