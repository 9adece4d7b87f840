"""Placements of branches against enumeration, with a simulator of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver.pipeline import Layer, LayerGraph, TopologyLevel, partition
from jellybean_solver.pipeline.partitioning.placement import place
from tests.property.pipeline.test_partition import graphs
from tests.support.examples import examples


def longest_ways(graph: LayerGraph) -> list[float]:
    """Of every forward, then every backward: seconds to the end, nothing being sent."""
    size = len(graph.layers)
    back = [0.0] * size
    for layer in range(size):
        back[layer] = graph.layers[layer].backward_s + max((back[u] for u, d in graph.edges if d == layer), default=0.0)
    forth = [0.0] * size
    for layer in reversed(range(size)):
        after = [forth[d] for u, d in graph.edges if u == layer]
        forth[layer] = graph.layers[layer].forward_s + max([back[layer], *after])
    return forth + back


def slow_makespan(graph: LayerGraph, devices: Sequence[int], bandwidth: float) -> float:
    """List scheduling, one start at a time: the earliest that any device can make, of those the longest way first."""
    size, ways = len(graph.layers), longest_ways(graph)
    sent = [layer.activation_bytes / bandwidth for layer in graph.layers]
    ends: dict[int, float] = {}
    free = dict.fromkeys(devices, 0.0)

    def there(task: int) -> float | None:
        layer, own = task % size, devices[task % size]
        needs = [(u, sent[u]) for u, d in graph.edges if d == layer]
        if task >= size:
            needs = [(size + d, sent[layer]) for u, d in graph.edges if u == layer] + [(layer, 0.0)]
        if any(need not in ends for need, _ in needs):
            return None
        return max((ends[need] + (cost if devices[need % size] != own else 0.0) for need, cost in needs), default=0.0)

    while len(ends) < 2 * size:
        able = []
        for task in range(2 * size):
            if task not in ends and (come := there(task)) is not None:
                able.append((max(come, free[devices[task % size]]), -ways[task], task))
        start, _, task = min(able)
        seconds = graph.layers[task % size].forward_s if task < size else graph.layers[task % size].backward_s
        ends[task] = free[devices[task % size]] = start + seconds
    return max(ends.values())


@settings(max_examples=examples(60), deadline=None)
@given(graphs(most=5), st.integers(1, 3), st.sampled_from([0.5, 4.0, 50.0]))
def test_the_placement_is_the_best_of_all(graph: LayerGraph, workers: int, bandwidth: float) -> None:
    found = place(graph, workers, bandwidth)
    every = itertools.product(range(workers), repeat=len(graph.layers))
    assert found.seconds == pytest.approx(min(slow_makespan(graph, one, bandwidth) for one in every))
    assert found.seconds == pytest.approx(slow_makespan(graph, found.devices, bandwidth))
    assert found.bound_s == pytest.approx(found.seconds)
    event("several" if len(set(found.devices)) > 1 else "one")


@settings(max_examples=examples(30), deadline=None)
@given(graphs(most=6), st.integers(1, 3))
def test_a_search_that_is_cut_off_tells_a_true_bound(graph: LayerGraph, workers: int) -> None:
    exact, short = place(graph, workers, 4.0), place(graph, workers, 4.0, max_steps=1)
    assert short.bound_s <= exact.seconds * (1 + 1e-9)
    assert exact.seconds <= short.seconds * (1 + 1e-9)


def towers(count: int, length: int, sent: float) -> LayerGraph:
    """As many encoders side by side, whose outputs one layer compares: a contrastive model."""
    layers = [Layer(f"{tower}.{depth}", 1, 2, sent, 1) for tower in range(count) for depth in range(length)]
    edges = [(i, i + 1) for i in range(len(layers)) if i % length != length - 1]
    edges += [(tower * length + length - 1, len(layers)) for tower in range(count)]
    return LayerGraph((*layers, Layer("compare", 0.5, 0.5, 0)), tuple(edges))


def test_the_towers_of_a_contrastive_model_run_at_once() -> None:
    found = partition(towers(2, 4, 1.0), [TopologyLevel(2, 10.0)], objective="branches")
    assert found.gap == 0
    assert found.objective_s == pytest.approx(4 * 3 + 1 + 2 * 0.1)
    assert sorted(len(stage.layers) for stage in found.stages) == [4, 5]
    alone = partition(towers(2, 4, 1e3), [TopologyLevel(2, 10.0)], objective="branches")
    assert alone.objective_s == 2 * 4 * 3 + 1
    assert [stage.device for stage in alone.stages] == [0]


def test_a_large_model_has_a_gap() -> None:
    found = place(towers(3, 8, 1.0), 2, 10.0, max_steps=20_000)
    assert 0.65 * found.seconds < found.bound_s < found.seconds <= 2 * 8 * 3 + 2
