"""Where the next request is born, and which way it goes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from jellybean_solver import RouteDrawer

_SEED = 0


class PlaceDrawer:
    """Draws a place, then one of its routes.

    What comes evenly spaced goes round the places, all else is born by chance: so each place sees requests come as its
    own sources would send them. Routes are numbered place after place.
    """

    def __init__(self, weights: Sequence[float], places: int, *, periodic: bool) -> None:
        """`weights`: of the routes of one place."""
        self._weights, self._periodic = weights, periodic
        self._chance = random.Random(_SEED)
        self._next = 0
        self.redraw([*weights] * places)

    def redraw(self, weights: Sequence[float]) -> None:
        """New weights of all routes of all places; a place whose weights all vanish keeps its own."""
        size, several = len(self._weights), len(weights) > len(self._weights)
        parts = [weights[start : start + size] for start in range(0, len(weights), size)]
        phase = self._chance if several else None
        self._drawers = [RouteDrawer(part if any(part) else self._weights, phase) for part in parts]

    def draw(self) -> int:
        """Index of the next request's route."""
        count = len(self._drawers)
        place = self._next % count if self._periodic else self._chance.randrange(count) if count > 1 else 0
        self._next += 1
        return place * len(self._weights) + self._drawers[place].draw()
