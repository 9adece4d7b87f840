"""How the requests of a plan arrive at its operators and workers: rates, jobs per request, irregularity, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jellybean_solver.latency.route_table import RouteTable
from jellybean_solver.model.plan import Plan, PlannedWorker
from jellybean_solver.model.streams import RequestStream, request_streams, visits_per_request
from jellybean_solver.model.workflow import Arrivals, Edge, EdgeKind, Source

RARE_SHARE = 0.005  # most requests of a workflow that visit its rare operators: half of the 1 % above the p99 latency


@dataclass(frozen=True, slots=True)
class Rare:
    """Operators behind fan-outs that have children for so few requests that the p99 latency may leave them out.

    `shares`: workflow -> share of its requests that visit any of them, at most.
    """

    operators: frozenset[str]
    shares: Mapping[str, float]


NOTHING = Rare(frozenset(), {})


def jobs_at_once(visits_per_request: float) -> float:
    """Jobs that arrive together for one request: all its children; at least 1, also if only some requests arrive."""
    return max(1.0, visits_per_request)


@dataclass(frozen=True, eq=False)
class PlanArrivals:
    """Arrivals at the operators of a plan. Requests of one stream arrive together; streams are independent."""

    plan: Plan

    @cached_property
    def table(self) -> RouteTable:
        """The plan's routes as arrays."""
        return RouteTable(self.plan)

    @cached_property
    def streams(self) -> tuple[RequestStream, ...]:
        return request_streams(self.plan)

    @cached_property
    def source_by_name(self) -> Mapping[str, Source]:
        return {source.name: source for source in self.plan.sources}

    @cached_property
    def stream_of(self) -> Mapping[str, int]:
        """Index of each operator's stream."""
        return {name: number for number, stream in enumerate(self.streams) for name in stream.operators}

    @cached_property
    def rates_per_s(self) -> Sequence[float]:
        """Requests per second of each stream, in all sites."""
        return [stream.rate_per_s for stream in self.streams]

    @cached_property
    def visits(self) -> Mapping[str, float]:
        """Runs of each operator per request."""
        return visits_per_request(self.plan)

    @cached_property
    def source_roughness(self) -> Sequence[float]:
        """Squared coefficient of variation of the times between requests of each stream: 1 Poisson, 0 periodic."""
        return [1.0 if stream.arrivals is Arrivals.POISSON else 0.0 for stream in self.streams]

    @cached_property
    def is_periodic(self) -> bool:
        """True if no stream has random arrivals and no tier has several sites."""
        return not any(self.source_roughness) and not self.plan.sites

    @cached_property
    def rare(self) -> Rare:
        """The rare operators. At most as many requests visit one as it has jobs per request (Markov's inequality)."""
        shares = {stream.workflow: 0.0 for stream in self.streams}
        edges = [edge for operator in self.plan.operators for edge in operator.inputs]
        fan_outs = [edge for edge in edges if edge.kind is EdgeKind.FAN_OUT]
        rare: set[tuple[str, str]] = set()
        for edge in sorted(fan_outs, key=lambda edge: self.visits[edge.downstream]):
            workflow, share = self.streams[self.stream_of[edge.downstream]].workflow, self.visits[edge.downstream]
            if shares[workflow] + share <= RARE_SHARE:
                shares[workflow] += share
                rare.add((edge.upstream, edge.downstream))
        inside: dict[str, tuple[bool, ...]] = {}  # operator -> by open fan-out, whether that is rare
        for operator in self.plan.operators:
            edge = operator.inputs[0]
            open_ones = inside.get(edge.upstream, ())
            if edge.kind is EdgeKind.FAN_OUT:
                open_ones = (*open_ones, (edge.upstream, edge.downstream) in rare)
            inside[operator.name] = open_ones[:-1] if edge.kind is EdgeKind.GATHER else open_ones
        return Rare(frozenset(name for name, open_ones in inside.items() if any(open_ones)), shares)

    def stream_rate_per_s(self, name: str) -> float:
        """Requests per second, in all sites, of the stream that an operator answers."""
        return self.rates_per_s[self.stream_of[name]]

    def jobs(self, name: str) -> float:
        """Jobs of an operator that one request brings at once."""
        return jobs_at_once(self.visits[name])

    def roughness(self, name: str, worker: PlannedWorker) -> float:
        """Squared coefficient of variation of an operator's inter-arrival times at a worker.

        Round robin passes on the worker's share of the stream's variation.
        """
        rate = self.plan.operator_by_name[name].rate_per_s
        sites, stream = self.plan.sites_of(worker.tier), self.stream_of[name]
        share = min(1.0, worker.rates_per_s[name] * sites / rate) if rate > 0 else 0.0
        return self.source_roughness[stream] * share + self.site_roughness(stream, sites, share, worker.load)

    def site_roughness(self, stream: int, sites: int, share: float, load: float) -> float:
        """Increase of the squared coefficient of variation where a station serves several sites.

        `sites` of the station's tier, `share` of the stream's requests that the station serves, and its `load`.
        """
        origins = self.streams[stream].sites / sites
        alone = 1.0 / (1.0 + 4.0 * (1.0 - min(1.0, load)) ** 2 * (origins - 1.0)) if origins > 1 else 1.0
        return (1.0 - alone) * (1.0 - self.source_roughness[stream] * min(1.0, share))

    def sent_bytes(self, edge: Edge) -> float:
        """Bytes that one request sends over an edge, all children together; of variants the most."""
        source = self.source_by_name.get(edge.upstream)
        if source is not None:
            return source.message_bytes * self.jobs(edge.downstream)
        variants = self.plan.operator_by_name[edge.upstream].variants
        return max(one.message_bytes[edge.downstream] for one in variants) * self.jobs(edge.downstream)
