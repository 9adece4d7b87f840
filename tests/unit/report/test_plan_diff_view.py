"""The difference of two plans as text."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from jellybean.report import diff_text, latency_changes
from jellybean_solver import ModelRef, Plan, PlannedOperator, ServiceTime, Slo, plan_diff
from tests import report_plans


def text_of(before: Plan, after: Plan, *, every_figure: bool = False) -> list[str]:
    """The lines of the difference."""
    out = io.StringIO()
    latencies = tuple(latency_changes(before, after))
    text = diff_text(plan_diff(before, after), "A", "B", latencies, every_figure=every_figure)
    Console(file=out, width=200).print(text)
    return out.getvalue().splitlines()


def with_model(plan: Plan, sha256: str) -> Plan:
    """The plan with a model file of this hash for its first operator."""
    first, *others = plan.operators
    return replace(plan, operators=(replace(first, model=ModelRef("first.onnx", sha256)), *others))


def test_a_model_that_was_trained_anew_is_all_that_changes() -> None:
    plan = report_plans.digits()
    head, cost, changed, _, *workers = text_of(with_model(plan, "ab" * 32), with_model(plan, "cd" * 32))
    first = plan.operators[0]
    assert (head, cost.split()[0]) == ("A -> B", "cost")
    assert changed == f"  {first.name} {first.variant}: another model file, SHA-256 {'ab' * 6} -> {'cd' * 6}"
    assert {line.split()[0] for line in workers} == {w.name for w in plan.workers if first.name in w.rates_per_s}


def test_figures_of_a_new_profile_are_counted_and_the_latency_that_follows_is_named() -> None:
    plan = replace(report_plans.digits(), slo=Slo(latency_p99_s=5.0))
    slower = replace(plan, hop_s=plan.hop_s * (1 + 1e-8), operators=tuple(map(with_slower_model, plan.operators)))
    faster_target = replace(slower, slo=Slo(latency_p99_s=4.0))
    _, _, latency, *rest = text_of(plan, faster_target)
    assert re.fullmatch(r"  p99 latency \(closed form\) \d\S+ ms -> \d\S+ ms", latency)
    changed = len(plan_diff(plan, slower).figures)
    assert changed > len(plan.operators)
    assert rest == ["  slo.latency_p99_s: 5 -> 4", f"  {changed} profiled figures also changed (--all lists them)"]

    lines = text_of(plan, faster_target, every_figure=True)
    assert len(lines) == 3 + 1 + changed
    pairs = [re.findall(r": (.*) -> (.*)", line) for line in lines if "load_s" in line or "hop_s" in line]
    assert len(pairs) > len(plan.operators)
    assert all(before != after for ((before, after),) in pairs)


def with_slower_model(operator: PlannedOperator) -> PlannedOperator:
    """The operator with service times that are a hundredth longer."""
    service = {
        pool: {batch: ServiceTime(1.01 * time.load_s, 1.01 * time.mean_s) for batch, time in times.items()}
        for pool, times in operator.service.items()
    }
    return replace(operator, service=service)
