"""Draws the site and the route of each request, by the plan's weights."""

from __future__ import annotations

import random
from collections.abc import Sequence

from jellybean_solver import RouteDrawer

_SEED = 0


class SiteRouteDrawer:
    """Draws a site, then one of its routes (smooth weighted round robin).

    Periodic sources visit the sites in turn, others at random, so that each site's arrivals are distributed as its own
    sources would send them. Routes are numbered site by site.
    """

    def __init__(self, weights: Sequence[float], sites: int, *, periodic: bool) -> None:
        """`weights`: of the routes of one site; every site has the same."""
        self._weights, self._periodic = weights, periodic
        self._random = random.Random(_SEED)
        self._drawn = 0
        self.reweight([weights] * sites)

    def reweight(self, by_site: Sequence[Sequence[float]], shares: Sequence[float] = ()) -> None:
        """Replace the weights of the routes of each site; a site whose weights are all 0 uses the plan's weights.

        `shares`: of the requests of each site that are served, where it is not all; the rest is drawn without a route.
        """
        phase = self._random if len(by_site) > 1 else None
        self._drawers = []
        for site, weights in enumerate(by_site):
            share = shares[site] if shares else 1.0
            served = weights if any(weights) or share < 1.0 else self._weights
            self._drawers.append(RouteDrawer([*served, 1.0 - share] if share < 1.0 else served, phase))

    def draw(self) -> int | None:
        """Index of the next request's route; None: it is not served."""
        count = len(self._drawers)
        site = self._drawn % count if self._periodic else self._random.randrange(count) if count > 1 else 0
        self._drawn += 1
        drawn, size = self._drawers[site].draw(), len(self._weights)
        return site * size + drawn if drawn < size else None
