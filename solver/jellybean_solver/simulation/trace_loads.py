"""Load and network cost of a plan under the rates of a trace, by the plan's routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_solver.model.flows import flows
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.streams import RequestStream
from jellybean_solver.simulation.trace import RateTrace


def copies(plan: Plan) -> dict[str, int]:
    """Number of sites that have each worker and link of the plan."""
    found = {worker.name: plan.sites.get(worker.tier, 1) for worker in plan.workers}
    for link in plan.links:
        found[f"{link.upstream_tier}->{link.downstream_tier}"] = plan.sites.get(link.upstream_tier, 1)
    return found


def stretch_loads(plan: Plan, streams: Sequence[RequestStream], trace: RateTrace) -> list[Mapping[str, float]]:
    """Mean utilisation of every worker and link in each stretch of the trace."""
    at_one = {stream.sources[0].name: _loads_at_one(plan, stream) for stream in streams}
    found: list[Mapping[str, float]] = []
    for stretch in trace.stretches:
        loads: dict[str, float] = {}
        for name, share in at_one.items():
            for place, load in share.items():
                loads[place] = loads.get(place, 0.0) + load * stretch.rates_per_s[name]
        found.append(loads)
    return found


def _loads_at_one(plan: Plan, stream: RequestStream) -> Mapping[str, float]:
    """Utilisation of workers and links by one request per second of a stream."""
    loads: dict[str, float] = {}
    alike = copies(plan)
    for route in plan.routes:
        for name in stream.operators:
            operator, worker = plan.operator_by_name[name], plan.worker_by_name[route.workers[name]]
            busy = route.weight * operator.rate_per_s * operator.mean_request_s(worker.pool)
            loads[worker.name] = loads.get(worker.name, 0.0) + busy / stream.rate_per_s / alike[worker.name]
    bandwidth = {(link.upstream_tier, link.downstream_tier): link.bandwidth_bytes_per_s for link in plan.links}
    for flow in flows(plan):
        limit = bandwidth.get((flow.upstream_tier, flow.downstream_tier))
        if flow.crosses and flow.downstream in stream.operators and limit:
            place = f"{flow.upstream_tier}->{flow.downstream_tier}"
            loads[place] = loads.get(place, 0.0) + flow.bytes_per_s / limit / stream.rate_per_s / alike[place]
    return loads


def network_usd_per_h(plan: Plan, streams: Sequence[RequestStream]) -> Mapping[str, float]:
    """First source of each stream -> USD per hour of the traffic of one request per second."""
    carried = flows(plan)
    return {
        stream.sources[0].name: sum(flow.cost_usd_per_h for flow in carried if flow.downstream in stream.operators)
        / stream.rate_per_s
        for stream in streams
    }
