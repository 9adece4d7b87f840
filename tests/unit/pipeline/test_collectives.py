"""Cost table of one all-reduce of M bytes over N workers."""

from __future__ import annotations

import math

import pytest

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline import Layer, LayerGraph, TopologyLevel, partition
from jellybean_solver.pipeline.partitioning.collectives import COLLECTIVES, collective

M, B, A = 8e6, 1e9, 1e-3


@pytest.mark.parametrize("n", [2, 3, 4, 8, 64])
def test_bytes_and_seconds(n: int) -> None:
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
    with pytest.raises(SolverError, match="goes with slowest-stage, alpa, not with pipedream-paper"):
        partition(graph, [TopologyLevel(2, 2.0)], objective="pipedream-paper", all_reduce="ring")
