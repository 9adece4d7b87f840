"""Limits of the partitioners' searches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Search limits of `partition`. Each trades run time for the optimality gap: larger is slower and exact more often.

    `max_cuts`: down-sets that are enumerated; beyond, only the prefixes of one topological order are cuts.
    `max_pruned_cuts`: the same for the objectives that prune cuts first (slowest-stage, pipedream-paper).
    `coarse_cuts`: cuts of the partitions that are solved first, for an upper bound that prunes the others.
    `keep_all_cuts`: up to so many cuts left after pruning, the exact program runs on all of them.
    `max_paired_cuts`, `max_pairs`: beyond, only the best-spread cuts are kept; the second counts pairs of cuts times
    the worker counts before and between them.
    `binary_search_workers`: single-level clusters of at least so many workers are solved by a search over the
    bottleneck time; below, the dynamic program over all worker counts is faster.
    `dapple_coarse_cuts`: cuts of DAPPLE's first programs, in turn. `dapple_max_states`: partial partitions that its
    program over more cuts may expand before it gives up.
    """

    max_cuts: int = 4_000
    max_pruned_cuts: int = 40_000
    coarse_cuts: tuple[int, ...] = (120, 360)
    keep_all_cuts: int = 1_200
    max_paired_cuts: int = 1_800
    max_pairs: float = 1e9
    binary_search_workers: int = 32
    dapple_coarse_cuts: tuple[int, ...] = (8, 15, 30, 60)
    dapple_max_states: int = 6_000


DEFAULT_SETTINGS = PartitionSettings()
