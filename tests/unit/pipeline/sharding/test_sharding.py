"""Intra-operator plans: Alpa's published optima, brute force, layouts, and mistakes."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from jellybean_solver import SolverError
from jellybean_solver.pipeline import Layer, layer_graph
from jellybean_solver.pipeline.partitioning.sharded_stages import operators_of
from jellybean_solver.pipeline.sharding.costs import edge_s, strategy_costs
from jellybean_solver.pipeline.sharding.mesh import Mesh, MeshAxis
from jellybean_solver.pipeline.sharding.operators import (
    DimensionedTensor,
    Operator,
    OperatorGraph,
    TensorEdge,
    matrix_product,
)
from jellybean_solver.pipeline.sharding.plan import ShardingPlan, _Choice, plan_operators, plan_sharding, score
from jellybean_solver.pipeline.sharding.strategies import MemoryRule, resharding_s, strategies

ALPA_LATENCY_S = 1.01  # of an all-reduce in Alpa's test; here the 2 (n - 1) rounds of a ring share it
LINE = (MeshAxis(4, 1.0, ALPA_LATENCY_S / 6),)
DEAR_S = 1e9  # of an operator on one device, so that none is repeated, which Alpa's own program does not offer


def _mlp(layers: int, rows: int, width: int) -> OperatorGraph:
    products = [matrix_product(f"layer{i}", rows, width, width, DEAR_S, first=i == 0) for i in range(layers)]
    return OperatorGraph(tuple(products), tuple(TensorEdge(i, i + 1, 0) for i in range(layers - 1)))


@pytest.mark.parametrize(
    ("layers", "rows", "width", "expected_s"),
    [
        (2, 128, 1024, 786_433.01),  # one all-reduce of activations
        (2, 1024, 128, 196_610.02),  # two of weights
        (12, 128, 1024, 8_650_763.11),
        (12, 1024, 128, 1_179_660.12),
    ],
)
@pytest.mark.parametrize("mesh", [LINE, (*LINE, MeshAxis(1, 1.0)), (MeshAxis(1, 1.0), *LINE)])
def test_optima_of_alpas_solver(layers: int, rows: int, width: int, expected_s: float, mesh: Mesh) -> None:
    """alpa-projects/alpa, playground/auto_sharding_solver/test_solver_mlp.py."""
    plan = _planned(_mlp(layers, rows, width), mesh)
    assert plan.communication_s == pytest.approx(expected_s, abs=0.005)
    assert plan.compute_s == pytest.approx(layers * DEAR_S / 4)


@pytest.mark.parametrize(("layers", "expected_s"), [(2, 26_872.79), (4, 56_040.35)])
def test_both_axes_of_a_mesh_are_used(layers: int, expected_s: float) -> None:
    """The same test: data parallelism along one axis, model parallelism along the one that is 100 times faster."""
    plan = _planned(_mlp(layers, 1024, 128), (*LINE, MeshAxis(8, 100.0, ALPA_LATENCY_S / 14)))
    assert plan.communication_s == pytest.approx(expected_s, abs=0.005)
    assert [own.split for own in plan.strategies[:2]] == [("sample", "out"), ("sample", "in")]


@pytest.mark.parametrize("seed", range(200))
def test_equals_brute_force(seed: int) -> None:
    chance = random.Random(seed)
    graph, mesh, memory = _random_case(chance)
    microbatches = chance.choice([1, 4])
    expected_s = _brute_force(graph, mesh, microbatches, memory)
    plan = plan_sharding(graph, mesh, microbatches=microbatches, memory=memory)
    if plan is None:
        assert expected_s == math.inf
        return
    assert plan.seconds == pytest.approx(expected_s, rel=1e-6)
    program = _Choice(strategy_costs(graph, mesh, microbatches), range(len(graph.operators)), memory).solve()
    assert program is not None  # also where the elimination's plan fits
    assert score(strategy_costs(graph, mesh, microbatches), program).seconds == pytest.approx(expected_s, rel=1e-6)
    assert memory is None or plan.memory_bytes <= memory.limit_bytes * (1 + 1e-6)


@pytest.mark.slow
def test_random_cases_are_of_every_kind() -> None:
    """Some are bound by memory, some have no plan, and their optima split every kind of dimension."""
    kinds: set[object] = set()
    for seed in range(200):
        chance = random.Random(seed)
        graph, mesh, memory = _random_case(chance)
        plan = plan_sharding(graph, mesh, memory=memory)
        free = plan_sharding(graph, mesh)
        assert free is not None
        if plan is None:
            kinds.add("nothing fits")
            continue
        kinds |= {name for own in plan.strategies for name in own.split} | {len(mesh)}
        kinds |= {"memory binds"} if plan.seconds > free.seconds * (1 + 1e-6) else set()
        kinds |= {"resharded"} if plan.resharding_s > 0 else set()
    assert kinds == {"nothing fits", "memory binds", "resharded", "sample", "in", "out", None, 1, 2}


@pytest.mark.parametrize(
    ("source", "target", "expected_s"),
    [
        ((0, None), (0, None), 0.0),
        ((None, None), (0, 1), 0.0),  # each takes its part
        ((0, None), (None, None), 3 / 4 * 800 / 10),  # all-gather over four devices
        ((0, None), (1, None), 3 / 4 * 200 / 10),  # all-to-all of each device's quarter
        ((0, 1), (None, None), 3 / 4 * 400 / 10 + 1 / 2 * 800 / 1),
        ((0, None), (None, 1), 3 / 4 * 400 / 10),  # the other axis takes its part first
    ],
)
def test_seconds_to_change_a_layout(source, target, expected_s: float) -> None:
    mesh = (MeshAxis(4, 10.0), MeshAxis(2, 1.0))
    assert resharding_s(800.0, source, target, mesh) == pytest.approx(expected_s)


def test_lengths_that_do_not_divide_are_not_split() -> None:
    product = matrix_product("layer", 6, 8, 8, 1.0)
    assert {own.split for own in strategies(product, LINE)} == {(None,), ("in",), ("out",)}


def test_layers_of_a_profile() -> None:
    """A layer without parameters keeps its features whole; the input of the first trained layer takes no gradient."""
    layers = [
        ("input", Layer("input", 0.0, 0.0, 80.0)),
        ("linear", Layer("linear", 1.0, 2.0, 40.0, 400.0)),
        ("softmax", Layer("softmax", 0.5, 0.5, 40.0)),
    ]
    graph = operators_of(layer_graph(layers, [("input", "linear"), ("linear", "softmax")]))
    _, linear, softmax = graph.operators
    assert (linear.compute_s, linear.inputs[0].gradient, linear.weights[0].size_bytes) == (3.0, False, 400.0)
    assert softmax.inputs[0].gradient
    assert {own.split for own in strategies(softmax, LINE)} == {(None,), ("sample",)}


def test_what_some_operators_read_from_others_comes_in_any_layout() -> None:
    graph = _mlp(3, 128, 1024)
    alone = OperatorGraph(graph.operators[1:], (TensorEdge(0, 1, 0),))
    assert plan_operators(strategy_costs(graph, LINE), [1, 2]) == _planned(alone, LINE)


def test_mistakes_are_named() -> None:
    product = matrix_product("layer", 8, 8, 8, 1.0)
    with pytest.raises(SolverError, match="not between operators in order"):
        OperatorGraph((product, product), (TensorEdge(1, 0, 0),))
    with pytest.raises(SolverError, match="1 inputs, none of index 1"):
        OperatorGraph((product, product), (TensorEdge(0, 1, 1),))
    with pytest.raises(SolverError, match="bandwidth above 0"):
        MeshAxis(4, 0.0)
    with pytest.raises(SolverError, match="needs operators"):
        plan_sharding(OperatorGraph((), ()), LINE)


def _planned(graph: OperatorGraph, mesh: Mesh) -> ShardingPlan:
    plan = plan_sharding(graph, mesh)
    assert plan is not None
    return plan


def _random_case(chance: random.Random) -> tuple[OperatorGraph, Mesh, MemoryRule | None]:
    """Up to six operators on one axis, up to three on two, with joins and forks, sometimes bound by memory."""
    axes = chance.choice([1, 1, 2])
    mesh = tuple(
        MeshAxis(chance.choice([2, 4]), 10 ** chance.uniform(1, 4), chance.choice([0, 0.1])) for _ in range(axes)
    )
    count = chance.randint(1, 6 if axes == 1 else 3)
    operators, edges = [], []
    for index in range(count):
        ups = chance.sample(range(index), min(index, chance.choice([1, 1, 2])))
        edges += [TensorEdge(up, index, place) for place, up in enumerate(ups)]
        inputs = [DimensionedTensor(("sample", "in"), operators[up].output.size_bytes) for up in ups] or [
            DimensionedTensor(("sample", "in"), chance.uniform(1, 100), gradient=False)
        ]
        weights = [DimensionedTensor(("in", "out"), chance.uniform(1, 300))] if chance.random() < 0.8 else []
        operators.append(
            Operator(
                f"operator{index}",
                10 ** chance.uniform(-2, 1),
                tuple(inputs),
                DimensionedTensor(("sample", "out"), chance.uniform(1, 100)),
                tuple(weights),
                whole=frozenset() if weights else frozenset({"in", "out"}),
            )
        )
    graph = OperatorGraph(tuple(operators), tuple(edges))
    needed = sum(own.output.size_bytes + sum(4 * weight.size_bytes for weight in own.weights) for own in operators)
    memory = MemoryRule(needed * chance.uniform(0.1, 0.9)) if chance.random() < 0.5 else None
    return graph, mesh, memory


def _brute_force(graph: OperatorGraph, mesh: Mesh, microbatches: int, memory: MemoryRule | None) -> float:
    choices = [strategies(operator, mesh) for operator in graph.operators]
    cost = [[own.seconds(microbatches) for own in each] for each in choices]
    size = [[own.memory_bytes(memory or MemoryRule(math.inf)) for own in each] for each in choices]
    moved = {
        edge: [
            [edge_s(graph, edge, one.output, two.inputs[edge.input_index], mesh) for two in choices[edge.consumer]]
            for one in choices[edge.producer]
        ]
        for edge in graph.edges
    }
    best, chosen = math.inf, None
    for picks in itertools.product(*(range(len(each)) for each in choices)):
        seconds = sum(cost[i][pick] for i, pick in enumerate(picks))
        if memory is not None and sum(size[i][pick] for i, pick in enumerate(picks)) > memory.limit_bytes:
            continue
        seconds += sum(table[picks[edge.producer]][picks[edge.consumer]] for edge, table in moved.items())
        if seconds < best:
            best, chosen = seconds, picks
    if chosen is not None:
        costs = strategy_costs(graph, mesh, microbatches)
        assert score(costs, dict(enumerate(chosen)), memory).seconds == pytest.approx(best)
    return best
