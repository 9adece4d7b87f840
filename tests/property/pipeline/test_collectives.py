"""Any number of workers: all-reduces are valid, broken ones are found out, sums of random vectors are right."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean_solver.pipeline import (
    WAYS,
    AllReduce,
    Transfer,
    all_reduce_violations,
    chunk_bounds,
    make_all_reduce,
)
from jellybean_solver.pipeline.collectives.ways import parameter_server

workers_of = st.integers(1, 40)
ways = st.builds(make_all_reduce, st.sampled_from(sorted(WAYS)), workers_of) | st.builds(
    parameter_server, workers_of, st.integers(1, 5)
)


def summed(way: AllReduce, vectors: list[np.ndarray]) -> list[np.ndarray]:
    """All vectors after the rounds, from the definition of a transfer."""
    held = [vector.copy() for vector in vectors] + [np.zeros_like(vectors[0]) for _ in range(way.servers)]
    bounds = chunk_bounds(len(vectors[0]), way.chunks)
    for transfers in way.rounds:
        before = [vector.copy() for vector in held]
        for one in transfers:
            begin, end = bounds[one.chunk]
            value = before[one.sender][begin:end]
            if one.reduce:
                held[one.receiver][begin:end] += value
            else:
                held[one.receiver][begin:end] = value
    return held[: way.workers]


@given(ways)
def test_every_way_is_valid_for_every_number_of_workers(way: AllReduce) -> None:
    assert all_reduce_violations(way) == ()


@given(ways, st.integers(0, 50), st.randoms(use_true_random=False))
def test_every_worker_ends_with_the_sum_of_whole_numbers(way: AllReduce, size: int, random) -> None:
    vectors = [np.array([random.randint(-1000, 1000) for _ in range(size)], dtype=float) for _ in range(way.workers)]
    for vector in summed(way, vectors):
        assert np.array_equal(vector, np.sum(vectors, axis=0))


@given(ways.filter(lambda way: way.workers > 1), st.data())
def test_a_missing_a_repeated_and_a_misdirected_transfer_are_found(way: AllReduce, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(way.rounds) - 1))
    index = data.draw(st.integers(0, len(way.rounds[number]) - 1))
    transfers = way.rounds[number]
    one = transfers[index]
    others = (*transfers[:index], *transfers[index + 1 :])
    broken = {
        "missing": others,
        "repeated": (*transfers, one),
        "to itself": (*others, one._replace(receiver=one.sender)),
        "no chunk": (*others, one._replace(chunk=way.chunks)),
        "added, not replaced, or the other way around": (*others, one._replace(reduce=not one.reduce)),
    }
    for what, changed in broken.items():
        rounds = (*way.rounds[:number], changed, *way.rounds[number + 1 :])
        assert all_reduce_violations(replace(way, rounds=rounds)), what


@given(workers_of)
def test_rounds(workers: int) -> None:
    rounds = {name: len(make_all_reduce(name, workers).rounds) for name in WAYS}
    assert rounds["tree"] == 2 * math.ceil(math.log2(workers))
    assert rounds["ring"] == 2 * (workers - 1)
    assert rounds["naive"] == (workers > 1)
    power = workers & (workers - 1) == 0
    assert rounds["butterfly"] == math.floor(math.log2(workers)) + (0 if power else 2)


def test_an_order_that_differs_between_workers_is_found() -> None:
    """Participants 3 to 5 keep the vectors; worker 0 adds (0 + 1) + 2, worker 1 (1 + 2) + 0, worker 2 (2 + 0) + 1."""
    keep = tuple(Transfer(worker, 3 + worker, 0, False) for worker in range(3))
    steps = [tuple(Transfer(3 + (worker + step) % 3, worker, 0, True) for worker in range(3)) for step in (1, 2)]
    assert all_reduce_violations(AllReduce("by turns", 3, 1, (keep, *steps), servers=3)) == (
        "worker 1 adds chunk 0 in another order than worker 0",
        "worker 2 adds chunk 0 in another order than worker 0",
    )


@pytest.mark.parametrize("size", [0, 1, 7, 12])
def test_chunks_cover_a_vector(size: int) -> None:
    for chunks in range(1, 9):
        bounds = chunk_bounds(size, chunks)
        assert [begin for begin, _ in bounds] == [0, *[end for _, end in bounds[:-1]]]
        assert bounds[-1][1] == size
        assert max(e - b for b, e in bounds) - min(e - b for b, e in bounds) <= 1
