"""The selections that the requests of a plan get, and what each of them means for rates.

A plan that mixes variants routes some requests over workers with one variant and others over workers with another. All
requests of a route get one selection, the variants of its workers, so the plan's figures are sums over its selections.
A plan that does not mix has one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.problem import EdgeKind


@dataclass(frozen=True, slots=True)
class SelectionShare:
    """The requests of a plan that get one selection. `routes`: theirs; their weights sum to the share.

    `rates_per_s`: operator -> its requests per second in all sites if all requests got this selection.
    """

    selection: Mapping[str, str]
    routes: tuple[Route, ...]
    rates_per_s: Mapping[str, float]

    @property
    def share(self) -> float:
        """Fraction of all requests."""
        return sum(route.weight for route in self.routes)


def selection_on(plan: Plan, route: Route) -> Mapping[str, str]:
    """Operator -> the variant that requests of a route get."""
    return {name: plan.operator_at(name, route.workers[name]).variant for name in plan.operator_by_name}


def routes_by_selection(plan: Plan) -> Mapping[tuple[str, ...], tuple[Route, ...]]:
    """Variants in the operators' order -> the routes whose requests get them, in the order of their first route."""
    if not plan.mixes:
        return {tuple(plan.selection.values()): plan.routes}
    found: dict[tuple[str, ...], list[Route]] = {}
    for route in plan.routes:
        found.setdefault(tuple(selection_on(plan, route).values()), []).append(route)
    return {variants: tuple(routes) for variants, routes in found.items()}


def selection_shares(plan: Plan) -> tuple[SelectionShare, ...]:
    """The plan's requests by the selection that they get."""
    names = tuple(plan.operator_by_name)
    if not plan.mixes:
        rates = {operator.name: operator.rate_per_s for operator in plan.operators}
        return (SelectionShare(plan.selection, plan.routes, rates),)
    return tuple(
        SelectionShare(selection, routes, _rates_per_s(plan, selection))
        for variants, routes in routes_by_selection(plan).items()
        for selection in [dict(zip(names, variants, strict=True))]
    )


def _rates_per_s(plan: Plan, selection: Mapping[str, str]) -> Mapping[str, float]:
    """Requests per second of every operator in all sites if all requests got a selection."""
    rates = {source.name: source.rate_per_s * plan.sites.get(source.tier, 1) for source in plan.sources}
    opened: dict[str, tuple[float, ...]] = {}  # node -> ratios of its open fan-outs
    for operator in plan.operators:
        edge = operator.inputs[0]
        levels = opened.get(edge.upstream, ())
        ratio = edge.ratio
        if edge.kind is EdgeKind.FAN_OUT:
            if edge.upstream in selection:
                own = plan.operator_by_name[edge.upstream].with_variant(selection[edge.upstream]).ratios
                ratio = own.get(operator.name, ratio)
            levels = (*levels, ratio)
        elif edge.kind is EdgeKind.GATHER:
            ratio, levels = 1.0 / levels[-1], levels[:-1]
        opened[operator.name] = levels
        rates[operator.name] = rates[edge.upstream] * ratio
    return {operator.name: rates[operator.name] for operator in plan.operators}
