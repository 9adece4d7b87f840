"""Limits and tuned numbers of the fleet search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jellybean_solver.outcome import Clock


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """When a search may end. `gap`: relative, cost over lower bound; `budget`: most USD per hour of a plan."""

    gap: float
    clock: Clock = field(default_factory=Clock)
    budget: float = math.inf


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Effort of the search. "Share of the gap" refers to the requested gap, or to `coarse_gap` if that is wider."""

    middle_size: int = 2_000  # (choice, worker class) pairs up to which a plan is proven exactly
    coarse_gap: float = 1e-3  # relative; heuristics aim no finer, even if the requested gap is smaller
    restart_below: float = 1e-2  # relative: an incumbent cheaper by this than the joint MILP's best restarts it once
    guesses: tuple[float, ...] = (0.012, 0.03, math.inf)  # per pass: assumed excess of the optimum over the root bound
    depths: tuple[float, ...] = (0.6, 0.3, 0.1)  # shares of the gap: distance to the best relaxed selection, by step
    pruned_share: float = 0.9  # share of the gap: plans that are cheaper than the incumbent by less are pruned for good
    near_enough: float = 0.99  # share of the gap: a rounded plan within it of the bound ends the rounding
    rounding: float = 0.2  # share of the gap that a rounding may lose
    roundings: int = 5  # selections rounded before the tree is explored further
    reproducing_nodes: int = 1_000  # most nodes of the exact MILP that makes the final plan reproducible
    relaxations_per_deadline: int = 250  # most relaxations solved for one deadline on the delay
    grace_s: float = 1.0  # seconds reserved at the end of the time limit to round the points found so far
    grace_share: float = 0.1  # most of the time limit that `grace_s` may take


DEFAULT_SETTINGS = SearchSettings()
