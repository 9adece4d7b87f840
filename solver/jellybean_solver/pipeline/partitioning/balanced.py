"""Stages of balanced time, none of them empty."""

from __future__ import annotations

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.partition import partition
from jellybean_solver.pipeline.partitioning.stages import TopologyLevel


def balanced_stages(graph: LayerGraph, stages: int) -> tuple[tuple[int, ...], ...]:
    """Layer indices per stage: contiguous, non-empty blocks that minimise the time of the slowest stage."""
    if len(graph.layers) < stages:
        raise SolverError(f"the model has {len(graph.layers)} layers, too few for {stages} stages")
    best = [stage.layers for stage in partition(graph, [TopologyLevel(stages, 1e12)], objective="balance").stages]
    while len(best) < stages:  # the optimum may leave stages empty: split the longest block
        place = max(range(len(best)), key=lambda i: len(best[i]))
        half = len(best[place]) // 2
        best[place : place + 1] = [best[place][:half], best[place][half:]]
    return tuple(best)
