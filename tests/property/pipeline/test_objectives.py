"""Alpa, DAPPLE and device-line partitions against enumeration from the definitions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    LayerGraph,
    MemoryLimit,
    Partition,
    PartitionSettings,
    ScheduleCosts,
    TopologyLevel,
    make_schedule,
    partition,
    partition_line,
    simulate,
)
from jellybean_solver.pipeline.partitioning.sharded_stages import operators_of
from jellybean_solver.pipeline.sharding.costs import strategy_costs
from jellybean_solver.pipeline.sharding.mesh import MeshAxis
from jellybean_solver.pipeline.sharding.plan import plan_operators
from jellybean_solver.pipeline.sharding.strategies import MemoryRule
from tests.property.pipeline.test_partition import graphs
from tests.support.examples import examples

Layers = tuple[int, ...]
Levels = Sequence[TopologyLevel]
BANDWIDTHS = st.sampled_from([0.5, 2.0, 50.0])


def chains(graph: LayerGraph, stages: int) -> Iterator[tuple[Layers, ...]]:
    """Every way to cut the graph into so many stages, each of which needs none behind it."""
    for places in itertools.product(range(stages), repeat=len(graph.layers)):
        if set(places) == set(range(stages)) and all(places[up] <= places[down] for up, down in graph.edges):
            yield tuple(tuple(i for i, place in enumerate(places) if place == stage) for stage in range(stages))


def crossing(graph: LayerGraph, before: Sequence[Layers]) -> float:
    done = {layer for stage in before for layer in stage}
    senders = {up for up, down in graph.edges if up in done and down not in done}
    return sum(graph.layers[i].activation_bytes for i in senders)


def forward(graph: LayerGraph, layers: Layers) -> float:
    return sum(graph.layers[i].forward_s for i in layers)


def backward(graph: LayerGraph, layers: Layers) -> float:
    return sum(graph.layers[i].backward_s for i in layers)


def parameters(graph: LayerGraph, layers: Layers) -> float:
    return sum(graph.layers[i].parameter_bytes for i in layers)


StageSeconds = Callable[[Layers, tuple[int, int], int], float]  # layers, (hosts, devices of each), stages behind


def by_alpa(graph: LayerGraph, levels: Levels, microbatches: int, seconds: StageSeconds) -> float:
    """The least sum of stages plus (B - 1) times the slowest, over all stages and submeshes."""
    devices, hosts = levels[0].count, levels[1].count if len(levels) > 1 else 1
    shapes = [(1, 1 << power) for power in range(devices.bit_length())]
    shapes += [(count, devices) for count in range(2, hosts + 1)]
    best, kept = math.inf, functools.cache(seconds)
    for count in range(1, len(graph.layers) + 1):
        for meshes in itertools.product(shapes, repeat=count):
            if sum(math.prod(shape) for shape in meshes) != devices * hosts:
                continue
            for cut in chains(graph, count):
                times = [kept(cut[i], meshes[i], count - i - 1) for i in range(count)]
                best = min(best, sum(times) + (microbatches - 1) * max(times))
    return best


def replicated(graph: LayerGraph, levels: Levels, limit: MemoryLimit | None) -> StageSeconds:
    def seconds(layers: Layers, shape: tuple[int, int], behind: int) -> float:
        m, bandwidth = math.prod(shape), levels[-1 if shape[0] > 1 else 0].bandwidth
        work, weights = forward(graph, layers) + backward(graph, layers), parameters(graph, layers)
        if limit is not None:
            kept = min(behind + 1, limit.microbatches or 99)
            held = sum(graph.layers[i].activation_bytes for i in layers) / m
            if 2 * weights + kept * held > limit.limit_bytes * (1 + 1e-12):
                return math.inf
        return (work + 4 * (m - 1) * weights / (bandwidth * m)) / m

    return seconds


def sharded(graph: LayerGraph, levels: Levels, microbatches: int, limit: MemoryLimit | None) -> StageSeconds:
    def seconds(layers: Layers, shape: tuple[int, int], behind: int) -> float:
        mesh = tuple(MeshAxis(count, level.bandwidth) for count, level in zip(shape, levels[::-1], strict=False))
        if len(levels) == 1:
            mesh = (MeshAxis(shape[1], levels[0].bandwidth),)
        rule = None
        if limit is not None:
            rule = MemoryRule(limit.limit_bytes, 2.0, min(behind + 1, limit.microbatches or 99))
        plan = plan_operators(strategy_costs(operators_of(graph), mesh, microbatches), sorted(layers), rule)
        return math.inf if plan is None else plan.seconds

    return seconds


@settings(max_examples=examples(60))
@given(
    graphs(most=5),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), BANDWIDTHS), min_size=1, max_size=1),
    st.one_of(st.none(), st.tuples(st.integers(1, 2), BANDWIDTHS)),
    st.integers(1, 9),
    st.one_of(st.none(), st.builds(MemoryLimit, st.sampled_from([20.0, 60.0]), st.just("1f1b"), st.integers(1, 9))),
    st.sampled_from([99, 2]),
)
def test_alpa_is_the_least_of_all(
    graph: LayerGraph,
    inner: list[tuple[int, float]],
    outer: tuple[int, float] | None,
    microbatches: int,
    limit: MemoryLimit | None,
    few: int,
) -> None:
    levels = [TopologyLevel(*inner[0])] + ([TopologyLevel(*outer)] if outer else [])
    expected = by_alpa(graph, levels, microbatches, replicated(graph, levels, limit))
    event("none" if math.isinf(expected) else "some")
    if math.isinf(expected):
        with pytest.raises(SolverError):
            partition(graph, levels, objective="alpa-inter", microbatches=microbatches, limit=limit)
        return
    settings = PartitionSettings(coarse_cuts=(few,))
    found = partition(graph, levels, objective="alpa-inter", microbatches=microbatches, limit=limit, settings=settings)
    assert found.objective_s == pytest.approx(expected)
    assert sum(stage.replicas for stage in found.stages) == math.prod(level.count for level in levels)
    times = [stage.time_s for stage in found.stages]
    assert found.objective_s == pytest.approx(sum(times) + (microbatches - 1) * max(times))


@settings(max_examples=examples(25))
@given(
    graphs(most=4),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), BANDWIDTHS), min_size=1, max_size=1),
    st.one_of(st.none(), st.tuples(st.just(2), BANDWIDTHS)),
    st.integers(1, 9),
    st.one_of(st.none(), st.builds(MemoryLimit, st.sampled_from([20.0, 60.0]), st.just("1f1b"), st.integers(1, 9))),
)
def test_alpas_passes_are_planned_together(
    graph: LayerGraph,
    inner: list[tuple[int, float]],
    outer: tuple[int, float] | None,
    microbatches: int,
    limit: MemoryLimit | None,
) -> None:
    levels = [TopologyLevel(*inner[0])] + ([TopologyLevel(*outer)] if outer else [])
    expected = by_alpa(graph, levels, microbatches, sharded(graph, levels, microbatches, limit))
    event("none" if math.isinf(expected) else "some")
    if math.isinf(expected):
        with pytest.raises(SolverError):
            partition(graph, levels, objective="alpa", microbatches=microbatches, limit=limit)
        return
    found = partition(graph, levels, objective="alpa", microbatches=microbatches, limit=limit)
    assert found.objective_s == pytest.approx(expected, rel=1e-6)
    for stage in found.stages:
        assert stage.sharding is not None
        assert stage.time_s == stage.sharding.seconds
        assert len(stage.sharding.strategies) == len(stage.layers)


@dataclass(frozen=True)
class Placed:
    """Times of a stage, or of the transfer over a cut."""

    forward_s: float
    backward_s: float
    sum_s: float


def iteration_s(stages: Sequence[Placed], microbatches: int) -> float:
    """Warm-up, steady phase and end of every pivot."""
    longest = 0.0
    for pivot, own in enumerate(stages):
        steady = sum(stage.forward_s for stage in stages[: pivot + 1])
        steady += (microbatches - 1) * (own.forward_s + own.backward_s)
        for last, stage in enumerate(stages):
            if last <= pivot:
                end = sum(one.backward_s for one in stages[last : pivot + 1])
            else:
                end = -sum(one.backward_s for one in stages[pivot + 1 : last])
            longest = max(longest, steady + stage.sum_s + end)
    return longest


def placements(free: tuple[int, ...], whole: int, replicas: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Each stage's devices by machine, the last stage placed first, by any of the three policies."""
    if not replicas:
        yield []
        return
    *before, m = replicas
    fresh, used = ([i for i, f in enumerate(free) if f and (f == whole) is new] for new in (True, False))
    ways = [in_order(free, fresh + used, m), in_order(free, used + fresh, m)]
    ways.append(evenly(free, [used, fresh] if used else [fresh], m))
    for counts in ways:
        if sum(counts) == m:
            rest = tuple(f - c for f, c in zip(free, counts, strict=True))
            for others in placements(rest, whole, before):
                yield [*others, counts]


