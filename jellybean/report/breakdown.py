"""Cost breakdown of a plan by operator, tier and link.

A worker's price is divided among its operators in proportion to the utilisation that each causes, so that idle time
is charged to the operators that need the worker. Traffic between tiers belongs to its two ends alike, so it has a row
of its own; the network cost of an operator or tier is that of the traffic it receives.
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
    """Part of the plan's cost: the workers of one operator or tier, and the traffic that it receives."""

    name: str
    compute_usd_per_h: float
    network_usd_per_h: float

    @property
    def total_usd_per_h(self) -> float:
        return self.compute_usd_per_h + self.network_usd_per_h


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A plan's cost by operator, by tier and by link.

    The compute cost of the operators plus `traffic` is the total cost, and so is that of the tiers plus `traffic`.
    """

    operators: tuple[CostShare, ...]
    tiers: tuple[CostShare, ...]
    traffic: CostShare
    links: tuple[LinkUse, ...]
    flows: tuple[Flow, ...]


def break_down(plan: Plan) -> Breakdown:
    """Attribute a plan's cost to operators, tiers and traffic."""
    carried = flows(plan)
    compute_by_operator: defaultdict[str, float] = defaultdict(float)
    compute_by_tier: defaultdict[str, float] = defaultdict(float)
    for worker in plan.workers:
        price = worker.price_usd_per_h * plan.sites.get(worker.tier, 1)
        compute_by_tier[worker.tier] += price
        for operator, load in operator_loads(plan, worker).items():
            share = load / worker.load if worker.load > 0 else 1 / len(worker.rates_per_s)
            compute_by_operator[operator] += price * share
    network_by_operator: defaultdict[str, float] = defaultdict(float)
    network_by_tier: defaultdict[str, float] = defaultdict(float)
    for flow in carried:
        network_by_operator[flow.downstream] += flow.cost_usd_per_h
        network_by_tier[flow.downstream_tier] += flow.cost_usd_per_h
    return Breakdown(
        operators=tuple(
            CostShare(o.name, compute_by_operator[o.name], network_by_operator[o.name]) for o in plan.operators
        ),
        tiers=tuple(CostShare(tier, compute_by_tier[tier], network_by_tier[tier]) for tier in plan.tiers),
        traffic=CostShare("traffic", 0.0, sum(flow.cost_usd_per_h for flow in carried)),
        links=link_uses(plan),
        flows=carried,
    )


def operator_loads(plan: Plan, worker: PlannedWorker) -> Mapping[str, float]:
    """Operator -> its share of the worker's utilisation, in the plan's order; the sum is the worker's utilisation."""
    return {
        operator.name: worker.rates_per_s[operator.name] * operator.request_s(worker.pool)
        for operator in plan.operators
        if operator.name in worker.rates_per_s
    }
