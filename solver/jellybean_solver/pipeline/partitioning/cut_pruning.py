"""Prunes cuts that no partition faster than a known one can use, so that graphs with thousands of cuts are solvable.

A partition over few, evenly spread cuts gives an upper bound on the bottleneck time. A cut is kept only if the cluster
has enough workers for the work before it and the work behind it, and can send the crossing bytes, within that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages, crossing_bytes, cut_members
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.settings import PartitionSettings
from jellybean_solver.pipeline.partitioning.stages import TopologyLevel

BottleneckSolver = Callable[[CandidateStages, float], float]  # (candidates, upper bound) -> bottleneck seconds


class CutCosts:
    """Per cut: compute seconds of the layers before it, and bytes that cross it."""

    def __init__(self, graph: LayerGraph, cuts: Sequence[int]) -> None:
        members = cut_members(graph, cuts)
        self.cuts = cuts
        self.before_s = members @ np.array([layer.compute_s for layer in graph.layers])
        self.crossing = crossing_bytes(graph, members)

    @property
    def total_s(self) -> float:
        return float(self.before_s[-1])


def spread_cuts(costs: CutCosts, count: int) -> list[int]:
    """The first and last cut, and in each of `count` equal parts of the work the cut with the fewest crossing bytes."""
    share = costs.before_s / max(costs.total_s, 1e-300)
    parts = np.minimum((share * count).astype(int), count - 1)
    order = np.lexsort((costs.crossing, parts))
    best = order[np.unique(parts[order], return_index=True)[1]]
    return [costs.cuts[i] for i in sorted({0, *best.tolist(), len(costs.cuts) - 1})]


def pruned_candidates(
    graph: LayerGraph,
    cuts: Sequence[int],
    levels: Sequence[TopologyLevel],
    solve: BottleneckSolver,
    settings: PartitionSettings,
) -> tuple[CandidateStages, float, bool]:
    """Candidate stages over the remaining cuts, an upper bound on the bottleneck in seconds, and True if lossless.

    Lossless: no partition faster than the bound uses a pruned cut.
    """
    bound_s = math.inf
    for coarse in settings.coarse_cuts:
        if len(cuts) <= coarse:
            return CandidateStages(graph, cuts), bound_s, True
        costs = CutCosts(graph, cuts)
        bound_s = min(bound_s, solve(CandidateStages(graph, spread_cuts(costs, coarse)), bound_s))
        cuts = _within_bound(costs, levels, bound_s)
    if len(cuts) <= settings.keep_all_cuts:
        return CandidateStages(graph, cuts), bound_s, True
    costs = CutCosts(graph, cuts)
    excess = math.sqrt(_pairs(costs, levels, bound_s) / settings.max_pairs)
    excess = max(len(cuts) / settings.max_paired_cuts, excess)
    if excess <= 1:
        return CandidateStages(graph, cuts), bound_s, True
    return CandidateStages(graph, spread_cuts(costs, int(len(cuts) / excess))), bound_s, False


def _pairs(costs: CutCosts, levels: Sequence[TopologyLevel], bound_s: float) -> float:
    """Size of the top level's dynamic program: pairs of cuts times the group counts with which they meet the bound."""
    count, size = levels[-1].count, math.prod(level.count for level in levels[:-1])
    if math.isinf(bound_s):
        return len(costs.cuts) ** 2 * count * (count + 1) / 4
    capacity_s = np.arange(count + 1)[:, None] * size * bound_s * (1 + 1e-9)
    after_s = costs.total_s - costs.before_s
    fits = ((after_s <= capacity_s) & (costs.before_s <= capacity_s[::-1])).sum(axis=1).astype(float)
    return float(sum(fits[used] * fits[:used].sum() for used in range(1, count + 1))) / 2


def _within_bound(costs: CutCosts, levels: Sequence[TopologyLevel], bound_s: float) -> list[int]:
    """Cuts that a partition within the bound may use, and always the empty and the full cut."""
    if not 0 < bound_s < math.inf:
        return list(costs.cuts)
    workers, bound_s = math.prod(level.count for level in levels), bound_s * (1 + 1e-9)
    workers_after = np.ceil((costs.total_s - costs.before_s) / bound_s - 1e-9)
    before_s = costs.before_s - 1e-9 * costs.total_s
    fits = before_s <= (workers - np.maximum(workers_after, 0.0)) * bound_s
    fits &= 2.0 * costs.crossing <= bound_s * max(level.bandwidth * level.count for level in levels) * workers
    fits[[0, -1]] = True
    return [costs.cuts[i] for i in np.flatnonzero(fits).tolist()]
