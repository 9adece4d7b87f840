"""Cost of one all-reduce of gradients: total bytes, bytes over the busiest link, seconds.

N workers sum M bytes over links of bandwidth b (bytes per second) and latency a (seconds). A parameter server receives
and sends everything over its own link; in the naive all-reduce every worker sends everything to every other; the ring
sends parts of size M / N around twice; the tree reduces and broadcasts; the butterfly (recursive doubling) exchanges
everything with partners at doubling distances; unless N is a power of two, the workers above the next lower one give
their gradients to a partner before and get the sum after. These forms equal the counts of `traffic.py` for every N;
the parameter server's has no latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jellybean_solver.errors import SolverError

FactorOfWorkers = Callable[[int], float]  # number of workers -> multiple of M, or number of rounds


@dataclass(frozen=True, slots=True)
class Collective:
    """The factors of an all-reduce algorithm, as functions of the number of workers.

    `total`, `bottleneck`: bytes sent in total and over the busiest link (of one round, for tree and butterfly), in
    multiples of M. `sent`: bytes on the critical path, in multiples of M. `latencies`: rounds on the critical path.
    """

    total: FactorOfWorkers
    bottleneck: FactorOfWorkers
    sent: FactorOfWorkers
    latencies: FactorOfWorkers

    def seconds(self, size: float, workers: int, bandwidth: float, latency_s: float = 0.0) -> float:
        """Duration of one all-reduce of `size` bytes; 0 for a single worker."""
        if workers < 2:
            return 0.0
        return self.latencies(workers) * latency_s + self.sent(workers) * size / bandwidth


def _levels(workers: int) -> int:
    """Levels of a binomial tree: log2, rounded up."""
    return (workers - 1).bit_length()


def _paired(workers: int) -> int:
    """Workers that exchange with partners: the largest power of two that is no larger than their number."""
    return 1 << (workers.bit_length() - 1)


def _exchanges(workers: int) -> int:
    """Rounds of recursive doubling, with those before and after for the workers without a partner."""
    return _paired(workers).bit_length() - 1 + (2 if workers > _paired(workers) else 0)


RING = Collective(lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1))
COLLECTIVES = {
    "parameter-server": Collective(lambda n: 2 * n, lambda n: 2 * n, lambda n: 2 * n, lambda n: 0),
    "naive": Collective(lambda n: n * (n - 1), lambda n: n - 1, lambda n: n - 1, lambda n: 1),
    "ring": RING,
    "tree": Collective(lambda n: 2 * (n - 1), lambda n: 1, lambda n: 2 * _levels(n), lambda n: 2 * _levels(n)),
    "butterfly": Collective(
        lambda n: _paired(n) * math.log2(_paired(n)) + 2 * (n - _paired(n)),
        lambda n: 1,
        _exchanges,
        _exchanges,
    ),
}


def collective(name: str) -> Collective:
    """The collective of that name. SolverError if there is none."""
    if name not in COLLECTIVES:
        raise SolverError(f"unknown all-reduce {name}; there are {', '.join(COLLECTIVES)}")
    return COLLECTIVES[name]
