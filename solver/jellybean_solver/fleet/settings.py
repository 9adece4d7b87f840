"""Limits and tuned numbers of the fleet search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jellybean_solver.outcome import Clock


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """When a search may end. `gap`: relative, to the lower bound; `budget`: USD per hour that a plan may cost."""

    gap: float
    clock: Clock = field(default_factory=Clock)
    budget: float = math.inf


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Effort of the search. Shares of the gap are of `coarse_gap` or the gap asked for, whichever is wider."""

    middle_size: int = 2_000  # pairs of a choice and a worker class, up to which the joint MILP runs from the start
    coarse_gap: float = 1e-3  # relative; heuristics go no finer, however small the gap asked for
    restart_below: float = 1e-2  # relative; a better incumbent restarts the joint MILP once if it is cheaper by this
    guesses: tuple[float, ...] = (0.012, 0.03, math.inf)  # of the root's bound: assumed excess of the optimum, by pass
    depths: tuple[float, ...] = (0.6, 0.3, 0.1)  # shares of the gap: distance from the best relaxed selection, by step
    pruned_share: float = 0.9  # of the gap, below the incumbent: what costs as much is pruned for good
    near_enough: float = 0.99  # of the gap: a rounded plan that near the bound ends the rounding
    first_rounding: float = 0.01  # relative gap of rounding for the very first plan
    quick_rounding: float = 0.3  # share of the gap that a rounding may lose in the search
    fine_rounding: float = 0.2  # share of the gap that a rounding may lose at the end
    roundings: int = 5  # selections rounded before the tree is explored further
    reproducing_nodes: int = 1_000  # of the exact MILP that makes the final plan reproducible
    relaxations_per_deadline: int = 250  # solved under one deadline on the delay
    memory_headroom: tuple[float, ...] = (0.0, 0.2, 1.0)  # workers of a class left out per operator on it, in turn
    grace_s: float = 1.0  # at the end of the time limit, for rounding what has been found by then
    grace_share: float = 0.1  # of the time limit, that this may take at most


DEFAULT_SETTINGS = SearchSettings()
