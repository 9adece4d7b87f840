"""Where the money of a plan goes: flows between pools, cost by operator, by tier and by link.

A worker's price is shared among the operators it hosts by the time they keep it busy, so that idle time is paid by
those who need the worker. Traffic is paid by the operator that receives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from jellybean_solver.plan import Plan, PlannedWorker
from jellybean_solver.problem import GIB, Edge, EdgeKind

SECONDS_PER_H = 3600.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages from one operator's workers in one pool (or a source) to another operator's in one pool."""

    upstream: str
    upstream_pool: str | None  # None: a source
    upstream_tier: str
    downstream: str
    downstream_pool: str
    downstream_tier: str
    messages_per_s: float
    bytes_per_s: float
    cost_usd_per_h: float

    @property
    def crosses(self) -> bool:
        """Whether it uses a link; inside a tier traffic is free."""
        return self.upstream_tier != self.downstream_tier


@dataclass(frozen=True, slots=True)
class Share:
    """What one operator or tier costs."""

    name: str
    compute_usd_per_h: float
    network_usd_per_h: float

    @property
    def total_usd_per_h(self) -> float:
        return self.compute_usd_per_h + self.network_usd_per_h


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Traffic on one link. `use` is the fraction of its bandwidth, None when that is unlimited."""

    upstream_tier: str
    downstream_tier: str
    bytes_per_s: float
    cost_usd_per_h: float
    use: float | None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Sums over `operators` and over `tiers` both equal the plan's cost."""

    operators: tuple[Share, ...]
    tiers: tuple[Share, ...]
    links: tuple[LinkUse, ...]
    flows: tuple[Flow, ...]


def break_down(plan: Plan) -> Breakdown:
    """Attribute a plan's cost. A tier pays for the traffic that enters it."""
    flows = _flows(plan)
    compute_by_operator: defaultdict[str, float] = defaultdict(float)
    compute_by_tier: defaultdict[str, float] = defaultdict(float)
    for worker in plan.workers:
        compute_by_tier[worker.tier] += worker.price_usd_per_h
        for operator, load in operator_loads(plan, worker).items():
            share = load / worker.load if worker.load > 0 else 1 / len(worker.rates_per_s)
            compute_by_operator[operator] += worker.price_usd_per_h * share
    network_by_operator: defaultdict[str, float] = defaultdict(float)
    network_by_tier: defaultdict[str, float] = defaultdict(float)
    for flow in flows:
        network_by_operator[flow.downstream] += flow.cost_usd_per_h
        network_by_tier[flow.downstream_tier] += flow.cost_usd_per_h
    return Breakdown(
        operators=tuple(
            Share(o.name, compute_by_operator[o.name], network_by_operator[o.name]) for o in plan.operators
        ),
        tiers=tuple(Share(tier, compute_by_tier[tier], network_by_tier[tier]) for tier in plan.tiers),
        links=_links(plan, flows),
        flows=flows,
    )


def operator_loads(plan: Plan, worker: PlannedWorker) -> Mapping[str, float]:
    """Busy fraction of a worker per operator, in the plan's operator order; they sum to the worker's load."""
    return {
        operator.name: worker.rates_per_s[operator.name] * operator.service[worker.pool].load_s / operator.batch
        for operator in plan.operators
        if operator.name in worker.rates_per_s
    }


def _flows(plan: Plan) -> tuple[Flow, ...]:
    sources = {source.name: source for source in plan.sources}
    price = {(link.upstream_tier, link.downstream_tier): link.price_usd_per_gib for link in plan.links}
    shares: defaultdict[tuple[Edge, str | None, str], float] = defaultdict(float)
    for route in plan.routes:
        for operator in plan.operators:
            here = plan.worker_by_name[route.workers[operator.name]].pool
            for edge in operator.inputs:
                source = edge.upstream in sources
                there = None if source else plan.worker_by_name[route.workers[edge.upstream]].pool
                shares[edge, there, here] += route.weight
    tier_of = {worker.pool: worker.tier for worker in plan.workers}
    flows: list[Flow] = []
    for (edge, there, here), share in shares.items():
        if there is None:
            tier, rate, size = (s := sources[edge.upstream]).tier, s.rate_per_s, s.message_bytes
        else:
            upstream = plan.operator_by_name[edge.upstream]
            tier, rate, size = tier_of[there], upstream.rate_per_s, upstream.message_bytes[edge.downstream]
        messages = share * rate * (edge.ratio if edge.kind is EdgeKind.FAN_OUT else 1.0)
        paid = price.get((tier, tier_of[here]), 0.0) if tier != tier_of[here] else 0.0
        cost = messages * size * SECONDS_PER_H / GIB * paid
        flows.append(
            Flow(edge.upstream, there, tier, edge.downstream, here, tier_of[here], messages, messages * size, cost)
        )
    return tuple(flows)


def _links(plan: Plan, flows: tuple[Flow, ...]) -> tuple[LinkUse, ...]:
    found: list[LinkUse] = []
    for link in plan.links:
        ends = (link.upstream_tier, link.downstream_tier)
        carried = [flow for flow in flows if (flow.upstream_tier, flow.downstream_tier) == ends]
        rate = sum(flow.bytes_per_s for flow in carried)
        capacity = link.bandwidth_bytes_per_s
        use = rate / capacity if capacity else None
        found.append(LinkUse(*ends, rate, sum(flow.cost_usd_per_h for flow in carried), use))
    return tuple(found)
