"""Deterministic choice of routes by weight: gateway and simulator send the same request the same way."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from jellybean_solver.errors import SolverError
from jellybean_solver.model.plan import Route


def own_routes(routes: Sequence[Route], operators: Collection[str]) -> Mapping[int, float]:
    """Merge routes that assign `operators` to equal workers: index of the first of equal routes -> summed weight.

    Routes of other workflows are left out.
    """
    first: dict[tuple[str, ...], int] = {}
    weights: dict[int, float] = {}
    for index, route in enumerate(routes):
        if not all(name in route.workers for name in operators):
            continue
        number = first.setdefault(tuple(route.workers[name] for name in operators), index)
        weights[number] = weights.get(number, 0.0) + route.weight
    return weights


class RouteDrawer:
    """Smooth weighted round robin over routes.

    After n draws a route of weight w was drawn n * w times, to within the number of routes, in even intervals: workers
    see more regular arrivals than with random draws, and runs are reproducible.

    `phase`: random generator for the start position, so that the drawers of different sites do not send to the same
    worker at the same time; None: start at the first position.
    """

    def __init__(self, weights: Sequence[float], phase: random.Random | None = None) -> None:
        total = sum(weights)
        if not weights or min(weights) < 0 or not total > 0:
            raise SolverError(f"routes need weights of at least 0 that do not all vanish, not {list(weights)}")
        self._weights = [weight / total for weight in weights]
        self._credits = [phase.random() if phase is not None and weight > 0 else 0.0 for weight in self._weights]

    def draw(self) -> int:
        """Index of the next request's route."""
        credits = self._credits
        best = 0
        for index, weight in enumerate(self._weights):
            credits[index] += weight
            if credits[index] > credits[best] + 1e-12:  # equal credits: the first route, whatever the rounding
                best = index
        credits[best] -= 1.0
        return best
