"""Which route the next request takes."""

from __future__ import annotations

from collections.abc import Sequence


class RouteDrawer:
    """Smooth weighted round robin: deterministic, and never more than one request away from each route's share.

    Every route earns its weight as credit per draw; the one with most credit (the first of equals) is taken and pays
    one. Gateway and simulator share it, so that predicted and measured queues see the same pattern of arrivals; random
    draws would add queueing that nothing needs. (The scheme is nginx's.)
    """

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        if not weights or total <= 0 or min(weights) < 0:
            raise ValueError(f"route weights must be at least 0 and not all 0, got {list(weights)}")
        self._weights = [weight / total for weight in weights]
        self._credits = [0.0] * len(weights)

    def draw(self) -> int:
        """Index of the route of the next request."""
        if len(self._weights) == 1:
            return 0
        credits = [credit + weight for credit, weight in zip(self._credits, self._weights, strict=True)]
        taken = max(range(len(credits)), key=credits.__getitem__)
        credits[taken] -= 1.0
        self._credits = credits
        return taken
