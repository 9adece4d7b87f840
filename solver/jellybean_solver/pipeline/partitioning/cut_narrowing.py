"""Which cuts can be in a partition that is faster than a known one: so that thousands of them may be asked for.

A partition of few, well spread cuts is found first. A cut is of interest only where the workers before and behind it
can do the work there within that time, and where what crosses it can be sent; then all those are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.spans import Spans, crossing_bytes, held_layers
from jellybean_solver.pipeline.partitioning.stages import Level

FEW = (120, 360)  # cuts of the first partitions, one after the other
MOST_SPANS = 1800  # cuts that are looked at in pairs
ALWAYS_ALL = 1200  # cuts of which none is left out
MOST_PAIRS = 1e9  # of more cuts, for every number of workers before and between them

Solve = Callable[[Spans, float], float]  # cuts, a time that is known to be reached -> best time


class Outlines:
    """Of each cut: seconds before it, and bytes that cross."""

    def __init__(self, graph: LayerGraph, cuts: Sequence[int]) -> None:
        held = held_layers(graph, cuts)
        self.cuts = cuts
        self.done_s = held @ np.array([layer.both_s for layer in graph.layers])
        self.crossing = crossing_bytes(graph, held)

    @property
    def work_s(self) -> float:
        return float(self.done_s[-1])


def spread(outlines: Outlines, most: int) -> list[int]:
    """The cut that sends least out of each of so many equal parts of the work, and the two ends."""
    share = outlines.done_s / max(outlines.work_s, 1e-300)
    parts = np.minimum((share * most).astype(int), most - 1)
    order = np.lexsort((outlines.crossing, parts))
    firsts = order[np.unique(parts[order], return_index=True)[1]]
    return [outlines.cuts[i] for i in sorted({0, *firsts.tolist(), len(outlines.cuts) - 1})]


def narrowed(
    graph: LayerGraph, cuts: Sequence[int], levels: Sequence[Level], solve: Solve
) -> tuple[Spans, float, bool]:
    """Cuts to look at, a time that is known to be reached, and whether no other cut could make it shorter."""
    known_s = math.inf
    for few in FEW:
        if len(cuts) <= few:
            return Spans(graph, cuts), known_s, True
        outlines = Outlines(graph, cuts)
        known_s = min(known_s, solve(Spans(graph, spread(outlines, few)), known_s))
        cuts = _worthwhile(outlines, levels, known_s)
    if len(cuts) <= ALWAYS_ALL:
        return Spans(graph, cuts), known_s, True
    outlines = Outlines(graph, cuts)
    too_many = max(len(cuts) / MOST_SPANS, math.sqrt(_pairs(outlines, levels, known_s) / MOST_PAIRS))
    if too_many <= 1:
        return Spans(graph, cuts), known_s, True
    return Spans(graph, spread(outlines, int(len(cuts) / too_many))), known_s, False


def _pairs(outlines: Outlines, levels: Sequence[Level], known_s: float) -> float:
    """Pairs of cuts at the top, each with every number of groups that may be before, between and behind them."""
    count, size = levels[-1].count, math.prod(level.count for level in levels[:-1])
    if math.isinf(known_s):
        return len(outlines.cuts) ** 2 * count * (count + 1) / 4
    groups = np.arange(count + 1)[:, None] * size * known_s * (1 + 1e-9)
    behind_s = outlines.work_s - outlines.done_s
    fits = ((behind_s <= groups) & (outlines.done_s <= groups[::-1])).sum(axis=1).astype(float)
    return float(sum(fits[used] * fits[:used].sum() for used in range(1, count + 1))) / 2


def _worthwhile(outlines: Outlines, levels: Sequence[Level], known_s: float) -> list[int]:
    """Cuts that may be in a partition of no more than that time; the ends always."""
    if not 0 < known_s < math.inf:
        return list(outlines.cuts)
    workers, near_s = math.prod(level.count for level in levels), known_s * (1 + 1e-9)
    behind = np.ceil((outlines.work_s - outlines.done_s) / near_s - 1e-9)  # workers that are needed there
    before_s = outlines.done_s - 1e-9 * outlines.work_s
    fits = before_s <= (workers - np.maximum(behind, 0.0)) * near_s
    fits &= 2.0 * outlines.crossing <= near_s * max(level.bandwidth * level.count for level in levels) * workers
    fits[[0, -1]] = True
    return [outlines.cuts[i] for i in np.flatnonzero(fits).tolist()]
