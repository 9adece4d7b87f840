"""Rates of one selection, for the oracles: shares no code with the solver.

Every fan-out pushes the rate of its children on the stack of rates that stand open; a gather pops it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jellybean_solver import Edge, Problem


def rates(problem: Problem, selection: Mapping[str, str], names: Collection[str] | None = None) -> dict[str, float]:
    """Requests per second of every source and operator, all sites together. `names`: operators; those of a workflow."""
    own = problem.operator_by_name if names is None else sorted(names, key=problem.position.__getitem__)
    read = {edge.upstream for name in own for edge in problem.operator_by_name[name].inputs}
    sources = problem.source_by_name if names is None else read & problem.source_by_name.keys()
    open_: dict[str, tuple[float, ...]] = {}
    for source in (problem.source_by_name[name] for name in sources):
        open_[source.name] = (source.rate_per_s * problem.sites.get(source.tier, 1),)
    for operator in (problem.operator_by_name[name] for name in own):
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
    operator = problem.operator_by_name.get(edge.upstream)
    if operator is None:
        return edge.ratio
    variant = next(v for v in operator.variants if v.name == selection[operator.name])
    return variant.ratios.get(edge.downstream, edge.ratio)