def in_order(free: Sequence[int], machines: Sequence[int], wanted: int) -> tuple[int, ...]:
    taken = dict.fromkeys(machines, 0)
    for machine in machines:
        taken[machine] = min(free[machine], wanted - sum(taken.values()))
    return tuple(taken.get(machine, 0) for machine in range(len(free)))


def evenly(free: Sequence[int], groups: Sequence[Sequence[int]], wanted: int) -> tuple[int, ...]:
    """One device of each machine in turn; the later groups when the first are full."""
    order = [(i, turn, machine) for i, group in enumerate(groups) for machine in group for turn in range(free[machine])]
    taken = [machine for *_, machine in sorted(order)[:wanted]]
    return tuple(taken.count(machine) for machine in range(len(free)))


def by_dapple(
    graph: LayerGraph, levels: Sequence[TopologyLevel], microbatches: int, limit: MemoryLimit | None
) -> float:
    devices, machines = levels[0].count, levels[1].count if len(levels) > 1 else 1
    best = math.inf
    for count in range(1, min(len(graph.layers), devices * machines) + 1):
        for replicas in itertools.product(range(1, devices * machines + 1), repeat=count):
            if sum(replicas) > devices * machines:
                continue
            for where in placements((devices,) * machines, devices, replicas):
                for cut in chains(graph, count):
                    if limit is None or all_fit(graph, cut, replicas, limit):
                        best = min(best, iteration_s(placed(graph, levels, cut, replicas, where), microbatches))
    return best


