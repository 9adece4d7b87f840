"""Cost models of a replicated stage: compute time and gradient all-reduce, per micro-batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from jellybean_solver.pipeline.collectives.closed_forms import collective
from jellybean_solver.pipeline.partitioning.candidate_stages import Floats

Indices = npt.NDArray[np.integer]
# (compute seconds T, parameter bytes W per worker, replicas m, bandwidth B) -> seconds per micro-batch; arrays are
# elementwise.
StageCost = Callable[[Floats, Floats, int | Indices, float], Floats]


def sequential_cost(seconds: Floats, parameter_bytes: Floats, replicas: int | Indices, bandwidth: float) -> Floats:
    """Compute, then all-reduce: (T + 4 (m - 1) W / (B m)) / m, the cost model of PipeDream's published optimizer."""
    return (seconds + 4.0 * (replicas - 1) * parameter_bytes / (bandwidth * replicas)) / replicas


def overlapped_cost(seconds: Floats, parameter_bytes: Floats, replicas: int | Indices, bandwidth: float) -> Floats:
    """All-reduce overlapped with compute: max(T, 2 (m - 1) W / B) / m (PipeDream, section 3.1)."""
    return np.maximum(seconds, 2.0 * (replicas - 1) * parameter_bytes / bandwidth) / replicas


def collective_cost(name: str, latency_s: float = 0.0) -> StageCost:
    """Compute, then all-reduce with the named collective, `latency_s` per round. SolverError for an unknown name."""
    algorithm = collective(name)

    def cost(seconds: Floats, parameter_bytes: Floats, replicas: int | Indices, bandwidth: float) -> Floats:
        counts, inverse = np.unique(replicas, return_inverse=True)
        fixed_s = np.array([algorithm.seconds(0.0, int(count), bandwidth, latency_s) for count in counts])[inverse]
        s_per_byte = np.array([algorithm.seconds(1.0, int(count), bandwidth) for count in counts])[inverse]
        total: Floats = (seconds + fixed_s + s_per_byte * parameter_bytes) / replicas
        return total

    return cost
