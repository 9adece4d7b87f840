"""The audits of a plan, in words and as JSON values: what each costs, and what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from jellybean.display import formats
from jellybean.report.breakdown import Breakdown, break_down
from jellybean_solver import (
    WORKFLOW_SEPARATOR,
    Cost,
    Plan,
    PlannedAudit,
    served_streams,
    whole_selection,
)

MOST_LINES = 5  # workflows whose audits are told one by one


def audit_cost(plan: Plan, workflow: str = "", parts: Breakdown | None = None) -> Cost:
    """An audit's part of a plan's cost: its share of its workers' prices by load, and the traffic to its operators.

    `parts`: of the plan, if they are known.
    """
    parts = parts or break_down(plan)

    def is_own(name: str) -> bool:
        return plan.workflow_of(name) == workflow and plan.is_of_audit(name)

    workers = sum(part.usd_per_h for part in parts.operators if is_own(part.name))
    return Cost(workers, sum(flow.cost_usd_per_h for flow in parts.flows if is_own(flow.downstream)))


def reference(plan: Plan, workflow: str = "") -> Mapping[str, str]:
    """Operator -> variant that the audit of a workflow runs."""
    own = (operator for operator in plan.operators if plan.workflow_of(operator.name) == workflow)
    return {
        plan.audited_name(operator.name).rpartition(WORKFLOW_SEPARATOR)[2]: operator.variant
        for operator in own
        if plan.is_of_audit(operator.name)
    }


def _unlike(plan: Plan, workflow: str) -> list[tuple[str, str]]:
    """Operators, with their variants, of which the audit runs another variant than the plan serves to all requests."""
    served: dict[str, set[str]] = {}
    for operator in plan.operators:
        if plan.workflow_of(operator.name) == workflow and not plan.is_of_audit(operator.name):
            for name, variant in whole_selection(operator.variants).items():
                served.setdefault(name.rpartition(WORKFLOW_SEPARATOR)[2], set()).add(variant)
    return [(name, variant) for name, variant in reference(plan, workflow).items() if served[name] != {variant}]


def audit_lines(plan: Plan) -> Iterator[str]:
    """A line on each audit and its cost, and one if it compares a selection with itself; none without audits."""
    if not plan.audits:
        return
    parts = break_down(plan)
    costs = {workflow: audit_cost(plan, workflow, parts) for workflow in plan.audits}
    if len(costs) > MOST_LINES:
        total = sum(cost.total_usd_per_h for cost in costs.values())
        cost = f"{formats.usd(total)} USD/h of the cost are their share of workers and links"
        yield f"audits of {len(costs)} workflows: {cost}"
        return
    for workflow, audit in plan.audits.items():
        prefix = f"{workflow}: " if workflow else ""
        yield from (f"{prefix}{line}" for line in _lines(plan, workflow, audit, costs[workflow]))


def _lines(plan: Plan, workflow: str, audit: PlannedAudit, cost: Cost) -> Iterator[str]:
    rate = audit.share * sum(stream.rate_per_s for stream in served_streams(plan) if stream.workflow == workflow)
    unlike = [f"{name} {variant}" for name, variant in _unlike(plan, workflow)]
    expected = "not known before the first audits"
    if audit.agreement is not None:
        expected = f"expected to be the same in {audit.agreement:.2f} % ({audit.requests:,} held-out requests)"
    yield (
        f"audit of {formats.percent(audit.share)}, {formats.rate(rate)}: these are also answered by "
        f"{', '.join(unlike) or 'the same variants'}, of accuracy {audit.accuracy:.2f}; answers {expected}; "
        f"{formats.usd(cost.total_usd_per_h)} USD/h of the cost are its share of workers and links"
    )
    if not unlike:
        yield "the audit compares the most accurate variants with themselves: it finds only workers that answer wrongly"


def audit_json(plan: Plan, workflow: str = "") -> dict[str, Any]:
    """The audit of a workflow as JSON values, with its cost; empty without an audit."""
    audit = plan.audits.get(workflow)
    if audit is None:
        return {}
    cost = audit_cost(plan, workflow)
    parts = {"compute": cost.compute_usd_per_h, "network": cost.network_usd_per_h, "total": cost.total_usd_per_h}
    stated = {key: value for key, value in asdict(audit).items() if key != "selections" or value}
    return {"audit": {**stated, "reference": dict(reference(plan, workflow)), "cost_usd_per_h": parts}}
