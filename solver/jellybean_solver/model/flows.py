"""Traffic between worker pools and over links, by a plan's routes: messages, bytes and cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.problem import GIB, BetweenTiers, Problem
from jellybean_solver.model.selection_shares import selection_shares
from jellybean_solver.model.workflow import Edge, EdgeKind

SECONDS_PER_HOUR = 3600.0

Place = str
Weights = Mapping[tuple[Edge, Place, Place], float]
WorkerShares = Mapping[tuple[str, str], float]  # (operator, worker) -> fraction of the operator's requests


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


def worker_shares(routes: Iterable[Route]) -> WorkerShares:
    """(operator, worker) -> fraction of the operator's requests that the routes send to this worker."""
    weights: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for route in routes:
        for key in route.workers.items():
            weights[key].append(route.weight)
    return {key: math.fsum(parts) for key, parts in weights.items()}


def edge_weights(
    routes: Iterable[Route], edges: Sequence[Edge], place: Callable[[Route, str], Place | None]
) -> Weights:
    """(edge, upstream place, downstream place) -> fraction of requests.

    `place` gives the place of a node on a route; an edge is left out where it gives None for one of the two nodes, and
    on routes that do not cover its downstream operator.
    """
    into: defaultdict[str, list[int]] = defaultdict(list)
    for number, edge in enumerate(edges):
        into[edge.downstream].append(number)
    known: dict[tuple[str, ...], _Covered] = {}  # by the operators of a route
    found: defaultdict[tuple[int, Place, Place], float] = defaultdict(float)  # edges are slow to hash
    for route in routes:
        names = tuple(route.workers)
        if names not in known:
            known[names] = _covered(sorted(number for name in names for number in into[name]), edges)
        covered = known[names]
        places = [place(route, name) for name in covered.nodes]
        for number, start, end in covered.ends:
            upstream, downstream = places[start], places[end]
            if upstream is not None and downstream is not None:
                found[number, upstream, downstream] += route.weight
    by_edge: defaultdict[tuple[Edge, Place, Place], float] = defaultdict(float)
    for (number, upstream, downstream), weight in found.items():
        by_edge[edges[number], upstream, downstream] += weight
    return by_edge


@dataclass(frozen=True, slots=True)
class _Covered:
    """What routes over the same operators have in common. `nodes`: ends of their edges.

    `ends`: (edge, upstream, downstream), an edge's number and the indices of its two nodes.
    """

    nodes: tuple[str, ...]
    ends: tuple[tuple[int, int, int], ...]


def _covered(numbers: Sequence[int], edges: Sequence[Edge]) -> _Covered:
    index: dict[str, int] = {}
    for number in numbers:
        for name in (edges[number].upstream, edges[number].downstream):
            index.setdefault(name, len(index))
    ends = tuple((n, index[edges[n].upstream], index[edges[n].downstream]) for n in numbers)
    return _Covered(tuple(index), ends)


def traffic_usd_per_h(bytes_per_s: float, price_usd_per_gib: float) -> float:
    """USD per hour of a steady flow over a link."""
    return bytes_per_s * SECONDS_PER_HOUR / GIB * price_usd_per_gib


def flows(plan: Plan) -> tuple[Flow, ...]:
    """All flows of a plan, by downstream operator, at the plan's own rates and message sizes."""
    source_by_name = plan.source_by_name
    tier_of = {worker.pool: worker.tier for worker in plan.workers}

    def pool(route: Route, name: str) -> str:
        return "" if name in source_by_name else plan.worker_by_name[route.workers[name]].pool

    found: dict[tuple[Edge, str, str], Flow] = {}
    for part in selection_shares(plan):
        for (edge, there, here), weight in edge_weights(part.routes, plan.edges, pool).items():
            source = source_by_name.get(edge.upstream)
            if source is None:
                upstream = plan.operator_by_name[edge.upstream].with_variant(part.selection[edge.upstream])
                tier, size = tier_of[there], upstream.message_bytes[edge.downstream]
            else:
                tier, size = source.tier, source.message_bytes
            # A fan-out sends one message per child, a gather one per child that it waits for.
            sender = edge.downstream if edge.kind is EdgeKind.FAN_OUT else edge.upstream
            if source is not None and edge.kind is not EdgeKind.FAN_OUT:
                rate = plan.rate_in_all_sites(source)
            else:
                rate = part.rates_per_s[sender]
            messages = weight * rate
            link = plan.link_by_tiers.get((tier, tier_of[here]))
            cost = 0.0 if link is None else traffic_usd_per_h(messages * size, link.price_usd_per_gib)
            ends = edge.upstream, there or None, tier, edge.downstream, here, tier_of[here]
            one = Flow(*ends, messages, messages * size, cost)
            known = found.get((edge, there, here))
            found[edge, there, here] = one if known is None else known.beside(one)
    return tuple(found.values())


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
