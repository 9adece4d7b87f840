"""The partitioner against enumeration on random small chains and DAGs, flat and in a hierarchy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_solver.pipeline.layers import Layer, LayerGraph
from jellybean_solver.pipeline.partition import Level, Stage, partition

TIMES = st.sampled_from([0.0, 1.0, 2.0, 3.5, 8.0])
BYTES = st.sampled_from([0.0, 1.0, 4.0, 30.0])


@st.composite
def graphs(draw: st.DrawFn) -> LayerGraph:
    size = draw(st.integers(1, 6))
    layers = tuple(Layer(f"l{i}", draw(TIMES), draw(TIMES) + 0.5, draw(BYTES), draw(BYTES)) for i in range(size))
    if draw(st.booleans()):
        return LayerGraph(layers, tuple((i, i + 1) for i in range(size - 1)))
    pairs = [(i, j) for j in range(size) for i in range(j)]
    return LayerGraph(layers, tuple(pair for pair in pairs if draw(st.integers(0, 2)) == 0))


def stage_s(seconds: float, parameters: float, replicas: int, bandwidth: float, objective: str) -> float:
    if objective == "pipedream-paper":
        return max(seconds, 2 * (replicas - 1) * parameters / bandwidth) / replicas
    return (seconds + 4 * (replicas - 1) * parameters / (bandwidth * replicas)) / replicas


def enumerated(graph: LayerGraph, levels: Sequence[Level], objective: str) -> float:
    """Every chain of down-sets with every number of replicas, level by level, straight from the definition."""
    names = range(len(graph.layers))
    downs = [
        frozenset(s)
        for s in ([i for i in names if mask >> i & 1] for mask in range(1 << len(graph.layers)))
        if all(up in s for up, down in graph.edges if down in s)
    ]

    def crossing(cut: frozenset[int]) -> float:
        senders = {up for up, down in graph.edges if up in cut and down not in cut}
        return sum(graph.layers[i].activation_bytes for i in senders)

    @cache
    def best(start: frozenset[int], end: frozenset[int], level: int) -> float:
        """Of the layers between two cuts on one whole group of a level; -1 is a single worker."""
        if level < 0:
            return sum(graph.layers[i].both_s for i in end - start)
        own, inner = levels[level], math.prod(one.count for one in levels[:level])

        @cache
        def go_on(at: frozenset[int], left: int) -> float:
            if at == end:
                return 0.0
            found = math.inf
            for cut in downs:
                if not (at < cut <= end):
                    continue
                parameters = sum(graph.layers[i].parameter_bytes for i in cut - at) / inner
                for replicas in range(1, left + 1):
                    cost = stage_s(best(at, cut, level - 1), parameters, replicas, own.bandwidth, objective)
                    sent = 0.0 if at == start else 2 * crossing(at) / (own.bandwidth * replicas)
                    found = min(found, max(cost, sent, go_on(cut, left - replicas)))
            return found

        return go_on(start, own.count)

    return best(frozenset(), frozenset(names), len(levels) - 1)


def layers_of(stages: Sequence[Stage]) -> list[int]:
    return [layer for stage in stages for layer in stage.layers]


@settings(max_examples=120)
@given(
    graphs(),
    st.lists(st.builds(Level, st.integers(1, 4), st.sampled_from([0.5, 2.0, 50.0])), min_size=1, max_size=2),
    st.sampled_from(["slowest-stage", "pipedream-paper"]),
)
def test_the_partition_is_the_best_of_all(graph: LayerGraph, levels: list[Level], objective: str) -> None:
    found = partition(graph, levels, objective=objective)
    assert found.objective_s == pytest.approx(enumerated(graph, tuple(levels), objective))
    assert found.gap == 0.0
    assert sorted(layers_of(found.stages)) == list(range(len(graph.layers)))
    assert sum(stage.replicas for stage in found.stages) <= levels[-1].count
    assert max(stage.time_s for stage in found.stages) <= found.objective_s * (1 + 1e-9)
    for stage in found.stages:
        assert len(levels) == 1 or sorted(layers_of(stage.inside)) == sorted(stage.layers)


@settings(max_examples=60)
@given(graphs(), st.integers(1, 4))
def test_too_many_cuts_give_a_true_bound(graph: LayerGraph, workers: int) -> None:
    levels = [Level(workers, 2.0)]
    exact, rough = partition(graph, levels), partition(graph, levels, most_cuts=1)
    assert rough.bound_s <= exact.objective_s * (1 + 1e-9)
    assert exact.objective_s <= rough.objective_s * (1 + 1e-9)


@settings(max_examples=60)
@given(graphs(), st.integers(1, 3))
def test_more_workers_never_make_it_slower(graph: LayerGraph, workers: int) -> None:
    fewer, more = (partition(graph, [Level(count, 2.0)]).objective_s for count in (workers, workers + 1))
    assert more <= fewer * (1 + 1e-12)
