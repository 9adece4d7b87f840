"""Restrictions of a problem: places that proposed plans must not use, and margins of capacity that they leave free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jellybean_solver.deadline.settings import DeadlineSettings
from jellybean_solver.demand.demand import Crossings, EdgeKey, Network, Tiers
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.problem import Link, Problem, Variant

Place = tuple[str, str, str]  # operator, variant, pool


@dataclass(frozen=True, slots=True)
class Restriction:
    """Constraints on proposed plans, added to those of the problem.

    `places`, `crossings`: forbidden. `batches`: (place, largest batch size there). `apart`: pairs of operators that
    must not share a worker. `pools`: (pool, usable share of its utilisation cap). `links`: usable share of all
    bandwidths. `delay_s`, for fleets: limit on the linearised delay, queues included (fleet/delay_linearisation.py).
    """

    places: frozenset[Place] = frozenset()
    crossings: frozenset[tuple[EdgeKey, Tiers]] = frozenset()
    apart: frozenset[frozenset[str]] = frozenset()
    pools: frozenset[tuple[str, float]] = frozenset()
    links: float = 1.0
    delay_s: float = math.inf
    batches: frozenset[tuple[Place, int]] = frozenset()

    def network(self, problem: Problem) -> Network:
        """The restricted problem. Its plans have scaled loads and bandwidths; `without_margin` restores them."""
        allowed = with_margin(self._without_places(problem), dict(self.pools), self.links)
        return Network(allowed, self._open_crossings(problem), self.apart)

    def halfway(self, looser: Restriction, settings: DeadlineSettings) -> Restriction | None:
        """The restriction with margins halfway to those of `looser`; None if they change by less than the finest step.

        A delay limit that `looser` does not have becomes a little longer.
        """
        least_step = 1.0 + settings.finest_step
        if math.isfinite(self.delay_s):
            longer_s = (self.delay_s + looser.delay_s) / 2.0
            if math.isinf(looser.delay_s):
                longer_s = settings.longer_delay * self.delay_s
            return replace(self, delay_s=longer_s) if longer_s > least_step * self.delay_s else None
        before = dict(looser.pools)
        pools = {pool: (share + before.get(pool, 1.0)) / 2.0 for pool, share in self.pools}
        links = (self.links + looser.links) / 2.0
        steps = [links / self.links, *(pools[pool] / share for pool, share in self.pools)]
        return replace(self, pools=frozenset(pools.items()), links=links) if max(steps) > least_step else None

    def _without_places(self, problem: Problem) -> Problem:
        if not self.places and not self.batches:
            return problem
        most: dict[Place, int] = {}
        for place, size in self.batches:
            most[place] = min(size, most.get(place, size))

        def kept(operator: str, variant: Variant) -> Variant:
            service = {
                pool: {size: time for size, time in times.items() if size <= most.get(place, size)}
                for pool, times in variant.service.items()
                for place in [(operator, variant.name, pool)]
                if place not in self.places
            }
            return replace(variant, service=service)

        operators = tuple(replace(o, variants=tuple(kept(o.name, v) for v in o.variants)) for o in problem.operators)
        return replace(problem, operators=operators)

    def _open_crossings(self, problem: Problem) -> Crossings:
        every = {(up, down) for up in problem.tiers for down in problem.tiers}
        closed: dict[EdgeKey, set[Tiers]] = {}
        for key, tiers in self.crossings:
            closed.setdefault(key, set()).add(tiers)
        return {key: frozenset(every - tiers) for key, tiers in closed.items()}


def with_margin(problem: Problem, pools: Mapping[str, float], links: float = 1.0) -> Problem:
    """The problem with less usable capacity: load per request is scaled up, link bandwidths are scaled down.

    `pools`: usable share of the utilisation cap, by pool; `links`: usable share of the bandwidth of all links.
    """
    if links < 1.0:
        problem = replace(problem, links=tuple(_narrower(link, links) for link in problem.links))
    if not pools:
        return problem

    def slowed(variant: Variant) -> Variant:
        service = {
            pool: {size: replace(time, load_s=time.load_s / pools.get(pool, 1.0)) for size, time in times.items()}
            for pool, times in variant.service.items()
        }
        return replace(variant, service=service)

    operators = tuple(replace(o, variants=tuple(slowed(v) for v in o.variants)) for o in problem.operators)
    return replace(problem, operators=operators)


def without_margin(problem: Problem, plan: Plan) -> Plan:
    """A plan of a restricted problem, with service times, loads and links as in the unrestricted `problem`."""

    def restored(operator: PlannedOperator) -> PlannedOperator:
        known = problem.operator_by_name[operator.name].variant(operator.variant).service
        service = {pool: {size: known[pool][size] for size in times} for pool, times in operator.service.items()}
        return replace(operator, service=service)

    operators = {
        operator.name: replace(restored(operator), others=tuple(restored(other) for other in operator.others))
        for operator in plan.operators
    }

    def request_s(worker: PlannedWorker, name: str) -> float:
        operator = operators[name]
        return operator.with_variant(worker.variants.get(name, operator.variant)).request_s(worker.pool)

    def loaded(worker: PlannedWorker) -> PlannedWorker:
        load = sum(rate * request_s(worker, name) for name, rate in worker.rates_per_s.items())
        return replace(worker, load=load)

    return replace(
        plan,
        operators=tuple(operators.values()),
        workers=tuple(loaded(worker) for worker in plan.workers),
        links=problem.links,
        utilisation=problem.utilisation,
    )


def _narrower(link: Link, share: float) -> Link:
    bandwidth = link.bandwidth_bytes_per_s
    return replace(link, bandwidth_bytes_per_s=None if bandwidth is None else share * bandwidth)
