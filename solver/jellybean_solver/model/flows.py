"""Traffic between worker pools and over links, by a plan's routes: messages, bytes and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.problem import GIB, BetweenTiers, Problem
from jellybean_solver.model.selection_shares import selection_shares
from jellybean_solver.model.workflow import EdgeKind

SECONDS_PER_HOUR = 3600.0

# Downstream operator, number of its input, pool of the upstream ("": a source) and of the downstream.
_Ends = tuple[str, int, str, str]


@dataclass(frozen=True, slots=True)
class Flow(BetweenTiers):
    """Messages from an operator in one pool, or from a source, to a downstream operator in one pool."""

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
        """True if it uses a link; traffic inside a tier is free."""
        return self.upstream_tier != self.downstream_tier

    def beside(self, other: Flow) -> Flow:
        """This flow and another one between the same ends together."""
        return replace(
            self,
            messages_per_s=self.messages_per_s + other.messages_per_s,
            bytes_per_s=self.bytes_per_s + other.bytes_per_s,
            cost_usd_per_h=self.cost_usd_per_h + other.cost_usd_per_h,
        )


@dataclass(frozen=True, slots=True)
class LinkUse(BetweenTiers):
    """Traffic on one link, or on the identical links of all `sites` together.

    `use`: fraction of the bandwidth that is used, None if the bandwidth is unlimited.
    """

    upstream_tier: str
    downstream_tier: str
    bytes_per_s: float
    cost_usd_per_h: float
    use: float | None
    sites: int = 1


def traffic_usd_per_h(bytes_per_s: float, price_usd_per_gib: float) -> float:
    """USD per hour of a steady flow over a link."""
    return bytes_per_s * SECONDS_PER_HOUR / GIB * price_usd_per_gib


def flows(plan: Plan) -> tuple[Flow, ...]:
    """All flows of a plan, by downstream operator, at the plan's own rates and message sizes."""
    tier_of = {worker.pool: worker.tier for worker in plan.workers}
    at_sources = {source.name: plan.rate_in_all_sites(source) for source in plan.sources}
    found: dict[_Ends, Flow] = {}
    for part in selection_shares(plan):
        rates = {**at_sources, **part.rates_per_s}
        for ends, weight in _weights(plan, part.routes).items():
            downstream, number, upstream_pool, pool = ends
            edge = plan.operator_by_name[downstream].inputs[number]
            source = plan.source_by_name.get(edge.upstream)
            if source is None:
                sender = plan.operator_by_name[edge.upstream]
                sent = sender.with_variant(part.selection[edge.upstream]).message_bytes
                tier, size = tier_of[upstream_pool], sent[downstream]
            else:
                tier, size = source.tier, source.message_bytes
            # A fan-out sends one message per child, a gather one per child that it waits for.
            of = downstream if edge.kind is EdgeKind.FAN_OUT else edge.upstream
            messages = weight * rates[of]
            link = plan.link_by_tiers.get((tier, tier_of[pool]))
            price = 0.0 if link is None else link.price_usd_per_gib
            flow = Flow(
                edge.upstream,
                upstream_pool or None,
                tier,
                downstream,
                pool,
                tier_of[pool],
                messages,
                messages * size,
                traffic_usd_per_h(messages * size, price),
            )
            known = found.get(ends)
            found[ends] = flow if known is None else known.beside(flow)
    order = {name: place for place, name in enumerate(plan.operator_by_name)}
    return tuple(found[ends] for ends in sorted(found, key=lambda ends: (order[ends[0]], ends[1])))


def _weights(plan: Plan, routes: Iterable[Route]) -> Mapping[_Ends, float]:
    """The ends of each flow -> fraction of requests."""
    found: defaultdict[_Ends, float] = defaultdict(float)
    pool_of = {worker.name: worker.pool for worker in plan.workers}
    upstreams = {one.name: [edge.upstream for edge in one.inputs] for one in plan.operators}
    for route in routes:
        pools = {name: pool_of[worker] for name, worker in route.workers.items()}
        for name, pool in pools.items():
            for number, upstream in enumerate(upstreams[name]):
                found[name, number, pools.get(upstream, ""), pool] += route.weight
    return found


def link_uses(plan: Plan, traffic: Iterable[Flow] | None = None) -> tuple[LinkUse, ...]:
    """The traffic on each link of a plan, in the order of `plan.links`. `traffic`: its flows, if they are known."""
    carried: dict[tuple[str, str], list[Flow]] = {}
    for flow in flows(plan) if traffic is None else traffic:
        carried.setdefault(flow.tiers, []).append(flow)
    found: list[LinkUse] = []
    for link in plan.links:
        on_link = carried.get(link.tiers, [])
        rate = sum(flow.bytes_per_s for flow in on_link)
        sites = plan.sites_of(link.upstream_tier)
        use = rate / sites / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else None
        found.append(LinkUse(*link.tiers, rate, sum(flow.cost_usd_per_h for flow in on_link), use, sites))
    return tuple(found)


def link_s(network: Plan | Problem, tiers: tuple[str, str], sent_bytes: float) -> float:
    """Seconds to send `sent_bytes` between two tiers on an idle link (latency and transmission); 0 within a tier."""
    if tiers[0] == tiers[1]:
        return 0.0
    link = network.link_by_tiers[tiers]
    return link.latency_s + (sent_bytes / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)