def all_fit(graph: LayerGraph, cut: Sequence[Layers], replicas: Sequence[int], limit: MemoryLimit) -> bool:
    """Weights, gradients and the shares of as many micro-batches as there are stages from a stage on."""
    for position, (layers, m) in enumerate(zip(cut, replicas, strict=True)):
        kept = min(len(cut) - position, limit.microbatches or 99)
        held = sum(graph.layers[i].activation_bytes for i in layers) / m
        if 2 * parameters(graph, layers) + kept * held > limit.limit_bytes * (1 + 1e-12):
            return False
    return True


def placed(
    graph: LayerGraph,
    levels: Sequence[TopologyLevel],
    cut: Sequence[Layers],
    replicas: Sequence[int],
    where: Sequence[tuple[int, ...]],
) -> list[Placed]:
    def bandwidth(*stages: int) -> float:
        touched = {i for stage in stages for i, n in enumerate(where[stage]) if n}
        return levels[0].bandwidth if len(touched) == 1 else levels[-1].bandwidth

    found = []
    for stage, (layers, m) in enumerate(zip(cut, replicas, strict=True)):
        if stage:
            sent_s = crossing(graph, cut[:stage]) / (bandwidth(stage - 1, stage) * m)
            found.append(Placed(sent_s, sent_s, -math.inf))
        sum_s = 2 * (m - 1) * parameters(graph, layers) / (m * bandwidth(stage))
        found.append(Placed(forward(graph, layers) / m, backward(graph, layers) / m, sum_s))
    return found


