"""Partitioners at a time limit: the best partition so far, with a valid lower bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from jellybean_solver import OutOfTimeError, limited_work
from jellybean_solver.pipeline import (
    Layer,
    LayerGraph,
    MemoryLimit,
    Partition,
    PartitionSettings,
    TopologyLevel,
    partition,
    partition_line,
)

LEVELS = [TopologyLevel(2, 1e9), TopologyLevel(2, 1e8)]
QUICK = PartitionSettings(first_cuts=(2, 4))


def steps(seconds: float = 1.0) -> Callable[[], float]:
    """A clock that is so much later each time it is read."""
    times = itertools.count()
    return lambda: seconds * next(times)


def chain(size: int) -> LayerGraph:
    """Layers of unlike times and sizes in a row."""
    layers = (Layer(f"l{i}", 1e-3 * (1 + i % 7), 2e-3, 1e5 * (1 + i % 5), 1e6 * (1 + i % 3)) for i in range(size))
    return LayerGraph(tuple(layers), tuple((i, i + 1) for i in range(size - 1)))


GRAPH = chain(24)
SEARCHES: dict[str, Callable[[], Partition]] = {
    "slowest-stage": lambda: partition(GRAPH, LEVELS, settings=QUICK),
    "pipedream-paper": lambda: partition(GRAPH, LEVELS, objective="pipedream-paper", settings=QUICK),
    "many workers": lambda: partition(GRAPH, [TopologyLevel(40, 1e9)], settings=QUICK),
    "within a memory": lambda: partition(GRAPH, LEVELS, limit=MemoryLimit(9e7), settings=QUICK),
    "dapple": lambda: partition(GRAPH, LEVELS, objective="dapple", microbatches=4, settings=QUICK),
    "alpa": lambda: partition(GRAPH, LEVELS, objective="alpa", microbatches=4, settings=QUICK),
    "alpa-inter": lambda: partition(GRAPH, LEVELS, objective="alpa-inter", microbatches=4, settings=QUICK),
    "balance": lambda: partition(GRAPH, LEVELS, objective="balance", settings=QUICK),
    "branches": lambda: partition(GRAPH, [TopologyLevel(3, 1e9)], objective="branches", settings=QUICK),
    "a line": lambda: partition_line(GRAPH, [1.0, 2.0, 4.0], [1e8, 1e9], settings=QUICK),
}


def layers_of(stages: Any) -> list[int]:
    return sorted(layer for stage in stages for layer in stage.layers)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("part", [0.0, 0.2, 0.9])
def test_the_best_so_far_at_any_time(name: str, part: float) -> None:
    readings = itertools.count()
    with limited_work(1e9, lambda: float(next(readings))):
        whole = SEARCHES[name]()
    with limited_work(max(1.0, part * next(readings)), steps()):
        try:
            best = SEARCHES[name]()
        except OutOfTimeError as error:
            assert name in ("within a memory", "alpa") and part < 0.9, error
            return
    assert layers_of(best.stages) == list(range(len(GRAPH.layers)))
    assert best.bound_s <= whole.objective_s * (1 + 1e-9)
    assert best.objective_s >= whole.bound_s * (1 - 1e-9)
    assert best.termination == "time_limit" if best.gap else "optimal"


@pytest.mark.parametrize("name", SEARCHES)
def test_a_limit_that_is_not_reached_changes_nothing(name: str) -> None:
    free = SEARCHES[name]()
    with limited_work(1e9, lambda: 0.0):
        limited = SEARCHES[name]()
    assert limited.objective_s == pytest.approx(free.objective_s)
    assert limited.bound_s == pytest.approx(free.bound_s)
    assert not limited.out_of_time


def test_without_time_all_layers_are_one_stage_on_all_workers() -> None:
    with limited_work(0.0, lambda: 0.0):
        plan = partition(GRAPH, LEVELS)
    assert [(stage.layers, stage.replicas) for stage in plan.stages] == [(tuple(range(24)), 2)]
    assert (plan.out_of_time, plan.stages[0].inside[0].replicas) == (True, 2)


FEW_AT_LAST = PartitionSettings(first_cuts=(12,), max_line_cuts=3)
FEWER_AT_LAST: dict[str, Callable[[], Partition]] = {
    "balance": lambda: partition(GRAPH, LEVELS, objective="balance", settings=FEW_AT_LAST),
    "a line": lambda: partition_line(
        GRAPH, [1.0, 2.0, 4.0], [1e8, 1e9], objective="slowest-stage", settings=FEW_AT_LAST
    ),
    "two equal devices": lambda: partition_line(
        GRAPH, [1.0, 1.0], [1e9], objective="slowest-stage", settings=FEW_AT_LAST
    ),
}


@pytest.mark.parametrize("name", FEWER_AT_LAST)
def test_a_partition_in_hand_stays_if_the_last_search_finds_a_worse_one(name: str) -> None:
    last = FEWER_AT_LAST[name]()
    with limited_work(1e9, lambda: 0.0):
        best = FEWER_AT_LAST[name]()
    assert best.objective_s < last.objective_s
    assert last.bound_s <= best.bound_s <= best.objective_s
