"""What one synchronisation of gradients costs: bytes sent in all, bytes over the busiest link, seconds.

N workers sum M bytes over links of b bytes per second and a seconds of latency. A parameter server gets and gives all
over its own link; a naive all-reduce sends everything to everyone; a ring sends N-th parts round twice; a tree sums up
and hands down; a butterfly (recursive doubling) exchanges everything with ever farther partners.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jellybean_solver.errors import SolverError

Count = Callable[[int], float]  # workers -> times M


@dataclass(frozen=True, slots=True)
class Collective:
    """Multiples of M. `total`, `bottleneck`: bytes sent in all, and over the busiest link (of one round, for trees and
    butterflies). `sent`: bytes one after the other, with so many `latencies`."""

    total: Count
    bottleneck: Count
    sent: Count
    latencies: Count

    def seconds(self, size: float, workers: int, bandwidth: float, latency_s: float = 0.0) -> float:
        """Of one synchronisation; nothing for one worker alone."""
        if workers < 2:
            return 0.0
        return self.latencies(workers) * latency_s + self.sent(workers) * size / bandwidth


COLLECTIVES = {
    "parameter-server": Collective(lambda n: 2 * n, lambda n: 2 * n, lambda n: 2 * n, lambda n: 0),
    "naive": Collective(lambda n: n * (n - 1), lambda n: n - 1, lambda n: n - 1, lambda n: 1),
    "ring": Collective(
        lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)
    ),
    "tree": Collective(lambda n: 2 * (n - 1), lambda n: 1, lambda n: 2 * math.log2(n), lambda n: 2 * math.log2(n)),
    "butterfly": Collective(lambda n: n * math.log2(n), lambda n: 1, math.log2, math.log2),
}


def collective(name: str) -> Collective:
    """SolverError for a name that none has."""
    if name not in COLLECTIVES:
        raise SolverError(f"no way to sum gradients is called {name}; there are {', '.join(COLLECTIVES)}")
    return COLLECTIVES[name]
