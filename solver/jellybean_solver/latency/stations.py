"""Stations of a plan (workers, and links of limited bandwidth) as queues fed by the plan's routes.

In a tier with several sites, a station is that of one site. Streams of several sites that meet at one station are
independent: their superposition is closer to Poisson the more there are and the lower the load (Whitt, The Queueing
Network Analyzer).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from jellybean_solver.latency.batching import BatchInput, BatchSizes, batch_sizes, service_of, utilisation_in_batches
from jellybean_solver.latency.phase_locking import phase_locked
from jellybean_solver.latency.queues import Station, Traffic, WorkStream, service_variance, station
from jellybean_solver.latency.route_table import Mask, RouteTable
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.model.critical_path import arrival_time
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.problem import Arrivals, Edge
from jellybean_solver.model.streams import request_streams

MOST_UTILISATION = 0.999

Pair = tuple[str, str]  # operator and worker, or the tiers of a link


class _Work(NamedTuple):
    """Mean (seconds) and variance (seconds squared) of the time of a request's runs, and requests per run."""

    mean_s: float
    variance: float
    size: float


def visits(plan: Plan) -> Mapping[str, float]:
    """Runs of each operator per request."""
    found: dict[str, float] = {}
    for stream in request_streams(plan):
        for name in stream.operators:
            rate = plan.operator_by_name[name].rate_per_s
            found[name] = rate / stream.rate_per_s if stream.rate_per_s > 0 else 1.0
    return found


def rounded_key(figures: Sequence[Sequence[float]]) -> str:
    """A key equal for figures that differ by rounding: most workers of a fleet are identical and computed once."""
    return repr([[float(f"{figure:.5g}") for figure in row] for row in figures])


def jobs_at_once(visits_per_request: float) -> float:
    """Jobs that one request brings at once: all its children; at least 1 for thinned streams."""
    return max(1.0, visits_per_request)


