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
        self.reweight([*weights] * sites)

    def reweight(self, weights: Sequence[float]) -> None:
        """Replace the weights of all routes of all sites; a site whose weights are all 0 uses the plan's weights."""
        size, has_sites = len(self._weights), len(weights) > len(self._weights)
        by_site = [weights[start : start + size] for start in range(0, len(weights), size)]
        phase = self._random if has_sites else None
        self._drawers = [RouteDrawer(part if any(part) else self._weights, phase) for part in by_site]

    def draw(self) -> int:
        """Index of the next request's route."""
        count = len(self._drawers)
        site = self._drawn % count if self._periodic else self._random.randrange(count) if count > 1 else 0
        self._drawn += 1
        return site * len(self._weights) + self._drawers[site].draw()
