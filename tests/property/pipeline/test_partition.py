"""The partitioner against enumeration on random small chains and DAGs, flat and in a hierarchy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    Layer,
    LayerGraph,
    MemoryLimit,
    PartitionSettings,
    PartitionStage,
    TopologyLevel,
    partition,
)
from tests.support.examples import examples

TIMES = st.sampled_from([0.0, 1.0, 2.0, 3.5, 8.0])
BACKWARDS = st.sampled_from([0.0, 0.5, 1.5, 2.5, 4.0, 8.5])
BYTES = st.sampled_from([0.0, 1.0, 4.0, 30.0])


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> LayerGraph:
    size = draw(st.integers(1, most))
    layers = tuple(Layer(f"l{i}", draw(TIMES), draw(BACKWARDS), draw(BYTES), draw(BYTES)) for i in range(size))
    if draw(st.booleans()):
        return LayerGraph(layers, tuple((i, i + 1) for i in range(size - 1)))
    pairs = [(i, j) for j in range(size) for i in range(j)]
    return LayerGraph(layers, tuple(pair for pair in pairs if draw(st.integers(0, 2)) == 0))


def stage_s(seconds: float, parameters: float, replicas: int, bandwidth: float, objective: str) -> float:
    if objective == "pipedream-paper":
        return max(seconds, 2 * (replicas - 1) * parameters / bandwidth) / replicas
    return (seconds + 4 * (replicas - 1) * parameters / (bandwidth * replicas)) / replicas


def flying(limit: MemoryLimit, behind: Fraction, replicas: int) -> int:
    """Micro-batches kept: one for the replica, one for each worker behind, per replica; no more than there are."""
    share = math.inf if limit.microbatches is None else math.ceil(Fraction(limit.microbatches, replicas))
    if limit.schedule == "gpipe":
        return int(share)
    return int(min(share if limit.schedule == "1f1b" else math.inf, 1 + math.ceil(behind)))


def held(layers: Sequence[Layer], behind: Fraction, copies: int, limit: MemoryLimit) -> bool:
    """Whether a worker that stands so can hold the layers."""
    kept = flying(limit, behind, copies)
    weights = {"pipedream": kept, "pipedream-2bw": 2}.get(limit.schedule, 1) + 1 + limit.states
    taken = sum(weights * layer.parameter_bytes + kept * layer.activation_bytes for layer in layers)
    return taken <= limit.limit_bytes * (1 + 1e-12)


def enumerated(
    graph: LayerGraph, levels: Sequence[TopologyLevel], objective: str, limit: MemoryLimit | None = None
) -> float:
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
    def best(start: frozenset[int], end: frozenset[int], level: int, behind: Fraction, copies: int) -> float:
        """Of the layers between two cuts on one whole group of a level; -1 is a single worker.

        `behind`: workers behind the group, for each of its `copies`.
        """
        if level < 0:
            fit = limit is None or held([graph.layers[i] for i in end - start], behind, copies, limit)
            return sum(graph.layers[i].compute_s for i in end - start) if fit else math.inf
        own, inner = levels[level], math.prod(one.count for one in levels[:level])

        @cache
        def go_on(at: frozenset[int], left: int) -> float:
            """With exactly so many groups for what is left."""
            if at == end:
                return 0.0 if not left else math.inf
            found = math.inf
            for cut in downs:
                if not (at < cut <= end):
                    continue
                parameters = sum(graph.layers[i].parameter_bytes for i in cut - at) / inner
                for replicas in range(1, left + 1):
                    each = (inner * (left - replicas) + behind) / replicas
                    seconds = best(at, cut, level - 1, each, copies * replicas)
                    cost = stage_s(seconds, parameters, replicas, own.bandwidth, objective)
                    sent = 0.0 if at == start else 2 * crossing(at) / (own.bandwidth * replicas)
                    found = min(found, max(cost, sent, go_on(cut, left - replicas)))
            return found

        return min(go_on(start, left) for left in range(1, own.count + 1))

    return best(frozenset(), frozenset(names), len(levels) - 1, Fraction(0), 1)


def layers_of(stages: Sequence[PartitionStage]) -> list[int]:
    return [layer for stage in stages for layer in stage.layers]


# Small limits make small graphs take the paths of large ones: coarse cuts first, search over the bottleneck time.
LIMITS = st.builds(
    PartitionSettings,
    coarse_cuts=st.sampled_from([(99,), (2,), (1, 3)]),
    binary_search_workers=st.sampled_from([1, 99]),
)


@settings(max_examples=examples(120))
@given(
    graphs(),
    st.lists(st.builds(TopologyLevel, st.integers(1, 4), st.sampled_from([0.5, 2.0, 50.0])), min_size=1, max_size=2),
    st.sampled_from(["slowest-stage", "pipedream-paper"]),
    LIMITS,
)
def test_the_partition_is_the_best_of_all(
    graph: LayerGraph, levels: list[TopologyLevel], objective: str, limits: PartitionSettings
) -> None:
    found = partition(graph, levels, objective=objective, settings=limits)
    assert found.objective_s == pytest.approx(enumerated(graph, tuple(levels), objective))
    assert found.gap == 0.0
    assert sorted(layers_of(found.stages)) == list(range(len(graph.layers)))
    assert sum(stage.replicas for stage in found.stages) <= levels[-1].count
    assert max(stage.time_s for stage in found.stages) <= found.objective_s * (1 + 1e-9)
    for stage in found.stages:
        assert len(levels) == 1 or sorted(layers_of(stage.inside)) == sorted(stage.layers)


@settings(max_examples=examples(120))
@given(
    graphs(),
    st.lists(st.builds(TopologyLevel, st.integers(1, 3), st.sampled_from([2.0, 50.0])), min_size=1, max_size=2),
    st.builds(
        MemoryLimit,
        st.sampled_from([4.0, 10.0, 25.0, 60.0, 120.0]),
        st.sampled_from(["gpipe", "1f1b", "pipedream", "pipedream-2bw"]),
        st.integers(1, 8),
        st.sampled_from([0.0, 2.0]),
    ),
    LIMITS,
)
def test_the_partition_is_the_best_that_fits_into_memory(
    graph: LayerGraph, levels: list[TopologyLevel], limit: MemoryLimit, limits: PartitionSettings
) -> None:
    expected = enumerated(graph, tuple(levels), "slowest-stage", limit)
    event("fits" if math.isfinite(expected) else "does not fit")
    if math.isfinite(expected):
        assert partition(graph, levels, limit=limit, settings=limits).objective_s == pytest.approx(expected)
        return
    with pytest.raises(SolverError, match="no partition fits") as told:
        partition(graph, levels, limit=limit)
    enough = float(re.search(r"([\d,]+) would do", str(told.value))[1].replace(",", ""))  # type: ignore[index]
    assert math.isfinite(partition(graph, levels, limit=replace(limit, limit_bytes=enough + 0.5)).objective_s)
    with pytest.raises(SolverError):
        partition(graph, levels, limit=replace(limit, limit_bytes=max(0.1, enough - 1.0)))


@settings(max_examples=examples(60))
@given(graphs(), st.integers(1, 4))
def test_too_many_cuts_give_a_true_bound(graph: LayerGraph, workers: int) -> None:
    levels = [TopologyLevel(workers, 2.0)]
    exact, rough = partition(graph, levels), partition(graph, levels, settings=PartitionSettings(max_pruned_cuts=1))
    assert rough.bound_s <= exact.objective_s * (1 + 1e-9)
    assert exact.objective_s <= rough.objective_s * (1 + 1e-9)


@settings(max_examples=examples(60))
@given(graphs(), st.integers(1, 3))
def test_more_workers_never_make_it_slower(graph: LayerGraph, workers: int) -> None:
    fewer, more = (partition(graph, [TopologyLevel(count, 2.0)]).objective_s for count in (workers, workers + 1))
    assert more <= fewer * (1 + 1e-12)
