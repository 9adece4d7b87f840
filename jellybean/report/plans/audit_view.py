"""The audit of a plan, in words and as JSON values: what it costs, and what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from jellybean.display import formats
from jellybean.report.breakdown import break_down
from jellybean_solver import AUDIT_PREFIX, Cost, Plan, is_of_audit, served_streams, whole_selection


def audit_cost(plan: Plan) -> Cost:
    """The audit's part of a plan's cost: its share of its workers' prices by load, and the traffic to its operators."""
    parts = break_down(plan)
    workers = sum(part.usd_per_h for part in parts.operators if is_of_audit(plan.audit, part.name))
    return Cost(workers, sum(flow.cost_usd_per_h for flow in parts.flows if is_of_audit(plan.audit, flow.downstream)))


def reference(plan: Plan) -> Mapping[str, str]:
    """Operator -> variant that the audit runs."""
    own = (operator for operator in plan.operators if is_of_audit(plan.audit, operator.name))
    return {operator.name.removeprefix(AUDIT_PREFIX): operator.variant for operator in own}


def _unlike(plan: Plan) -> list[tuple[str, str]]:
    """Operators, with their variants, of which the audit runs another variant than the plan serves."""
    served = whole_selection(plan.operators)
    return [(name, variant) for name, variant in reference(plan).items() if served[name] != variant]


def audit_lines(plan: Plan) -> Iterator[str]:
    """A line on the audit and its cost, and one if it compares a selection with itself; none without an audit."""
    audit = plan.audit
    if audit is None:
        return
    rate = audit.share * sum(stream.rate_per_s for stream in served_streams(plan))
    unlike = [f"{name} {variant}" for name, variant in _unlike(plan)]
    cost, expected = audit_cost(plan), "not known before the first audits"
    if audit.agreement is not None:
        expected = f"expected to be the same in {audit.agreement:.2f} % ({audit.requests:,} held-out requests)"
    yield (
        f"audit of {formats.percent(audit.share)}, {formats.rate(rate)}: these are also answered by "
        f"{', '.join(unlike) or 'the same variants'}, of accuracy {audit.accuracy:.2f}; answers {expected}; "
        f"{formats.usd(cost.total_usd_per_h)} USD/h of the cost are its share of workers and links"
    )
    if not unlike:
        yield "the audit compares the most accurate variants with themselves: it finds only workers that answer wrongly"


def audit_json(plan: Plan) -> dict[str, Any]:
    """The audit as JSON values, with its cost; empty without an audit."""
    if plan.audit is None:
        return {}
    cost = audit_cost(plan)
    parts = {"compute": cost.compute_usd_per_h, "network": cost.network_usd_per_h, "total": cost.total_usd_per_h}
    return {"audit": {**asdict(plan.audit), "reference": dict(reference(plan)), "cost_usd_per_h": parts}}
