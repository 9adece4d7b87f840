"""The difference of two plans as text."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from jellybean.report.plan_diff_view import diff_text
from jellybean_solver import ModelRef, Plan, plan_diff
from tests import report_plans


def with_model(plan: Plan, sha256: str) -> Plan:
    """The plan with a model file of this hash for its first operator."""
    first, *others = plan.operators
    return replace(plan, operators=(replace(first, model=ModelRef("first.onnx", sha256)), *others))


def test_a_model_that_was_trained_anew_is_all_that_changes() -> None:
    plan = report_plans.digits()
    out = io.StringIO()
    Console(file=out, width=200).print(
        diff_text(plan_diff(with_model(plan, "ab" * 32), with_model(plan, "cd" * 32)), "A", "B")
    )
    head, cost, changed, _, *workers = out.getvalue().splitlines()
    first = plan.operators[0]
    assert (head, cost.split()[0]) == ("A -> B", "cost")
    assert changed == f"  {first.name} {first.variant}: another model file, SHA-256 {'ab' * 6} -> {'cd' * 6}"
    assert {line.split()[0] for line in workers} == {w.name for w in plan.workers if first.name in w.rates_per_s}
