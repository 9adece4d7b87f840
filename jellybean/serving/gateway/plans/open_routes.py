"""Which routes of a plan new attempts may take: all workers available, and no hop failed recently."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jellybean.serving.gateway.plans.route_choice import SiteRouteDrawer
from jellybean_agent import PlanView
from jellybean_solver import StreamAssignment

BARRED_S = 1.0  # seconds between probes of a barred route


class OpenRoutes:
    """Draws open routes by the plan's weights. `is_away(worker)`: True unless the worker is ready.

    A route on which one worker could not reach the next, though the gateway reaches both, is barred: one request per
    `BARRED_S` probes it, until one is answered. If the plan spreads children, a route is taken with spread children
    while all workers that these may reach are there, otherwise without.

    While routes are closed, the others of the site share its requests as the fallback says of the smallest loss that
    closes all these routes, or else in their proportions.
    """

    def __init__(self, view: PlanView, is_away: Callable[[str], bool]) -> None:
        self._view, self._is_away = view, is_away
        self._table = view.table
        self._workers = [self._table.workers(number) for number in range(len(self._table))]
        self._barred: dict[int, float] = {}  # route -> CLOCK_MONOTONIC second of its next probe
        self._streams: StreamAssignment | None = None  # made for the first stream
        self._opened: set[int] = set()  # sites of which some route has been open
        sites = len(view.routes) // len(view.weights)
        self._drawer = SiteRouteDrawer(view.weights, sites, periodic=view.periodic)

    @property
    def has_opened(self) -> bool:
        """True once a route has had all its workers."""
        return bool(self._opened)

    def draw(self) -> tuple[int, bool]:
        """A route for a new attempt, and whether it is open."""
        route = self._drawer.draw()
        spread = self._table.spread(route)
        if not self._is_closed(spread):
            return spread, True
        return route, not self._is_closed(route)

    def has_site_opened(self, route: int) -> bool:
        """True once a route of the same site has had all its workers."""
        return self._site(route) in self._opened

    def missing(self, route: int) -> set[str]:
        """The workers that are away, of all routes of the same site."""
        names = {name for number in self._of_site(self._site(route)) for name in self._workers[number]}
        return {name for name in names if self._is_away(name)}

    def missing_of_closed_sites(self) -> set[str]:
        """The workers that are away, of all sites without an open route."""
        firsts = range(0, len(self._view.routes), len(self._view.weights))
        closed = (first for first in firsts if all(map(self._is_closed, self._of_site(self._site(first)))))
        return {name for first in closed for name in self.missing(first)}

    def workers(self, route: int) -> frozenset[str]:
        """All workers that an attempt on a route may reach."""
        return self._workers[route]

    def is_barred(self, route: int) -> bool:
        """True if a route is barred; a barred route is drawn only when its next probe is due."""
        return route in self._barred

    def alternative(self, route: int) -> int | None:
        """The open route of the same site that shares the fewest workers; None when none has another worker."""
        used, route = self._workers[route], self._table.plain(route)
        first = route - route % len(self._view.weights)
        candidates: list[tuple[int, int]] = []
        for other in range(first, first + len(self._view.weights)):
            if self._workers[other] - used and other not in self._barred and not self._is_closed(other):
                candidates.append((len(self._workers[other] & used), other))
        if not candidates:
            return None
        found = min(candidates)[1]
        spread = self._table.spread(found)
        return found if self._is_closed(spread) else spread

    def bar(self, route: int) -> None:
        """Close a route until its next probe is due."""
        self._barred[route] = time.monotonic() + BARRED_S
        self.reweight()

    def unbar(self, route: int) -> bool:
        """Open a route whose probe was answered; False when it was not barred."""
        return self._barred.pop(route, None) is not None

    def reweight(self) -> None:
        """Give closed routes weight 0, unless every route of a site is closed."""
        weights: list[float] = []
        for site in range(len(self._view.routes) // len(self._view.weights)):
            is_open = [not self._is_closed(route) for route in self._of_site(site)]
            if any(is_open):
                self._opened.add(site)
            weights += self._open_weights(is_open)
        self._drawer.reweight(weights)
        if self._streams is not None:
            self._streams.reweight(weights)

    def _open_weights(self, is_open: Sequence[bool]) -> Sequence[float]:
        """The weights of one site's routes."""
        closed = {number for number, ready in enumerate(is_open) if not ready}
        if not closed:
            return self._view.weights
        fits = (weights for closes, weights in self._view.fallbacks if closed <= closes)
        if weights := next(fits, ()):
            return weights
        return [weight if ready else 0.0 for weight, ready in zip(self._view.weights, is_open, strict=True)]

    def draw_for(self, stream: str) -> int | None:
        """The route of a stream, which it keeps while it is open; None when it is closed, and all others are."""
        if self._streams is None:
            sites = len(self._view.routes) // len(self._view.weights)
            self._streams = StreamAssignment([*self._view.weights] * sites)
            self.reweight()
        route = self._streams.route_of(stream)
        return None if self._is_closed(route) else route

    def release_stream(self, stream: str) -> None:
        """Forget a stream."""
        if self._streams is not None:
            self._streams.release(stream)

    def _site(self, route: int) -> int:
        return self._table.plain(route) // len(self._view.weights)

    def _of_site(self, site: int) -> range:
        size = len(self._view.weights)
        return range(site * size, (site + 1) * size)

    def _is_closed(self, route: int) -> bool:
        if self._barred.get(route, 0.0) > time.monotonic():
            return True
        return any(map(self._is_away, self._workers[route]))
