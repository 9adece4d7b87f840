"""Costs of the strategies of all operators on one mesh, and of pairs of them along edges, for many plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.pipeline.sharding.mesh import Mesh
from jellybean_solver.pipeline.sharding.operators import OperatorGraph, TensorEdge
from jellybean_solver.pipeline.sharding.strategies import Layout, Strategy, resharding_s, strategies


@dataclass(frozen=True)
class StrategyCosts:
    """`choices[o]`: strategies of operator o; `seconds[o]`: theirs per micro-batch.

    `moved[edge]`: seconds per micro-batch to change the layout, by the producer's and the consumer's strategy.
    """

    graph: OperatorGraph
    microbatches: int
    choices: tuple[tuple[Strategy, ...], ...]
    seconds: tuple[Floats, ...]
    moved: Mapping[TensorEdge, Floats]


def strategy_costs(graph: OperatorGraph, mesh: Mesh, microbatches: int = 1) -> StrategyCosts:
    """The costs of a graph on a mesh. `microbatches`: per update."""
    choices = tuple(strategies(operator, mesh) for operator in graph.operators)
    seconds = tuple(np.array([one.seconds(microbatches) for one in each]) for each in choices)
    moved = {edge: _moved_s(graph, edge, mesh, choices) for edge in graph.edges}
    return StrategyCosts(graph, microbatches, choices, seconds, moved)


def edge_s(graph: OperatorGraph, edge: TensorEdge, given: Layout, wanted: Layout, mesh: Mesh) -> float:
    """Seconds to change a tensor's layout in the forward pass, and its gradient's in the backward pass."""
    size = graph.operators[edge.producer].output.size_bytes
    forward = resharding_s(size, given, wanted, mesh)
    if not graph.operators[edge.consumer].inputs[edge.input_index].gradient:
        return forward
    return forward + resharding_s(size, wanted, given, mesh)


def _moved_s(graph: OperatorGraph, edge: TensorEdge, mesh: Mesh, choices: tuple[tuple[Strategy, ...], ...]) -> Floats:
    given = [one.output for one in choices[edge.producer]]
    wanted = [one.inputs[edge.input_index] for one in choices[edge.consumer]]
    by_layouts = {
        (source, target): edge_s(graph, edge, source, target, mesh) for source in set(given) for target in set(wanted)
    }
    return np.array([[by_layouts[source, target] for target in wanted] for source in given])
