"""Limits of the partitioners' searches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Search limits of `partition`. Each trades run time for the optimality gap: larger is slower and exact more often.

    `max_cuts`: most down-sets that are enumerated; a graph with more is cut only at prefixes of its topological order.
    `max_pruned_cuts`: replaces `max_cuts` for the objectives that prune cuts first (slowest-stage, pipedream-paper).
    `coarse_cuts`: number of cuts in each preliminary solve; its optimum is an upper bound that prunes other cuts.
    `keep_all_cuts`: if at most so many cuts remain after pruning, the dynamic program runs on all of them.
    `max_paired_cuts`, `max_pairs`: with more cuts, or more pairs of cuts times the worker counts before and between
    them, only evenly spread cuts are kept, and the result is not proven optimal.
    `max_line_cuts`: the same for lines of devices and balanced blocks, which have no bound that prunes cuts.
    `binary_search_workers`: single-level clusters of at least so many workers are solved by a search over the
    bottleneck time; below, the dynamic program over all worker counts is faster.
    `sharded_cuts`: number of cuts between which Alpa's intra-operator pass plans stages; with more, evenly spread ones.
    `dapple_coarse_cuts`: number of cuts in each of DAPPLE's preliminary solves. `dapple_max_states`: partial partitions
    that each later solve may expand before it gives up.
    `first_cuts`: under a time limit, the number of evenly spread cuts of the searches before the one over all cuts.
    Their partitions are what the limit leaves; together they take a small part of the last one's time.
    """

    max_cuts: int = 4_000
    max_pruned_cuts: int = 40_000
    coarse_cuts: tuple[int, ...] = (120, 360)
    keep_all_cuts: int = 1_200
    max_paired_cuts: int = 1_800
    max_pairs: float = 1e9
    max_line_cuts: int = 3_000
    binary_search_workers: int = 32
    sharded_cuts: int = 20
    dapple_coarse_cuts: tuple[int, ...] = (8, 15, 30, 60)
    dapple_max_states: int = 6_000
    first_cuts: tuple[int, ...] = (8, 24, 120, 400)


DEFAULT_SETTINGS = PartitionSettings()
