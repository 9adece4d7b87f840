"""Stations of a plan (workers, and links of limited bandwidth) as queues fed by the plan's routes.

In a tier with several sites, a station is that of one site. Streams of several sites that meet at one station are
independent: their superposition is closer to Poisson the more there are and the lower the load (Whitt, The Queueing
Network Analyzer).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from jellybean_solver.latency.batching import service_of, utilisation_in_batches
from jellybean_solver.latency.phase_locking import phase_locked
from jellybean_solver.latency.plan_arrivals import PlanArrivals
from jellybean_solver.latency.plan_batches import OperatorWorker, plan_batches
from jellybean_solver.latency.queues import Station, Traffic, WorkStream, service_variance, station
from jellybean_solver.latency.route_table import Mask
from jellybean_solver.model.critical_path import arrival_time
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker

MOST_UTILISATION = 0.999

Tiers = tuple[str, str]


class _Work(NamedTuple):
    """Mean (seconds) and variance (seconds squared) of the time of a request's runs, and requests per run."""

    mean_s: float
    variance: float
    size: float


class Stations:
    """The queues of a plan: `workers` by name, `links` by tiers, given how its requests arrive and batch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.arrivals = PlanArrivals(plan)
        self.table = self.arrivals.table
        self.batches = plan_batches(self.arrivals)
        self._share = {w.name: share for w, share in zip(plan.workers, self.table.share.tolist(), strict=True)}
        self._used = {worker.name: self._busy(worker) for worker in plan.workers}
        self._grow = {worker.name: self._behind(worker) for worker in plan.workers}
        self.workers = self._workers()
        self.links = self._links()

    def _workers(self) -> Mapping[str, Station]:
        pieces: dict[str, list[WorkStream]] = {worker.name: [] for worker in self.plan.workers}
        names, enters = list(pieces), set[OperatorWorker]()
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
        if not self.arrivals.is_periodic:
            return found
        late = self._late(found, enters)
        delayed = [worker for worker in self.plan.workers if late[worker.name] > 0]
        return found | {worker.name: self._of(worker, pieces[worker.name], late[worker.name]) for worker in delayed}

    def _of(self, worker: PlannedWorker, pieces: list[WorkStream], late: float = 0.0) -> Station:
        share, sites = self._share[worker.name], self.plan.sites_of(worker.tier)
        used, behind = self._used[worker.name], self._grow[worker.name]
        return self._station(pieces, share, worker.load, used, sites, behind=behind, late=late)

    def _late(self, found: Mapping[str, Station], enters: Collection[OperatorWorker]) -> Mapping[str, float]:
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
                turn_s = self.batches.runs[operator.name, name].turn_s
                waited[operator.name] += weight * (found[name].own.mean_s ** 2 + turn_s**2 / 3.0)
                if (operator.name, name) in enters:
                    late[name] += self.arrivals.stream_rate_per_s(operator.name) * weight * math.sqrt(before)
        return late

    def _work(self, name: str, worker: str) -> _Work:
        """Time of an operator's runs for one request at a worker."""
        times = self.plan.operator_at(name, worker).service[self.plan.worker_by_name[worker].pool]
        size = self.batches.runs[name, worker].mean
        service, count = service_of(times, size), self.arrivals.jobs(name) / size
        return _Work(service.mean_s * count, service_variance(service) * count, max(1.0, 1.0 / count))

    def _busy(self, worker: PlannedWorker) -> float:
        """Utilisation of a worker with the batches that form; capacity planning assumes full batches."""
        used = full = 0.0
        for name, per_s in worker.rates_per_s.items():
            operator = self.plan.operator_at(name, worker.name)
            size = self.batches.runs[name, worker.name].mean
            used += utilisation_in_batches(operator.service[worker.pool], per_s, size)
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
        """The work stream of one operator; `weight`, `squares`: sums of its routes' weights and squared weights."""
        stream, chance = self.arrivals.stream_of[name], min(1.0, self.arrivals.visits[name])
        per_s = self.arrivals.rates_per_s[stream] * weight * chance
        return WorkStream(
            stream, weight, per_s, work.mean_s, work.variance, chance, work.size, regular, squares, follows
        )

    def _regular(self, follows: Mapping[str, Mask]) -> Mapping[str, Mask]:
        """Per operator the workers at which requests arrive as evenly spaced as they were sent."""
        if not self.arrivals.is_periodic:
            count = len(self.plan.workers)
            return {operator.name: np.full(count, self._from_sources(operator)) for operator in self.plan.operators}
        loads = {operator.name: np.full(len(self.plan.workers), np.inf) for operator in self.plan.operators}
        for number, worker in enumerate(self.plan.workers):
            for name in worker.rates_per_s:
                service = self.plan.operator_at(name, worker.name).service[worker.pool][1]
                alone = self.arrivals.visits[name] == 1.0 and self.batches.runs[name, worker.name].mean == 1.0
                if alone and service_variance(service) == 0.0:
                    loads[name][number] = self.arrivals.stream_rate_per_s(name) * service.mean_s
        return phase_locked(self.plan, self.table, follows, loads)

    def _from_sources(self, operator: PlannedOperator) -> bool:
        return all(edge.upstream in self.arrivals.source_by_name for edge in operator.inputs)

    def _behind(self, worker: PlannedWorker) -> bool:
        """True if all operators of a worker run in batches because batches of size 1 could not keep up."""
        operators = [self.plan.operator_at(name, worker.name) for name in worker.rates_per_s]
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
        rates = [per_s / sites for per_s in self.arrivals.rates_per_s]
        if self.plan.sites:
            pieces = [self._in_one_site(piece, sites, share, load) for piece in pieces]
        return station(Traffic(pieces, share, self.arrivals.source_roughness, rates, late), load, used, behind=behind)

    def _in_one_site(self, piece: WorkStream, sites: int, share: float, load: float) -> WorkStream:
        more = self.arrivals.site_roughness(piece.stream, sites, share, load) * piece.seconds**2
        return replace(piece, per_s=piece.per_s / sites, variance=piece.variance + more)

    def _links(self) -> Mapping[Tiers, Station]:
        """Links with limited bandwidth; messages of all edges share the queue."""
        pieces: dict[Tiers, list[WorkStream]] = {}
        come_by: dict[Tiers, Mask] = {}
        for operator in self.plan.operators:
            for edge in operator.inputs:
                size = self.arrivals.sent_bytes(edge)
                pairs, each = self.table.crossings(edge)
                for number, (upstream, downstream) in enumerate(pairs):
                    link = self.plan.link_by_tiers[upstream, downstream] if upstream != downstream else None
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
            sites = self.plan.sites_of(tiers[0])
            load = sum(piece.per_s * piece.seconds for piece in own) / sites
            share = float(self.table.weight[come_by[tiers]].sum())
            found[tiers] = self._station(own, share, load, min(MOST_UTILISATION, load), sites)
        return found
