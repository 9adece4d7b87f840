"""Rounding patterns: integer numbers of exclusive workers, by class, for one operator.

A fraction of a worker must be rounded up to a whole one, but not of the same class: a smaller worker may suffice.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np

from jellybean_solver.milp.highs_program import Floats

NEAR, ADDED, TAKEN = 6, 3, 2  # cheapest classes tried, most workers added, most taken away further
SPARE = 1e-7  # workers: a need of 2.0000000001 is met by 2


@cache
def multisets(kinds: int, most: int) -> Floats:
    """All ways to take up to `most` workers in total from `kinds` classes: one row per way, one column per class."""
    rows = [
        [chosen.count(kind) for kind in range(kinds)]
        for size in range(most + 1)
        for chosen in itertools.combinations_with_replacement(range(kinds), size)
    ]
    return np.array(rows, float).reshape(len(rows), kinds)


def ways_near(share: float, needed: Floats, prices: Floats, given: Floats, room: Floats, most: int) -> Floats:
    """Integer workers that serve a share of one operator's requests: up to `most` patterns (rows), cheapest first.

    Per class: `given`, fractional workers of the relaxed point; `needed`, workers that all of the operator's requests
    keep busy, inf if it cannot run there; `room`, unused workers. A pattern rounds `given` down, takes up to `TAKEN`
    further workers away, and compensates by up to `ADDED` workers of the `NEAR` cheapest classes and as many as needed
    of one further class.
    """
    kinds = np.flatnonzero(np.isfinite(needed))
    kinds = kinds[np.argsort(needed[kinds] * prices[kinds], kind="stable")]
    free = kinds[room[kinds] >= ADDED][: NEAR // 2]
    cheap = np.array([*free, *[kind for kind in kinds if kind not in free][: NEAR - len(free)]], np.int64)
    floor = np.floor(given + SPARE)
    large = np.flatnonzero(floor > 0)
    starts = np.zeros((1, len(needed)))
    if len(large):
        taken = np.zeros((len(multisets(len(large), TAKEN)), len(needed)))
        taken[:, large] = multisets(len(large), TAKEN)
        starts = (floor - taken)[(floor >= taken).all(axis=1)]
    added = np.zeros((len(multisets(len(cheap), ADDED)), len(needed)))
    added[:, cheap] = multisets(len(cheap), ADDED)
    ways = (starts[:, None, :] + added[None, :, :]).reshape(-1, len(needed))
    served = 1.0 / np.where(np.isfinite(needed), needed, math.inf)
    missing = np.maximum(share - ways @ served, 0.0)
    first = [*large[np.argsort(-given[large], kind="stable")[:1]], *free[:1], *kinds[:2]]
    last = dict.fromkeys(int(kind) for kind in first)
    found = []
    for kind in last:
        filled = ways.copy()
        filled[:, kind] += np.ceil(np.maximum(missing * needed[kind] - SPARE, 0.0))
        cost = filled @ prices
        found.append(filled[np.argsort(cost, kind="stable")[:most]])
    every = np.unique(np.concatenate(found), axis=0)
    return every[np.argsort(every @ prices, kind="stable")[:most]]
