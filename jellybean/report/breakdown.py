"""Cost breakdown of a plan by operator, tier and link.

A worker's price is divided among its operators in proportion to the utilisation that each causes, so that idle time
is charged to the operators that need the worker. Traffic between tiers belongs to its two ends alike, so it has a row
of its own and is charged to no operator or tier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from jellybean_solver import (
    Flow,
    LinkUse,
    Plan,
    PlannedWorker,
    flows,
    link_uses,
)


@dataclass(frozen=True, slots=True)
class CostShare:
    """Part of the plan's cost: of the workers of one operator or tier, or of the traffic between tiers."""

    name: str
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A plan's cost by operator, by tier and by link.

    The operators plus `traffic` add up to the plan's cost, and so do the tiers plus `traffic`.
    """

    operators: tuple[CostShare, ...]
    tiers: tuple[CostShare, ...]
    traffic: CostShare
    links: tuple[LinkUse, ...]
    flows: tuple[Flow, ...]


def break_down(plan: Plan) -> Breakdown:
    """Attribute a plan's cost to operators, tiers and traffic."""
    carried = flows(plan)
    by_operator: defaultdict[str, float] = defaultdict(float)
    by_tier: defaultdict[str, float] = defaultdict(float)
    for worker in plan.workers:
        price = worker.price_usd_per_h * plan.sites.get(worker.tier, 1)
        by_tier[worker.tier] += price
        for operator, load in operator_loads(plan, worker).items():
            share = load / worker.load if worker.load > 0 else 1 / len(worker.rates_per_s)
            by_operator[operator] += price * share
    return Breakdown(
        operators=tuple(CostShare(operator.name, by_operator[operator.name]) for operator in plan.operators),
        tiers=tuple(CostShare(tier, by_tier[tier]) for tier in plan.tiers),
        traffic=CostShare("traffic", sum(flow.cost_usd_per_h for flow in carried)),
        links=link_uses(plan),
        flows=carried,
    )


def operator_loads(plan: Plan, worker: PlannedWorker) -> Mapping[str, float]:
    """Operator -> its share of the worker's utilisation, in the plan's order; the sum is the worker's utilisation."""
    return {
        operator.name: worker.rates_per_s[operator.name]
        * plan.operator_at(operator.name, worker.name).request_s(worker.pool)
        for operator in plan.operators
        if operator.name in worker.rates_per_s
    }
