"""Restrictions of a problem: places that proposed plans must not use, and margins of capacity that they leave free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jellybean_solver.deadline.settings import DeadlineSettings
from jellybean_solver.demand.demand import Crossings, EdgeKey, Network, Tiers
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import Variant

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
        """The restricted problem: load per request is scaled up, link bandwidths are scaled down, places are left out.

        `with_figures` restores the figures of its plans.
        """
        shares, most = dict(self.pools), dict[Place, int]()
        for place, size in self.batches:
            most[place] = min(size, most.get(place, size))

        def allowed(operator: str, variant: Variant) -> Variant:
            service = {
                pool: {
                    size: replace(time, load_s=time.load_s / shares.get(pool, 1.0))
                    for size, time in times.items()
                    if size <= most.get(place, size)
                }
                for pool, times in variant.service.items()
                for place in [(operator, variant.name, pool)]
                if place not in self.places
            }
            return replace(variant, service=service)

        operators = tuple(replace(o, variants=tuple(allowed(o.name, v) for v in o.variants)) for o in problem.operators)
        links = tuple(
            replace(link, bandwidth_bytes_per_s=self.links * link.bandwidth_bytes_per_s)
            if link.bandwidth_bytes_per_s is not None
            else link
            for link in problem.links
        )
        restricted = replace(problem, operators=operators, links=links)
        return Network(restricted, self._open_crossings(problem), self.apart)

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

    def _open_crossings(self, problem: Problem) -> Crossings:
        every = {(up, down) for up in problem.tiers for down in problem.tiers}
        closed: dict[EdgeKey, set[Tiers]] = {}
        for key, tiers in self.crossings:
            closed.setdefault(key, set()).add(tiers)
        return {key: frozenset(every - tiers) for key, tiers in closed.items()}