class Stations:
    """The queues of a plan: `workers` by name, `links` by tiers.

    `runs` and `groups` by (operator, worker): batch sizes, and requests that arrive together.
    """

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
        self.table = RouteTable(plan)
        self._share = {w.name: share for w, share in zip(plan.workers, self.table.share.tolist(), strict=True)}
        self.groups: dict[Pair, float] = {}
        self.runs: dict[Pair, BatchSizes] = {}
        self._fill_runs()
        self._used = {worker.name: self._busy(worker) for worker in plan.workers}
        self._grow = {worker.name: self._behind(worker) for worker in plan.workers}
        self.workers = self._workers()
        self.links = self._links()

    def jobs(self, name: str) -> float:
        """Jobs of an operator that one request brings at once."""
        return jobs_at_once(self.visits[name])

    def roughness(self, name: str, worker: PlannedWorker) -> float:
        """Squared coefficient of variation of an operator's arrivals at a worker; round robin passes on its share."""
        rate = self.plan.operator_by_name[name].rate_per_s
        sites, stream = self.plan.sites.get(worker.tier, 1), self._stream[name]
        share = min(1.0, worker.rates_per_s[name] * sites / rate) if rate > 0 else 0.0
        return self._roughness[stream] * share + self._mixed(stream, sites, share, worker.load)

    def _mixed(self, stream: int, sites: int, share: float, load: float) -> float:
        """Increase of the squared coefficient of variation where a station serves several sites."""
        origins = self._born[stream] / sites
        alone = 1.0 / (1.0 + 4.0 * (1.0 - min(1.0, load)) ** 2 * (origins - 1.0)) if origins > 1 else 1.0
        return (1.0 - alone) * (1.0 - self._roughness[stream] * min(1.0, share))

    def sent_bytes(self, edge: Edge) -> float:
        """Bytes of one request on an edge, all children together."""
        source = self.sources.get(edge.upstream)
        if source is not None:
            return source.message_bytes * self.jobs(edge.downstream)
        return self.plan.operator_by_name[edge.upstream].message_bytes[edge.downstream] * self.jobs(edge.downstream)

    def link_s(self, upstream_tier: str, downstream_tier: str, size: float) -> float:
        """Seconds over an idle link; 0 inside a tier."""
        if upstream_tier == downstream_tier:
            return 0.0
        link = self._link[upstream_tier, downstream_tier]
        return link.latency_s + (size / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)

    def _fill_runs(self) -> None:
        """Batch sizes, in two passes: runs send their requests together, and groups that arrive together batch."""
        for worker in self.plan.workers:
            self.runs |= {(name, worker.name): BatchSizes() for name in worker.rates_per_s}
        batched = any(size > 1 for operator in self.plan.operators for size in operator.batch.values())
        for _ in range(2 if batched else 1):
            self.groups = self._groups()
            known: dict[object, list[BatchSizes]] = {}
            for worker in self.plan.workers:
                fed = [self._fed(name, worker) for name in worker.rates_per_s]
                figures = tuple((one.per_s, one.group, one.roughness) for one in fed)
                key = worker.pool, tuple(worker.rates_per_s), rounded_key(figures)
                if key not in known:
                    known[key] = batch_sizes(fed)
                found = known[key]
                self.runs |= {(name, worker.name): one for name, one in zip(worker.rates_per_s, found, strict=True)}

    def _fed(self, name: str, worker: PlannedWorker) -> BatchInput:
        operator = self.plan.operator_by_name[name]
        times, batch = operator.service[worker.pool], operator.batch[worker.pool]
        group = self.groups[name, worker.name]
        varied = service_variance(times[batch]) / times[batch].mean_s ** 2 if times[batch].mean_s > 0 else 0.0
        rough = self.roughness(name, worker)
        return BatchInput(times, batch, worker.rates_per_s[name], group, rough, self.jobs(name), varied)

    def _groups(self) -> dict[Pair, float]:
        """Mean requests that arrive together at an operator on a worker, counting children."""
        found = {pair: self.jobs(pair[0]) for pair in self.runs}
        names = [worker.name for worker in self.plan.workers]
        for operator in self.plan.operators:
            for edge in operator.inputs:
                if edge.upstream not in self.sources:
                    together = self._together(edge)
                    for worker in np.flatnonzero(np.isfinite(together)).tolist():
                        pair = operator.name, names[worker]
                        found[pair] = max(found.get(pair, 1.0), self.jobs(operator.name) * float(together[worker]))
        return found

    def _together(self, edge: Edge) -> Floats:
        """Per downstream worker the mean requests of one upstream run that routes send there, at least 1; else NaN."""
        table, workers = self.table, self.plan.workers
        leave = table.summed(table.at[edge.upstream], table.weight)
        pairs, each = np.unique(table.at[edge.upstream] * len(workers) + table.at[edge.downstream], return_inverse=True)
        go: Floats = np.bincount(each, table.weight).astype(float)
        there, here = np.divmod(pairs, len(workers))
        sizes = [self.runs[edge.upstream, workers[worker].name].mean for worker in there.tolist()]
        ran = np.array(sizes) / self.jobs(edge.upstream)
        part = np.divide(go, leave[there], out=np.zeros_like(go), where=go > 0)
        mates, come = table.summed(here, go * np.maximum(1.0, ran * part)), table.summed(here, go)
        found: Floats = np.full(len(workers), np.nan)
        found[here] = 1.0
        np.divide(mates, come, out=found, where=come > 0)
        return found

    def _workers(self) -> Mapping[str, Station]:
        pieces: dict[str, list[WorkStream]] = {worker.name: [] for worker in self.plan.workers}
        names, enters = list(pieces), set[Pair]()
        work = cache(self._work)
        follows = {operator.name: self._follows(operator) for operator in self.plan.operators}
        regular = self._regular(follows)
        for operator in self.plan.operators:
            at = self.table.at[operator.name]
            weights = self.table.summed(at, self.table.weight)
            squares = self.table.squares(at, np.choose(self.table.tier[operator.name], self.table.alike_below))
            comes = self.table.summed(at, np.where(follows[operator.name], 0.0, 1.0))
            for worker in np.unique(at).tolist():
                weight, squared = float(weights[worker]), float(squares[worker])
                done = work(operator.name, names[worker])
                as_sent = bool(regular[operator.name][worker])
                piece = self._piece(operator.name, weight, squared, done, regular=as_sent, follows=not comes[worker])
                pieces[names[worker]].append(piece)
                if not piece.follows:
                    enters.add((operator.name, names[worker]))
        found = {worker.name: self._of(worker, pieces[worker.name]) for worker in self.plan.workers}
        if any(self._roughness) or self.plan.sites:
            return found
        late = self._late(found, enters)
        delayed = [worker for worker in self.plan.workers if late[worker.name] > 0]
        return found | {worker.name: self._of(worker, pieces[worker.name], late[worker.name]) for worker in delayed}

    def _of(self, worker: PlannedWorker, pieces: list[WorkStream], late: float = 0.0) -> Station:
        share, sites = self._share[worker.name], self.plan.sites.get(worker.tier, 1)
        used, behind = self._used[worker.name], self._grow[worker.name]
        return self._station(pieces, share, worker.load, used, sites, behind=behind, late=late)

    def _late(self, found: Mapping[str, Station], enters: Collection[Pair]) -> Mapping[str, float]:
        """Per worker the mean deviation of requests arrived from requests due, caused by waits upstream.

        `enters`: (operator, worker) pairs whose requests arrive from elsewhere.
        """
        names, late = [worker.name for worker in self.plan.workers], dict.fromkeys(found, 0.0)
        waited: dict[str, float] = {}  # variance of the waits up to an operator's completion, in s^2
        for operator in self.plan.operators:
            at = self.table.at[operator.name]
            before = arrival_time(operator.inputs, waited)
            waited[operator.name] = before
            weights = self.table.summed(at, self.table.weight)
            for worker in np.unique(at).tolist():
                weight, name = float(weights[worker]), names[worker]
                turn_s = self.runs[operator.name, name].turn_s
                waited[operator.name] += weight * (found[name].own.mean_s ** 2 + turn_s**2 / 3.0)
                if (operator.name, name) in enters:
                    late[name] += self._per_s[self._stream[operator.name]] * weight * math.sqrt(before)
        return late

    def _work(self, name: str, worker: str) -> _Work:
        """What one request's runs of an operator take at a worker."""
        times = self.plan.operator_by_name[name].service[self.plan.worker_by_name[worker].pool]
        size = self.runs[name, worker].mean
        service, count = service_of(times, size), self.jobs(name) / size
        return _Work(service.mean_s * count, service_variance(service) * count, max(1.0, 1.0 / count))

    def _busy(self, worker: PlannedWorker) -> float:
        """Utilisation in the batches that form, which are smaller than those capacity counts."""
        used = full = 0.0
        for name, per_s in worker.rates_per_s.items():
            operator = self.plan.operator_by_name[name]
            used += utilisation_in_batches(operator.service[worker.pool], per_s, self.runs[name, worker.name].mean)
            full += per_s * operator.mean_request_s(worker.pool)
        return min(MOST_UTILISATION, worker.load + max(0.0, used - full))

    def _piece(
        self,
        name: str,
        weight: float,
        squares: float,
        work: _Work,
        *,
        regular: bool,
        follows: bool = False,
    ) -> WorkStream:
        """The work of one operator from all its routes, given the sums of their weights and squared weights."""
        stream, chance = self._stream[name], min(1.0, self.visits[name])
        per_s = self._per_s[stream] * weight * chance
        return WorkStream(
            stream, weight, per_s, work.mean_s, work.variance, chance, work.size, regular, squares, follows
        )

    def _regular(self, follows: Mapping[str, Mask]) -> Mapping[str, Mask]:
        """Per operator the workers at which requests arrive as evenly spaced as they were sent."""
        if any(self._roughness) or self.plan.sites:
            count = len(self.plan.workers)
            return {operator.name: np.full(count, self._from_sources(operator)) for operator in self.plan.operators}
        loads = {operator.name: np.full(len(self.plan.workers), np.inf) for operator in self.plan.operators}
        for number, worker in enumerate(self.plan.workers):
            for name in worker.rates_per_s:
                service = self.plan.operator_by_name[name].service[worker.pool][1]
                alone = self.visits[name] == 1.0 and self.runs[name, worker.name].mean == 1.0
                if alone and service_variance(service) == 0.0:
                    loads[name][number] = self._per_s[self._stream[name]] * service.mean_s
        return phase_locked(self.plan, self.table, follows, loads)

    def _from_sources(self, operator: PlannedOperator) -> bool:
        return all(edge.upstream in self.sources for edge in operator.inputs)

    def _behind(self, worker: PlannedWorker) -> bool:
        """True if all operators of a worker run in batches, because runs of one request could not keep up."""
        operators = [self.plan.operator_by_name[name] for name in worker.rates_per_s]
        if worker.load <= 0 or any(operator.batch[worker.pool] == 1 for operator in operators):
            return False
        return (
            sum(utilisation_in_batches(o.service[worker.pool], worker.rates_per_s[o.name], 1.0) for o in operators)
            > 1.0
        )

    def _follows(self, operator: PlannedOperator) -> Mask:
        """Mask of the routes on which all inputs of an operator come from its own worker."""
        at = self.table.at[operator.name]
        follows = np.ones(len(at), bool)
        for edge in operator.inputs:
            follows &= self.table.at[edge.upstream] == at if edge.upstream in self.table.at else False
        return follows

    def _station(
        self,
        pieces: list[WorkStream],
        share: float,
        load: float,
        used: float,
        sites: int,
        *,
        behind: bool = False,
        late: float = 0.0,
    ) -> Station:
        """The queue of a station in one of its `sites`."""
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
        return station(Traffic(pieces, share, self._roughness, rates, late), load, used, behind=behind)

    def _links(self) -> Mapping[Pair, Station]:
        """Links with limited bandwidth; messages of all edges share the queue."""
        pieces: dict[Pair, list[WorkStream]] = {}
        come_by: dict[Pair, Mask] = {}
        for operator in self.plan.operators:
            for edge in operator.inputs:
                size = self.sent_bytes(edge)
                pairs, each = self.table.crossings(edge)
                for number, (upstream, downstream) in enumerate(pairs):
                    link = self._link[upstream, downstream] if upstream != downstream else None
                    if link is not None and link.bandwidth_bytes_per_s:
                        alike = self.table.alike_below[self.plan.tiers.index(upstream)][each == number]
                        weights = np.bincount(alike, self.table.weight[each == number])
                        total, squares = float(weights.sum()), float(weights @ weights)
                        seconds = size / link.bandwidth_bytes_per_s
                        regular = self._from_sources(operator)
                        piece = self._piece(operator.name, total, squares, _Work(seconds, 0.0, 1.0), regular=regular)
                        pieces.setdefault((upstream, downstream), []).append(piece)
                        come_by[upstream, downstream] = come_by.get((upstream, downstream), False) | (each == number)
        found = {}
        for tiers, own in pieces.items():
            sites = self.plan.sites.get(tiers[0], 1)
            load = sum(piece.per_s * piece.seconds for piece in own) / sites
            share = float(self.table.weight[come_by[tiers]].sum())
            found[tiers] = self._station(own, share, load, min(MOST_UTILISATION, load), sites)
        return found
