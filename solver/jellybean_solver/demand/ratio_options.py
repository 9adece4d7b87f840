"""Combinations of upstream variants, distinguished by their fan-out ratios, that determine an operator's rates."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from jellybean_solver.demand.demand import Network
from jellybean_solver.model.problem import Problem

RatioOption = Mapping[str, str]  # upstream operator -> one variant, which stands for all that have its ratios


def ratio_representatives(problem: Problem, variants: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Operator -> one of its `variants` for each distinct set of fan-out ratios.

    Only operators with ratios that depend on the variant are keys.
    """
    found: dict[str, list[str]] = {}
    for name in problem.varying:
        first: dict[tuple[tuple[str, float], ...], str] = {}
        for variant in variants[name]:
            first.setdefault(ratios_key(problem, name, variant), variant)
        found[name] = list(first.values())
    return found


def ratios_key(problem: Problem, name: str, variant: str) -> tuple[tuple[str, float], ...]:
    """A variant's fan-out ratios as sorted (downstream operator, ratio) pairs."""
    return tuple(sorted(problem.operator_by_name[name].variant(variant).ratios.items()))


def ratio_options(
    network: Network, representatives: Mapping[str, Sequence[str]]
) -> Mapping[str, tuple[RatioOption, ...]]:
    """Operator -> all combinations of upstream ratios that its rates depend on.

    An operator whose rates depend on no ratio has a single empty combination.
    """
    options: dict[str, list[list[tuple[str, str]]]] = {name: [] for name in network.names}
    for upstream, variants in representatives.items():
        problems = [network.settled({upstream: variant}).problem for variant in variants]
        for name in network.names:
            if name != upstream and len({_rates(problem, name) for problem in problems}) > 1:
                options[name].append([(upstream, variant) for variant in variants])
    return {name: tuple(dict(option) for option in itertools.product(*own)) for name, own in options.items()}


def _rates(problem: Problem, name: str) -> tuple[str, ...]:
    """Rates of an operator and of its output edges, as rounded text: equal rates may differ in their last digits."""
    edges = (problem.edge_rate_per_s(edge) for edge in problem.edges if edge.upstream == name)
    return tuple(f"{rate:.9g}" for rate in (problem.rate_per_s[name], *edges))
