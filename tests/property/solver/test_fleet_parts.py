"""The parts of the search over fleets: relaxations, ways to round workers up, seats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jellybean_solver import Network, Pool, Problem
from jellybean_solver.demand.memory import Memory
from jellybean_solver.fleet.ancestor_closure import AncestorClosure
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.joint_lp import RelaxedLp
from jellybean_solver.fleet.packing.bin_packing import Load, in_pools, pack
from jellybean_solver.fleet.packing.chains import chains_of
from jellybean_solver.fleet.relaxation import Point, Relaxation
from jellybean_solver.fleet.rounding.rounding_patterns import ways_near
from jellybean_solver.fleet.worker_classes import WorkerClass
from tests.strategies import problems
from tests.support.examples import examples


def _box(joint_lp: RelaxedLp, random: object) -> Box:
    draw: Callable[[], float] = random.random  # type: ignore[attr-defined]
    least = np.array([float(draw() < 0.1) for _ in joint_lp.integer_counts.most])
    most = np.array([one if draw() < 0.8 else max(1.0, one - 1.0) for one in joint_lp.integer_counts.most])
    return Box(np.array([draw() < 0.7 for _ in joint_lp.kinds.choices]), least, most)


def _all_at_once(joint_lp: RelaxedLp, box: Box) -> float:
    """The relaxation of a box, solved anew with the box as rows; inf when infeasible."""
    program = joint_lp.program
    for column in joint_lp.chosen[~box.allowed].tolist():
        program.row(0.0, 0.0, [column])
    program.fill(program.add_rows(box.least, box.most, len(box.most)), joint_lp.integer_counts.columns, 1.0)
    answer = program.solve(relaxed=True)
    return answer.bound


def _check_left(relaxation: Relaxation, point: Point, joint_lp: RelaxedLp, random: object) -> None:
    """A single selection with whole counts that is cheap enough is not ruled out."""
    draw: Callable[[], float] = random.random  # type: ignore[attr-defined]
    owner, most = joint_lp.kinds.owner, point.bound + draw() * (1.0 + abs(point.bound))
    left = point.left_below(most)
    order = np.array([draw() for _ in owner])
    best = np.full(owner.max() + 1, -1.0)
    np.maximum.at(best, owner, np.where(point.box.allowed, order, -1.0))
    allowed = point.box.allowed & (order == best[owner])
    counts = np.floor(point.box.least + draw() * (point.box.most - point.box.least) + 1e-9)
    inner = relaxation.solve(Box(allowed, counts, counts))
    if inner is not None and inner.bound < most - 1e-6 and (inner.box.most <= point.box.most).all():
        assert left.allowed[allowed].all()
        assert (left.least <= counts).all()
        assert (counts <= left.most).all()


@settings(max_examples=examples(40, nightly=400))
@given(problems(limited=True), st.randoms(use_true_random=False))
def test_relaxations_one_after_the_other_are_those_solved_at_once(problem: Problem, random: object) -> None:
    def joint_lp() -> RelaxedLp:
        return RelaxedLp(Network(problem), problem.slo.accuracy, {})

    own = joint_lp()
    assume(own.possible)
    relaxation = Relaxation(own)
    for _ in range(4):
        box = _box(own, random)
        point = relaxation.solve(box)
        expected = _all_at_once(joint_lp(), AncestorClosure(own).tightened(box))
        assert (point is None) == math.isinf(expected)
        if point is not None:
            assert point.bound == pytest.approx(expected, rel=1e-6, abs=1e-6)
            assert point.chosen[~box.allowed].max(initial=0.0) <= 1e-9
            _check_left(relaxation, point, own, random)


@settings(max_examples=examples(60, nightly=300))
@given(
    st.floats(0.05, 1.0),
    st.lists(st.sampled_from((1.0, 1.7, 3.2, 9.6, 40.3, math.inf)), min_size=1, max_size=5).filter(
        lambda needed: any(math.isfinite(one) for one in needed)
    ),
    st.data(),
)
def test_ways_serve_the_share_with_whole_workers(share: float, needed: list[float], data: st.DataObject) -> None:
    prices = np.array([data.draw(st.sampled_from((0.0, 0.1, 0.25, 0.6))) for _ in needed])
    parts = np.array([data.draw(st.floats(0.0, 1.0)) if math.isfinite(one) else 0.0 for one in needed])
    given_workers = np.zeros(len(needed))
    if parts.sum() > 0:
        given_workers = np.where(parts > 0, parts / parts.sum() * share * np.where(parts > 0, needed, 1.0), 0.0)
    ways = ways_near(share, np.array(needed), prices, given_workers, np.full(len(needed), 5.0), 30)
    assert 0 < len(ways) <= 30
    assert (ways == np.round(ways)).all()
    assert (ways >= 0).all()
    assert ((ways / np.array(needed)).sum(axis=1) >= share - 1e-6).all()
    assert len(np.unique(ways, axis=0)) == len(ways)


LIMITS = st.sampled_from((None, 2.0, 3.0))


@st.composite
def _loads(draw: st.DrawFn) -> list[Load]:
    times = (0.0, 0.01, 0.3, 0.5, 1.0, 1.7, 2.5, 12.25)
    return [
        Load(
            f"o{i}",
            draw(st.floats(0.01, 1.0)),
            draw(st.sampled_from(times)),
            Memory(draw(st.sampled_from((0.0, 1.0, 1.0, 2.0))), draw(st.sampled_from((0.0, 0.0, 1.0, 2.0)))),
        )
        for i in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=examples(150, nightly=1000))
@given(_loads(), st.lists(st.integers(1, 12), min_size=1, max_size=3), st.tuples(LIMITS, LIMITS))
def test_seats_hold_what_they_are_given(
    loads: list[Load], counts: list[int], limits: tuple[float | None, float | None]
) -> None:
    memory, device = limits
    pools = [
        Pool(f"p{i}", "edge", count, 0.1 * i, memory_bytes=memory, device_memory_bytes=device)
        for i, count in enumerate(counts)
    ]
    kind = WorkerClass(tuple(pools), pools[0].price_usd_per_h)
    least = max(1, math.ceil(sum(load.workers for load in loads) - 1e-7))
    assume(least <= kind.count)
    packed = pack(loads, kind.count, kind.limits)
    if packed is None:
        assert limits != (None, None)
        return
    groups = in_pools(kind, packed)
    if limits == (None, None):
        assert sum(group.count for group in groups) == least
    for load in loads:
        assert sum(group.shares.get(load.name, 0.0) for group in groups) == pytest.approx(load.share)
    by_name = {load.name: load for load in loads}
    for group in groups:
        for part, limit in enumerate(limits):
            assert limit is None or sum(by_name[name].memory[part] for name in group.shares) <= limit
        busy = sum(share / by_name[name].share * by_name[name].workers for name, share in group.shares.items())
        assert busy <= group.count * (1 + 1e-6)
    for pool in pools:
        assert sum(group.count for group in groups if group.pool == pool.name) <= pool.count


@settings(max_examples=examples(100, nightly=500), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.0, 6.0)), min_size=1, max_size=9),
    st.lists(st.floats(0.05, 1.0), max_size=3),
)
def test_chains_hold_every_operator_once_beside_ones_that_fit_with_it(
    there: list[tuple[float, float]], more: list[float]
) -> None:
    kind = WorkerClass((Pool("p", "edge", 100, 1.0, memory_bytes=1.0),), 1.0)
    memory, loads = ({o: pair[part] for o, pair in enumerate(there)} for part in (0, 1))
    others = {len(there) + number: held for number, held in enumerate(more)}

    chains = chains_of(kind, memory, loads, others)

    assert sorted(o for chain in chains for o in chain) == sorted(memory | others)
    both = memory | others
    for chain in chains:
        assert all(both[a] + both[b] <= 1.0 + 1e-6 for a, b in itertools.pairwise(chain))
        own = [Load(f"o{o}", 1.0, loads.get(o, 0.0), Memory(both[o])) for o in chain]
        least = max(1, math.ceil(sum(load.workers for load in own) - 1e-7))
        seats = pack(own, least, kind.limits)
        if all(load.workers >= 1.0 for load in own):
            assert seats is not None, "only loads of less than a worker bring three models together"
        for count, shares in seats or ():
            held = [load for load in own if load.name in shares]
            assert sum(load.memory.scarcer for load in held) <= 1.0 + 1e-6
            assert sum(load.workers * shares[load.name] for load in held) <= count * (1.0 + 1e-6)
        if seats is not None:
            for load in own:
                assert math.isclose(sum(shares.get(load.name, 0.0) for _, shares in seats), 1.0, abs_tol=1e-6)
