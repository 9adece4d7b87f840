"""Arranged workers serve all there is within what they can do; levelled ones are as even as can be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from jellybean_solver.migration.worker_matching import assign_workers, balance_loads, loads_usd_per_h
from tests.support.examples import examples

NAMES = "abcd"
BUSY = st.fixed_dictionaries({name: st.sampled_from((0.0, 0.2, 0.5, 1.0, 1.7, 3.0)) for name in NAMES})
HELD = st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1), max_size=6)
SHARES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from((0.1, 0.5, 1.0)), min_size=1)


@settings(deadline=None, max_examples=examples(100))
@given(SHARES, BUSY, HELD, st.integers(0, 3))
def test_arranged_workers_serve_everything(
    shares: dict[str, float], busy: dict[str, float], held: list[frozenset[str]], spare: int
) -> None:
    needed = sum(share * busy[name] for name, share in shares.items())
    count = max(1, int(np.ceil(needed - 1e-9))) + spare
    price = dict.fromkeys(NAMES, 1.0)
    running = Counter(held)
    singles = assign_workers(shares, count, busy, running, price)
    assert len(singles) == count
    for name, share in shares.items():
        assert sum(single.shares.get(name, 0.0) for single in singles) == pytest.approx(share, abs=1e-7)
    for single in singles:
        assert set(single.shares) <= set(shares)
        assert sum(share * busy[name] for name, share in single.shares.items()) <= 1 + 1e-6
    going_on = Counter(single.held for single in singles if single.held)
    assert going_on + running == Counter(held)  # those that go on are taken from those that run
    alone = sum(max(1, int(np.ceil(share * busy[name] - 1e-9))) for name, share in shares.items())
    assert loads_usd_per_h(singles, price) <= alone + count  # no more than cut pieces are


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(SHARES, min_size=1, max_size=5), BUSY)
def test_levelled_workers_are_as_even_as_what_they_hold_allows(
    workers: list[dict[str, float]], busy: dict[str, float]
) -> None:
    found = balance_loads(workers, busy)
    for name in NAMES:
        before = sum(shares.get(name, 0.0) for shares in workers)
        assert sum(shares.get(name, 0.0) for shares in found) == pytest.approx(before)
    assert all(set(after) <= set(shares) for shares, after in zip(workers, found, strict=True))
    loads = [sum(share * busy[name] for name, share in shares.items()) for shares in found]
    assert max(loads) == pytest.approx(_least_busiest(workers, busy), abs=1e-4)


def _least_busiest(workers: list[dict[str, float]], busy: dict[str, float]) -> float:
    """The least load that the busiest worker can have: a linear program."""
    places = [(w, name) for w, shares in enumerate(workers) for name in shares]
    names = sorted({name for _, name in places})
    less = [[busy[name] if w == own else 0.0 for own, name in places] + [-1.0] for w in range(len(workers))]
    equal = [[1.0 if name == other else 0.0 for _, other in places] + [0.0] for name in names]
    total = [sum(shares.get(name, 0.0) for shares in workers) for name in names]
    result = linprog([0.0] * len(places) + [1.0], less, [0.0] * len(workers), equal, total, method="highs")
    return float(result.fun)
