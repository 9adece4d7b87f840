"""Assigns whole streams to routes, by the routes' weights: gateway and simulator place streams the same way."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from jellybean_solver.errors import SolverError
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.route_drawing import RouteDrawer
from jellybean_solver.model.streams import RequestStream
from jellybean_solver.model.workflow import ServiceTime, Times

_ROUNDING = 1e-9  # streams: by how much a quotient may be below a whole number that it stands for


class StreamAssignment:
    """Stream -> route. A stream keeps its route until the route's weight is 0 or another one has too few streams.

    The route of a new stream is that with the fewest streams for its weight. This is Adams' method of apportionment,
    which never exceeds the upper quota: of n streams a route of weight w gets at most n * w, rounded up.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not weights or min(weights) < 0 or not sum(weights) > 0:
            raise SolverError(f"routes need weights of at least 0 that do not all vanish, not {list(weights)}")
        self._weights = list(weights)
        self._streams: list[dict[str, None]] = [{} for _ in weights]  # of each route, in the order of assignment
        self._route: dict[str, int] = {}

    @property
    def counts(self) -> list[int]:
        """Number of streams of each route."""
        return [len(streams) for streams in self._streams]

    def route_of(self, stream: str) -> int:
        """The route of a stream, which is assigned one if it is new."""
        route = self._route.get(stream)
        return self._assign(stream) if route is None else route

    def release(self, stream: str) -> None:
        """Forget a stream."""
        route = self._route.pop(stream, None)
        if route is not None:
            del self._streams[route][stream]

    def reweight(self, weights: Sequence[float]) -> None:
        """Replace the weights; as few streams move as the new weights need. If all are 0, every stream stays."""
        if not any(weights):
            return
        self._weights = list(weights)
        for route, weight in enumerate(weights):
            for stream in list(self._streams[route]) if weight == 0 else ():
                self._move(stream)
        while True:
            open_routes = [route for route, weight in enumerate(weights) if weight > 0]
            fullest = max(open_routes, key=lambda route: (len(self._streams[route]) - 1) / self._weights[route])
            least, _ = self._fill(self._emptiest())
            if (len(self._streams[fullest]) - 1) / self._weights[fullest] <= least + 1e-12:
                return
            self._move(next(reversed(self._streams[fullest])))

    def _move(self, stream: str) -> None:
        self.release(stream)
        self._assign(stream)

    def _assign(self, stream: str) -> int:
        route = self._route[stream] = self._emptiest()
        self._streams[route][stream] = None
        return route

    def _emptiest(self) -> int:
        return min((route for route, weight in enumerate(self._weights) if weight > 0), key=self._fill)

    def _fill(self, route: int) -> tuple[float, float]:
        """Streams for the route's weight; of equally filled routes the one of the largest weight is first."""
        return len(self._streams[route]) / self._weights[route], -self._weights[route]


class StreamDrawer:
    """Draws the routes of requests that `streams` streams send in turn, with the interface of `RouteDrawer`."""

    def __init__(self, weights: Sequence[float], streams: int) -> None:
        self._assignment, self._streams, self._drawn = StreamAssignment(weights), streams, 0

    def draw(self) -> int:
        """Index of the next request's route."""
        stream, self._drawn = self._drawn % self._streams, self._drawn + 1
        return self._assignment.route_of(str(stream))


def request_drawer(
    plan: Plan, stream: RequestStream, weights: Sequence[float], phase: random.Random | None = None, scale: float = 1.0
) -> RouteDrawer | StreamDrawer:
    """Draws the routes of a stream's requests, whole streams where an operator has a state; else each by itself.

    At `scale` times the rates there are more or fewer streams, as of `bench`.
    """
    if any(plan.operator_by_name[name].state for name in stream.operators):
        return StreamDrawer(weights, max(1, round(stream.count * scale)))
    return RouteDrawer(weights, phase)


def whole_stream_times(times: Times, stream_rate_per_s: float, utilisation: float) -> Times:
    """Service times by which a worker's capacity is a whole number of streams; without a size where not one fits.

    A worker that is busy at most a share `utilisation` of the time takes k = floor(utilisation / (s * r)) streams of r
    chunks per second, each s seconds of its time. Planning with utilisation / (k * r) seconds per chunk says the same
    as a rate; `mean_s` and quantiles, from which times are predicted, stay.
    """
    found: dict[int, ServiceTime] = {}
    for size, time in times.items():
        chunk_s = time.load_s / size
        fitting = math.floor(utilisation / (chunk_s * stream_rate_per_s) + _ROUNDING) if chunk_s > 0 else 0
        if chunk_s == 0:
            found[size] = time
        elif fitting:
            found[size] = replace(time, load_s=size * utilisation / (fitting * stream_rate_per_s))
    return found if 1 in found else {}
