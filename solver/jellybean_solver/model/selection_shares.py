"""The selections that the requests of a plan get, and what each of them means for rates.

A plan that mixes variants routes some requests over workers with one variant and others over workers with another. All
requests of a route get one selection, the variants of its workers, so the plan's figures are sums over its selections.
A plan that does not mix has one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.workflow import along_graph, with_ratios


@dataclass(frozen=True, slots=True)
class SelectionShare:
    """The requests of a plan that get one selection. `routes`: theirs; their weights sum to the share.

    `rates_per_s`: operator -> its requests per second in all sites if all requests got this selection. Where a plan of
    several workflows mixes variants, the requests are of one `workflow`, and so are the operators; else it is empty.
    """

    selection: Mapping[str, str]
    routes: tuple[Route, ...]
    rates_per_s: Mapping[str, float]
    workflow: str = ""

    @property
    def share(self) -> float:
        """Fraction of all requests, or of those of the workflow."""
        return sum(route.weight for route in self.routes)


def selection_on(plan: Plan, route: Route) -> Mapping[str, str]:
    """Operator -> the variant that requests of a route get, for the operators on it."""
    on_it = (name for name in plan.operator_by_name if name in route.workers)
    return {name: plan.operator_at(name, route.workers[name]).variant for name in on_it}


def routes_by_selection(plan: Plan) -> Sequence[tuple[Mapping[str, str], tuple[Route, ...]]]:
    """The selections of requests, each with its routes, in the order of their first route.

    Where a plan of several workflows mixes variants, each selection is of one workflow: every route is of one then.
    """
    if not plan.mixes:
        return [(plan.selection, plan.routes)]
    found: dict[tuple[tuple[str, str], ...], list[Route]] = {}
    for route in plan.routes:
        found.setdefault(tuple(selection_on(plan, route).items()), []).append(route)
    return [(dict(selection), tuple(routes)) for selection, routes in found.items()]


def shares_of_selections(plan: Plan) -> Sequence[tuple[Mapping[str, str], float]]:
    """The selections of requests, each with the fraction of the requests, or of those of its workflow, that get it."""
    return [(selection, sum(route.weight for route in routes)) for selection, routes in routes_by_selection(plan)]


def selection_shares(plan: Plan) -> tuple[SelectionShare, ...]:
    """The plan's requests by the selection that they get."""
    if not plan.mixes:
        rates = {operator.name: operator.rate_per_s for operator in plan.operators}
        return (SelectionShare(plan.selection, plan.routes, rates),)
    return tuple(
        SelectionShare(selection, routes, _rates_per_s(plan, selection), plan.workflow_of(next(iter(selection))))
        for selection, routes in routes_by_selection(plan)
    )


def _rates_per_s(plan: Plan, selection: Mapping[str, str]) -> Mapping[str, float]:
    """Requests per second of a selection's operators in all sites if all requests got it."""
    chosen = [plan.operator_by_name[name].with_variant(variant) for name, variant in selection.items()]
    operators = with_ratios([replace(one, others=()) for one in chosen], min)
    rates = along_graph(operators, {one.name: plan.rate_in_all_sites(one) for one in plan.sources})
    return {name: rates[name] for name in selection}
