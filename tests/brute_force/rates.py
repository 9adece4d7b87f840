"""Rates of one selection, for the oracles: shares no code with the solver.

Every fan-out pushes the rate of its children on the stack of rates that stand open; a gather pops it.
"""

from __future__ import annotations

from collections.abc import Mapping

from jellybean_solver.model.problem import Edge, Problem


def rates(problem: Problem, selection: Mapping[str, str]) -> dict[str, float]:
    """Requests per second of every source and operator, all sites together."""
    open_: dict[str, tuple[float, ...]] = {
        source.name: (source.rate_per_s * problem.sites.get(source.tier, 1),) for source in problem.sources
    }
    for operator in problem.operators:
        edge = operator.inputs[0]
        above = open_[edge.upstream]
        kind = edge.kind.value
        if kind == "fan_out":
            above = (*above, above[-1] * rows(problem, edge, selection))
        open_[operator.name] = above[:-1] if kind == "gather" else above
    return {name: stack[-1] for name, stack in open_.items()}


def rows(problem: Problem, edge: Edge, selection: Mapping[str, str]) -> float:
    """Messages on an edge for one run of its upstream."""
    if edge.kind.value != "fan_out":
        return 1.0
    for operator in problem.operators:
        if operator.name == edge.upstream:
            variant = next(v for v in operator.variants if v.name == selection[operator.name])
            return variant.ratios.get(edge.downstream, edge.ratio)
    return edge.ratio