@settings(max_examples=examples(60), deadline=None)
@given(
    graphs(most=4),
    st.sampled_from([[3], [2, 2], [1, 3], [3, 1]]),
    st.lists(BANDWIDTHS, min_size=2, max_size=2),
    st.integers(1, 9),
    st.sampled_from([(99,), (2, 3)]),
    st.one_of(st.none(), st.builds(MemoryLimit, st.sampled_from([20.0, 60.0]), st.just("1f1b"), st.integers(1, 9))),
)
def test_dapple_is_the_least_of_all(
    graph: LayerGraph,
    counts: list[int],
    bandwidths: list[float],
    microbatches: int,
    few: tuple[int, ...],
    limit: MemoryLimit | None,
) -> None:
    levels = [TopologyLevel(count, bandwidth) for count, bandwidth in zip(counts, bandwidths, strict=False)]
    expected = by_dapple(graph, levels, microbatches, limit)
    event("none" if math.isinf(expected) else "some")

    def solve() -> Partition:
        coarse = PartitionSettings(dapple_coarse_cuts=few)
        return partition(graph, levels, objective="dapple", microbatches=microbatches, limit=limit, settings=coarse)

    if math.isinf(expected):
        with pytest.raises(SolverError, match="no partition fits"):
            solve()
        return
    found = solve()
    assert found.objective_s == pytest.approx(expected)
    devices = [stage.devices for stage in found.stages]
    taken = [device for own in devices for device in own]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(range(math.prod(counts)))
    where = [tuple(sum(device // counts[0] == m for device in own) for m in range(counts[-1])) for own in devices]
    stages = placed(graph, levels, [stage.layers for stage in found.stages], list(map(len, devices)), where)
    assert iteration_s(stages, microbatches) == pytest.approx(expected)  # on the devices that the plan names
    assert sum(stage.replicas for stage in found.stages) <= math.prod(counts)


@settings(max_examples=examples(150))
@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.5]), min_size=1, max_size=4), st.integers(1, 12), st.data())
def test_dapples_latency_is_a_bound_and_often_the_makespan(
    times: list[float], microbatches: int, data: st.DataObject
) -> None:
    """The simulator never beats it. The two agree for stages alike, and where the last stage is the pivot."""
    backward = [data.draw(st.sampled_from([1.0, 2.0, 3.0])) * time for time in times]
    schedule = make_schedule("1f1b", len(times), microbatches)
    makespan_s = simulate(schedule, ScheduleCosts(tuple(times), tuple(backward))).makespan_s
    stages = [Placed(f, b, 0.0) for f, b in zip(times, backward, strict=True)]
    predicted_s = iteration_s(stages, microbatches)
    assert predicted_s <= makespan_s * (1 + 1e-9)
    both = [f + b for f, b in zip(times, backward, strict=True)]
    alike = len(set(times)) == len(set(backward)) == 1
    event("alike" if alike else "pivot last" if both[-1] == max(both) else "other")
    event("equal" if math.isclose(predicted_s, makespan_s) else "longer")
    if alike or both[-1] == max(both):
        assert makespan_s == pytest.approx(predicted_s)


@settings(max_examples=examples(80))
@given(
    graphs(),
    st.lists(st.sampled_from([0.1, 0.5, 1.0, 4.0]), min_size=1, max_size=3),
    st.lists(BANDWIDTHS, min_size=2, max_size=2),
    st.booleans(),
)
def test_a_line_of_unlike_devices(
    graph: LayerGraph, speeds: list[float], bandwidths: list[float], latency: bool
) -> None:
    links = bandwidths[: len(speeds) - 1]
    joined = sum if latency else max
    best = math.inf
    for places in itertools.product(range(len(speeds)), repeat=len(graph.layers)):
        if any(places[up] > places[down] for up, down in graph.edges):
            continue
        parts = [tuple(i for i, place in enumerate(places) if place == device) for device in range(len(speeds))]
        steps = [
            (forward(graph, part) + (0.0 if latency else backward(graph, part))) / speed
            for part, speed in zip(parts, speeds, strict=True)
        ]
        steps += [
            (1 if latency else 2) * crossing(graph, parts[: device + 1]) / link for device, link in enumerate(links)
        ]
        best = min(best, joined(steps))
    found = partition_line(graph, speeds, links, objective="latency" if latency else "slowest-stage")
    assert found.objective_s == pytest.approx(best)
    devices = [stage.device for stage in found.stages]
    assert devices == sorted(set(devices), key=lambda device: device or 0)
