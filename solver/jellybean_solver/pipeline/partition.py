"""Cuts a model into pipeline stages, by the objective asked for; stages may be replicated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.device_limit import DeviceLimit
from jellybean_solver.pipeline.layers import MOST_CUTS, LayerGraph, cuts
from jellybean_solver.pipeline.slowest import LeastMemory, SlowestStage, StageCost, paper_cost, summed_cost
from jellybean_solver.pipeline.spans import Spans
from jellybean_solver.pipeline.stages import Level, Partition, Stage

__all__ = ["MOST_WORKERS", "OBJECTIVES", "Level", "NothingFitsError", "Partition", "Stage", "partition"]

OBJECTIVES: dict[str, StageCost] = {"slowest-stage": summed_cost, "pipedream-paper": paper_cost}
MOST_WORKERS = 4096


class NothingFitsError(SolverError):
    """No partition keeps every device within its memory."""


def partition(
    graph: LayerGraph,
    levels: Sequence[Level],
    *,
    objective: str = "slowest-stage",
    limit: DeviceLimit | None = None,
    most_cuts: int = MOST_CUTS,
) -> Partition:
    """The stages of least time over all workers of `levels` (lowest first), each within `limit`.

    SolverError for what cannot be asked; NothingFitsError, with how much would do, where memory is too small.
    """
    _check(graph, levels, objective)
    sets, complete = cuts(graph, most_cuts)
    spans = Spans(graph, sets)
    best, stages = SlowestStage(spans, levels, OBJECTIVES[objective], limit).solve()
    if limit is not None and not math.isfinite(best):
        raise NothingFitsError(_too_small(spans, levels, limit))
    bound = best if complete else min(best, _bound(graph, levels))
    return Partition(best, bound, stages, len(sets))


def _check(graph: LayerGraph, levels: Sequence[Level], objective: str) -> None:
    if objective not in OBJECTIVES:
        raise SolverError(f"no objective is called {objective}; there are {', '.join(OBJECTIVES)}")
    if not graph.layers:
        raise SolverError("the model has no layers")
    workers = math.prod(level.count for level in levels)
    if not levels or min(level.count for level in levels) < 1 or workers > MOST_WORKERS:
        raise SolverError(f"{workers} workers: there must be 1 to {MOST_WORKERS}, at least one at each level")
    if not all(0 < level.bandwidth < math.inf for level in levels):
        raise SolverError("a bandwidth must be above 0 bytes per second")


def _bound(graph: LayerGraph, levels: Sequence[Level]) -> float:
    """All work spread evenly over all workers."""
    return sum(layer.both_s for layer in graph.layers) / math.prod(level.count for level in levels)


def _too_small(spans: Spans, levels: Sequence[Level], limit: DeviceLimit) -> str:
    least, _ = LeastMemory(spans, levels, limit).solve()
    asked = f"no partition fits into {limit.limit_bytes:,.0f} bytes a device under {limit.schedule}"
    return f"{asked}; {least:,.0f} would do: take larger devices, more of them, or smaller micro-batches"
