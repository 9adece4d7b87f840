"""Which routes of a plan new attempts may take: all workers available, and no hop failed recently.

Workers that only an audit needs close no route.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set

from jellybean.serving.gateway.plans.closed_routes import ClosedRoutes
from jellybean.serving.gateway.plans.route_choice import SiteRouteDrawer
from jellybean_agent import Fallback, PlanView
from jellybean_solver import StreamAssignment

BARRED_S = 1.0  # seconds between probes of a barred route
ALL = 1.0 - 1e-6  # share of the requests from which on none is refused: it is a sum of rounded weights


class OpenRoutes:
    """Draws open routes by the plan's weights. `is_away(worker)`: True unless the worker is ready.

    A route on which one worker could not reach the next, though the gateway reaches both, is barred: one request per
    `BARRED_S` probes it, until one is answered. If the plan spreads children, a route is taken with spread children
    while all workers that these may reach are there, otherwise without.

    While routes are closed, the others of the site share its requests as the fallback says of the smallest loss that
    closes all these routes, or else in their proportions. Of several workflows, the routes of all count, which `closed`
    knows. A fallback may serve a part of the requests only: the others are refused.
    """

    def __init__(self, view: PlanView, is_away: Callable[[str], bool], closed: ClosedRoutes | None = None) -> None:
        self._view, self._is_away = view, is_away
        self._closed = ClosedRoutes() if closed is None else closed
        self._fallbacks: list[Fallback | None] = []  # of each site, that which is in use
        self._table = view.table
        self._workers = [view.workers_on(number) for number in range(len(self._table))]
        self._audit_workers = [view.workers_on(number, is_audit=True) for number in range(len(self._table))]
        self._barred: dict[int, float] = {}  # route -> CLOCK_MONOTONIC second of its next probe
        self._streams: StreamAssignment | None = None  # made for the first stream
        self.is_after_loss = False  # some route of the plan is closed, of this workflow or of another one
        self._opened: set[int] = set()  # sites of which some route has been open
        sites = len(view.routes) // len(view.weights)
        self._drawer = SiteRouteDrawer(view.weights, sites, periodic=view.periodic)

    @property
    def refused_text(self) -> str:
        """What is lost, and which share of the requests is answered meanwhile; empty if all are."""
        partial = [one for one in self._fallbacks if one is not None and one.share < ALL]
        if not partial:
            return ""
        lost = " and ".join(dict.fromkeys(one.lost for one in partial))
        share = sum(1.0 if one is None else one.share for one in self._fallbacks) / len(self._fallbacks)
        part = f"{share * 100:.3g} % of the requests are" if share else "no request is"
        return f"{lost} is lost, and what is left must serve other workflows: {part} answered until it is back"

    @property
    def refuses_all(self) -> bool:
        """True if no request is answered until what is lost is back."""
        return bool(self._fallbacks) and all(one is not None and not one.share for one in self._fallbacks)

    @property
    def has_opened(self) -> bool:
        """True once a route has had all its workers."""
        return bool(self._opened)

    def draw(self) -> tuple[int, bool] | None:
        """A route for a new attempt, and whether it is open; None if the attempt is refused."""
        route = self._drawer.draw()
        if route is None:
            return None
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

    def workers(self, route: int, *, is_audit: bool = False) -> frozenset[str]:
        """All workers that an attempt on a route may reach, or an audit of its answer."""
        return self._audit_workers[route] if is_audit else self._workers[route]

    def is_barred(self, route: int) -> bool:
        """True if a route is barred; a barred route is drawn only when its next probe is due."""
        return route in self._barred

    def alternative(self, route: int) -> int | None:
        """The open route of the same site that shares the fewest workers; None when none has another worker.

        None also while requests are refused: what is left is too little for them.
        """
        if self.refused_text:
            return None
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
        weights: list[Sequence[float]] = []
        shares: list[float] = []
        self._fallbacks = []
        self.is_after_loss = False
        closed: list[frozenset[int]] = []
        for site in range(len(self._view.routes) // len(self._view.weights)):
            is_open = [not self._is_closed(route) for route in self._of_site(site)]
            if any(is_open):
                self._opened.add(site)
            closed.append(self._view.numbers_in_plan(number for number, ready in enumerate(is_open) if not ready))
            lost = closed[-1] | self._closed.elsewhere(self._view.workflow, site)
            self.is_after_loss |= bool(lost)
            fallback = self._fallback(lost)
            self._fallbacks.append(fallback)
            shares.append(1.0 if fallback is None or fallback.share >= ALL else fallback.share)
            if fallback is not None and fallback.weights:
                weights.append(fallback.weights)
            else:
                weights.append([one if ready else 0.0 for one, ready in zip(self._view.weights, is_open, strict=True)])
        self._drawer.reweight(weights, shares)
        if self._streams is not None:
            served = [weight for own in weights for weight in own]
            self._streams.reweight([*served, sum(1.0 - share for share in shares)])
        self._closed.state(self._view.workflow, closed)

    def _fallback(self, closed: Set[int]) -> Fallback | None:
        """What the plan says of the smallest loss that closes these routes of one site."""
        return next((one for one in self._view.fallbacks if closed <= one.closes), None) if closed else None

    def draw_for(self, stream: str) -> int | None:
        """The route of a stream, which it keeps while it is open; None when it is closed, and all others are.

        The number of routes for a stream that is refused.
        """
        if self._streams is None:
            sites = len(self._view.routes) // len(self._view.weights)
            self._streams = StreamAssignment([*[*self._view.weights] * sites, 0.0])
            self.reweight()
        route = self._streams.route_of(stream)
        return None if route < len(self._view.routes) and self._is_closed(route) else route

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
