"""Which variants' fan-out ratios an operator's rates depend on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from jellybean_solver.demand.demand import Network
from jellybean_solver.model.problem import Problem

RatioOption = Mapping[str, str]  # upstream operator -> a variant that has the assumed ratios


def ratio_representatives(problem: Problem, variants: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Operator with ratios that depend on its variant -> one of its `variants` for each of the ratios."""
    found: dict[str, list[str]] = {}
    for name in problem.varying:
        first: dict[tuple[tuple[str, float], ...], str] = {}
        for variant in variants[name]:
            first.setdefault(ratios_key(problem, name, variant), variant)
        found[name] = list(first.values())
    return found


def ratios_key(problem: Problem, name: str, variant: str) -> tuple[tuple[str, float], ...]:
    """Equal for variants of equal ratios."""
    return tuple(sorted(problem.operator_by_name[name].variant(variant).ratios.items()))


def ratio_options(
    network: Network, representatives: Mapping[str, Sequence[str]]
) -> Mapping[str, tuple[RatioOption, ...]]:
    """Operator -> all combinations of upstream ratios that its rates depend on; a single empty one if on none."""
    options: dict[str, list[list[tuple[str, str]]]] = {name: [] for name in network.names}
    for upstream, variants in representatives.items():
        problems = [network.settled({upstream: variant}).problem for variant in variants]
        for name in network.names:
            if name != upstream and len({_rates(problem, name) for problem in problems}) > 1:
                options[name].append([(upstream, variant) for variant in variants])
    return {name: tuple(dict(option) for option in itertools.product(*own)) for name, own in options.items()}


def _rates(problem: Problem, name: str) -> tuple[str, ...]:
    """Rates of an operator and of its edges, rounded: a gather restores its rate up to rounding."""
    edges = (problem.edge_rate_per_s(edge) for edge in problem.edges if edge.upstream == name)
    return tuple(f"{rate:.9g}" for rate in (problem.rate_per_s[name], *edges))
