"""Closed forms and counts of one all-reduce of M bytes over N workers."""

from __future__ import annotations

import math

import pytest

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    COLLECTIVES,
    Duplex,
    Layer,
    LayerGraph,
    Link,
    TopologyLevel,
    count_traffic,
    make_all_reduce,
    partition,
)
from jellybean_solver.pipeline.collectives.closed_forms import collective
from jellybean_solver.pipeline.collectives.ways import parameter_server

M, B, A = 8e6, 1e9, 1e-3


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_textbook_forms_of_powers_of_two(n: int) -> None:
    expected = {
        "parameter-server": (2 * n * M, 2 * n * M, 2 * n * M / B),
        "naive": (n * (n - 1) * M, (n - 1) * M, A + (n - 1) * M / B),
        "ring": (2 * (n - 1) * M, 2 * M * (n - 1) / n, 2 * (n - 1) * (A + M / (n * B))),
        "tree": (2 * (n - 1) * M, M, 2 * math.log2(n) * (A + M / B)),
        "butterfly": (n * M * math.log2(n), M, math.log2(n) * (A + M / B)),
    }
    assert set(expected) == set(COLLECTIVES)
    for name, figures in expected.items():
        way = collective(name)
        found = (way.total(n) * M, way.bottleneck(n) * M, way.seconds(M, n, B, A))
        assert found == pytest.approx(figures), name
        assert way.seconds(M, 1, B, A) == 0


@pytest.mark.parametrize("n", [*range(2, 18), 31, 33, 64])
def test_counts_equal_the_closed_forms(n: int) -> None:
    """The server's closed form counts both directions, and no latency."""
    for name, form in COLLECTIVES.items():
        full, half = (count_traffic(make_all_reduce(name, n), M, duplex) for duplex in (Duplex.FULL, Duplex.HALF))
        assert full.total_bytes == pytest.approx(form.total(n) * M), name
        of_a_round = name in ("tree", "butterfly")
        bottleneck = half.busiest_bytes if name == "parameter-server" else full.busiest_bytes
        assert (max(full.round_bytes) if of_a_round else bottleneck) == pytest.approx(form.bottleneck(n) * M), name
        assert full.rounds == (2 if name == "parameter-server" else form.latencies(n)), name
        latency_s = 0.0 if name == "parameter-server" else A
        timed = half if name == "parameter-server" else full
        assert timed.seconds(Link(B, latency_s)) == pytest.approx(form.seconds(M, n, B, latency_s)), name


def test_half_duplex_links_carry_both_directions_in_turn() -> None:
    """A tree's links are used in one direction in each round; a ring's and a butterfly's in both."""
    for name, factor in {"parameter-server": 1, "naive": 2, "ring": 2, "tree": 1, "butterfly": 2}.items():
        full, half = (count_traffic(make_all_reduce(name, 8), M, duplex) for duplex in (Duplex.FULL, Duplex.HALF))
        assert half.seconds(Link(B)) == pytest.approx(factor * full.seconds(Link(B))), name
        assert half.total_bytes == full.total_bytes


def test_five_workers_by_hand() -> None:
    """One worker more than a power of two: it folds into a neighbour; the tree has a third level."""
    counts = {name: count_traffic(make_all_reduce(name, 5), 5.0) for name in ("tree", "butterfly")}
    assert counts["butterfly"].total_bytes == 5.0 * (1 + 4 * 2 + 1)
    assert counts["butterfly"].rounds == 4
    assert counts["tree"].total_bytes == 5.0 * 2 * 4
    assert counts["tree"].rounds == 6
    assert counts["tree"].sent == (15.0, 5.0, 10.0, 5.0, 5.0)


def test_a_sharded_server_spreads_the_traffic() -> None:
    one, four = (count_traffic(parameter_server(4, servers), M) for servers in (1, 4))
    assert four.total_bytes == one.total_bytes == 8 * M
    assert (one.busiest, one.busiest_bytes) == (4, 4 * M)
    assert four.busiest_bytes == M
    with pytest.raises(SolverError, match="at least 1 server"):
        parameter_server(4, 0)


def test_unknown_ways_and_too_few_workers() -> None:
    with pytest.raises(SolverError, match="unknown all-reduce star; there are parameter-server, naive"):
        make_all_reduce("star", 4)
    with pytest.raises(SolverError, match="ring needs at least 1 worker, not 0"):
        make_all_reduce("ring", 0)


def test_a_partition_by_each_of_them() -> None:
    """One layer of 4 s and 8 bytes, links of 2 bytes/s: replicated only if the all-reduce costs less than it saves."""
    graph = LayerGraph((Layer("a", 1, 3, 1, 8),), ())
    for name, way in COLLECTIVES.items():
        two_s = (4 + way.seconds(8, 2, 2.0)) / 2
        found = partition(graph, [TopologyLevel(2, 2.0)], all_reduce=name)
        assert found.objective_s == pytest.approx(min(4.0, two_s)), name
    assert partition(graph, [TopologyLevel(2, 2.0)], all_reduce="ring").objective_s == 4
    assert partition(graph, [TopologyLevel(2, 8.0)], all_reduce="ring").objective_s == 2.5


def test_names_and_objectives_that_do_not_go() -> None:
    graph = LayerGraph((Layer("a", 1, 3, 1, 8),), ())
    with pytest.raises(SolverError, match="there are parameter-server, naive, ring"):
        partition(graph, [TopologyLevel(2, 2.0)], all_reduce="star")
    with pytest.raises(SolverError, match="goes with slowest-stage, alpa-inter, not with pipedream-paper"):
        partition(graph, [TopologyLevel(2, 2.0)], objective="pipedream-paper", all_reduce="ring")
