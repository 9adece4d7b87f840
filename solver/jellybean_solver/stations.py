"""What comes to every station of a plan by its routes: workers and links of limited bandwidth, as queues.

A station of a tier with several sites is that of one of them. What several sites send up to one station knows nothing
of each other: it comes the more at random the more they are and the less busy it is (The Queueing Network Analyzer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from jellybean_solver.batching import Fed, Runs, busy, runs, service_of
from jellybean_solver.plan import Plan, PlannedWorker, Route
from jellybean_solver.problem import Arrivals, Edge
from jellybean_solver.queues import Piece, Station, Traffic, service_variance, station
from jellybean_solver.streams import request_streams

MOST_BUSY = 0.999

Pair = tuple[str, str]  # operator and worker, or the tiers of a link


def visits(plan: Plan) -> Mapping[str, float]:
    """Runs of each operator per request."""
    found: dict[str, float] = {}
    for stream in request_streams(plan):
        for name in stream.operators:
            rate = plan.operator_by_name[name].rate_per_s
            found[name] = rate / stream.rate_per_s if stream.rate_per_s > 0 else 1.0
    return found


def jobs(visits_per_request: float) -> float:
    """Runs that one request brings at once: all its children; thinned streams bring one or none."""
    return max(1.0, visits_per_request)


class Stations:
    """The queues of a plan. `runs` by operator and worker, as many as come together in `groups`; `links` by tiers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.visits = visits(plan)
        self.sources = {source.name: source for source in plan.sources}
        self._link = {(link.upstream_tier, link.downstream_tier): link for link in plan.links}
        streams = request_streams(plan)
        self._stream = {name: number for number, stream in enumerate(streams) for name in stream.operators}
        self._per_s = [stream.rate_per_s for stream in streams]
        self._born = [stream.sites for stream in streams]
        self._roughness = [1.0 if stream.arrivals is Arrivals.POISSON else 0.0 for stream in streams]
        self.groups: dict[Pair, float] = {}
        self.runs: dict[Pair, Runs] = {}
        self._fill_runs()
        self.workers = self._workers()
        self.links = self._links()

    def jobs(self, name: str) -> float:
        """Runs of an operator that one request brings at once."""
        return jobs(self.visits[name])

    def roughness(self, name: str, worker: PlannedWorker) -> float:
        """Squared variation of when requests come to an operator on a worker: round robin leaves it its share."""
        rate = self.plan.operator_by_name[name].rate_per_s
        sites, stream = self.plan.sites.get(worker.tier, 1), self._stream[name]
        share = min(1.0, worker.rates_per_s[name] * sites / rate) if rate > 0 else 0.0
        return self._roughness[stream] * share + self._mixed(stream, sites, share, worker.load)

    def _mixed(self, stream: int, sites: int, share: float, load: float) -> float:
        """What the squared variation gains where a station's requests come from several sites: all of it in the end."""
        origins = self._born[stream] / sites
        alone = 1.0 / (1.0 + 4.0 * (1.0 - min(1.0, load)) ** 2 * (origins - 1.0)) if origins > 1 else 1.0
        return (1.0 - alone) * (1.0 - self._roughness[stream] * min(1.0, share))

    def crossed(self, route: Route, edge: Edge) -> tuple[str, str, float]:
        """The tiers that a request's data on an edge goes between, and its bytes, all children together."""
        downstream = self.plan.worker_by_name[route.workers[edge.downstream]].tier
        source = self.sources.get(edge.upstream)
        if source is not None:
            return source.tier, downstream, source.message_bytes * self.jobs(edge.downstream)
        upstream = self.plan.worker_by_name[route.workers[edge.upstream]].tier
        sent = self.plan.operator_by_name[edge.upstream].message_bytes[edge.downstream]
        return upstream, downstream, sent * self.jobs(edge.downstream)

    def link_s(self, upstream_tier: str, downstream_tier: str, size: float) -> float:
        """Seconds over a link that is free; 0 inside a tier."""
        if upstream_tier == downstream_tier:
            return 0.0
        link = self._link[upstream_tier, downstream_tier]
        return link.latency_s + (size / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)

    def _fill_runs(self) -> None:
        """Sizes of runs, twice: what ran together comes together, and what comes together runs together."""
        for worker in self.plan.workers:
            self.runs |= {(name, worker.name): Runs() for name in worker.rates_per_s}
        batched = any(size > 1 for operator in self.plan.operators for size in operator.batch.values())
        for _ in range(2 if batched else 1):
            self.groups = self._groups()
            for worker in self.plan.workers:
                found = runs([self._fed(name, worker) for name in worker.rates_per_s])
                self.runs |= {(name, worker.name): one for name, one in zip(worker.rates_per_s, found, strict=True)}

    def _fed(self, name: str, worker: PlannedWorker) -> Fed:
        operator = self.plan.operator_by_name[name]
        times, batch = operator.service[worker.pool], operator.batch[worker.pool]
        group = self.groups[name, worker.name]
        return Fed(times, batch, worker.rates_per_s[name], group, self.roughness(name, worker), self.jobs(name))

    def _groups(self) -> dict[Pair, float]:
        """Requests that come to an operator on a worker at once, children one by one."""
        found = {pair: self.jobs(pair[0]) for pair in self.runs}
        for operator in self.plan.operators:
            for edge in operator.inputs:
                if edge.upstream not in self.sources:
                    for worker, together in self._together(edge).items():
                        pair = operator.name, worker
                        found[pair] = max(found.get(pair, 1.0), self.jobs(operator.name) * together)
        return found

    def _together(self, edge: Edge) -> Mapping[str, float]:
        """Per worker downstream, requests of one run upstream that routes lead there, but one at least."""
        leave: dict[str, float] = {}
        go: dict[Pair, float] = {}
        for route in self.plan.routes:
            there, here = route.workers[edge.upstream], route.workers[edge.downstream]
            leave[there] = leave.get(there, 0.0) + route.weight
            go[there, here] = go.get((there, here), 0.0) + route.weight
        mates: dict[str, float] = {}
        come: dict[str, float] = {}
        for (there, here), weight in go.items():
            ran = self.runs[edge.upstream, there].mean / self.jobs(edge.upstream)
            mates[here] = mates.get(here, 0.0) + weight * max(1.0, ran * weight / leave[there] if weight > 0 else 0.0)
            come[here] = come.get(here, 0.0) + weight
        return {here: mates[here] / come[here] if come[here] > 0 else 1.0 for here in come}

    def _workers(self) -> Mapping[str, Station]:
        pieces: dict[str, list[Piece]] = {worker.name: [] for worker in self.plan.workers}
        shares = dict.fromkeys(pieces, 0.0)
        work = cache(self._work)
        for route in self.plan.routes:
            for name in set(route.workers.values()):
                shares[name] += route.weight
            for operator in self.plan.operators:
                worker = route.workers[operator.name]
                pieces[worker].append(self._piece(operator.name, route, *work(operator.name, worker)))
        return {
            w.name: self._station(pieces[w.name], shares[w.name], w.load, self._busy(w), self.plan.sites.get(w.tier, 1))
            for w in self.plan.workers
        }

    def _work(self, name: str, worker: str) -> tuple[float, float, float]:
        """Mean and squared deviation of the seconds that a request's runs take, and how many requests are in a run."""
        times = self.plan.operator_by_name[name].service[self.plan.worker_by_name[worker].pool]
        size = self.runs[name, worker].mean
        service, count = service_of(times, size), self.jobs(name) / size
        return service.mean_s * count, service_variance(service) * count, max(1.0, 1.0 / count)

    def _busy(self, worker: PlannedWorker) -> float:
        """The load in the batches that form: they are smaller than those that capacity counts."""
        used = full = 0.0
        for name, per_s in worker.rates_per_s.items():
            operator = self.plan.operator_by_name[name]
            used += busy(operator.service[worker.pool], per_s, self.runs[name, worker.name].mean)
            full += per_s * operator.mean_request_s(worker.pool)
        return min(MOST_BUSY, worker.load + max(0.0, used - full))

    def _piece(self, name: str, route: Route, seconds: float, variance: float, size: float) -> Piece:
        stream, chance = self._stream[name], min(1.0, self.visits[name])
        regular = all(edge.upstream in self.sources for edge in self.plan.operator_by_name[name].inputs)
        per_s = self._per_s[stream] * route.weight * chance
        return Piece(stream, route.weight, per_s, seconds, variance, chance, size, regular)

    def _station(self, pieces: list[Piece], share: float, load: float, used: float, sites: int) -> Station:
        """One of the station in each of so many sites."""
        rates = [per_s / sites for per_s in self._per_s]
        if self.plan.sites:
            pieces = [
                replace(
                    piece,
                    per_s=piece.per_s / sites,
                    variance=piece.variance + self._mixed(piece.stream, sites, share, load) * piece.seconds**2,
                )
                for piece in pieces
            ]
        return station(Traffic(pieces, share, self._roughness, rates), load, used)

    def _links(self) -> Mapping[Pair, Station]:
        """Links take messages of all kinds as they come."""
        pieces: dict[Pair, list[Piece]] = {}
        shares: dict[Pair, float] = {}
        for route in self.plan.routes:
            used: set[Pair] = set()
            for operator in self.plan.operators:
                for edge in operator.inputs:
                    upstream, downstream, size = self.crossed(route, edge)
                    link = self._link[upstream, downstream] if upstream != downstream else None
                    if link is not None and link.bandwidth_bytes_per_s:
                        piece = self._piece(operator.name, route, size / link.bandwidth_bytes_per_s, 0.0, 1.0)
                        pieces.setdefault((upstream, downstream), []).append(piece)
                        used.add((upstream, downstream))
            for tiers in used:
                shares[tiers] = shares.get(tiers, 0.0) + route.weight
        found = {}
        for tiers, own in pieces.items():
            sites = self.plan.sites.get(tiers[0], 1)
            load = sum(piece.per_s * piece.seconds for piece in own) / sites
            found[tiers] = self._station(own, shares[tiers], load, min(MOST_BUSY, load), sites)
        return found
