"""Longest paths through a workflow's graph: completion times of operators whose inputs take time to arrive.

All functions take operators in topological order. An upstream name that belongs to no operator is a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from jellybean_solver.model.workflow import Edge, GraphNode

P = TypeVar("P", bound=str)
TransferTime = Callable[[Edge], float]  # seconds that an edge's data takes


def at_once(edge: Edge) -> float:
    """A transfer that takes no time."""
    return 0.0


def arrival_time(
    inputs: Iterable[Edge], completed: Mapping[str, float], transfer: TransferTime = at_once, ready: float = 0.0
) -> float:
    """Time in seconds at which the last of an operator's inputs arrives; sources have their data at time `ready`."""
    return max((completed.get(edge.upstream, ready) + transfer(edge) for edge in inputs), default=ready)


def completion_times(
    operators: Iterable[GraphNode],
    duration: Callable[[str], float],
    transfer: TransferTime = at_once,
    ready: float = 0.0,
) -> dict[str, float]:
    """Completion time of each operator: arrival of its last input plus its duration (longest path to it).

    In seconds, or in any unit that adds up along a path.
    """
    completed: dict[str, float] = {}
    for operator in operators:
        completed[operator.name] = arrival_time(operator.inputs, completed, transfer, ready) + duration(operator.name)
    return completed


def critical_input(operator: GraphNode, completed: Mapping[str, float], transfer: TransferTime) -> Edge | None:
    """The input edge that arrives last (in a tie the last in order); None for an operator without inputs."""
    inputs = reversed(operator.inputs)
    return max(inputs, key=lambda edge: completed.get(edge.upstream, 0.0) + transfer(edge), default=None)


def earliest_completion_times(
    operators: Iterable[GraphNode],
    durations: Mapping[str, Mapping[P, float]],
    transfer: Callable[[Edge, P, P], float],
    sources: Mapping[str, P],
) -> dict[str, dict[P, float]]:
    """Lower bound on each operator's completion time, as operator -> place -> seconds.

    The place of each input is chosen independently. `durations`: operator -> place -> seconds. `transfer`: seconds of
    an edge's data between two places, inf if there is no path. `sources`: the place of each source; data is there at 0.
    """
    completed: dict[str, dict[P, float]] = {name: {place: 0.0} for name, place in sources.items()}
    for operator in operators:
        completed[operator.name] = {
            place: seconds
            + max(
                min(
                    (at_s + transfer(edge, origin, place) for origin, at_s in completed[edge.upstream].items()),
                    default=math.inf,
                )
                for edge in operator.inputs
            )
            for place, seconds in durations[operator.name].items()
        }
    return completed
