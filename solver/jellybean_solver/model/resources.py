"""Resources beside money: energy and carbon. Plans use them as they cost money: by whole workers, and by traffic.

A resource has the unit of its use per hour: W for energy, of which a worker uses its power and a GiB its Wh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from jellybean_solver.figures import number_text
from jellybean_solver.model.flows import traffic_usd_per_h
from jellybean_solver.model.plan import PlannedWorker
from jellybean_solver.model.problem import Link, Objective, Pool, Problem

Priced = TypeVar("Priced", Pool, Link)

UNITS: Mapping[str, str] = {Objective.COST: "USD/h", Objective.ENERGY: "W", Objective.CARBON: "g/h"}


def amount_text(resource: str, amount: float) -> str:
    """The use of a resource with its unit."""
    return f"{number_text(amount)} {UNITS[resource]}"


def used(
    problem: Problem, workers: Iterable[PlannedWorker], bytes_per_s: Mapping[tuple[str, str], float]
) -> Mapping[str, float]:
    """Resource -> what is used of it by workers, in each site, and by traffic between tiers, of all sites together."""
    parts: list[tuple[Pool | Link | None, float]] = [
        *((problem.pool_by_name.get(one.pool), problem.sites_of(one.tier)) for one in workers),
        *((problem.link_by_tiers.get(tiers), traffic_usd_per_h(sent, 1.0)) for tiers, sent in bytes_per_s.items()),
    ]
    uses = [(one.uses, times) for one, times in parts if one is not None]
    names = dict.fromkeys(name for own, _ in uses for name in own)
    return {name: sum(times * own.get(name, 0.0) for own, times in uses) for name in names}


def without_price(pool: Pool) -> Pool:
    """The pool whose workers are paid for, and use nothing more."""
    return replace(pool, price_usd_per_h=0.0, uses={})


def counted(problem: Problem, usd: float) -> Problem:
    """The problem whose cheapest plan uses the least of the resource that is the objective; others stay as they are.

    `usd`: what a unit of its use counts, beside worths, penalties and migration.
    """
    resource = problem.objective
    if resource not in UNITS or resource is problem.counts:
        return problem
    return _priced(replace(problem, objective=Objective.COST), resource, usd)


def in_money(problem: Problem) -> Problem:
    """The problem with the prices that it had before `counted`."""
    return problem if problem.counts is Objective.COST else _priced(problem, Objective.COST, 1.0)


def _others(amounts: Mapping[str, float]) -> Mapping[str, float]:
    return {name: amount for name, amount in amounts.items() if name != Objective.COST}


def _priced(problem: Problem, resource: Objective, usd: float) -> Problem:
    """The problem with the use of a resource as its prices; prices and budget are then the use and limit of another."""
    money, budget = Objective.COST, problem.slo.budget_usd_per_h

    def priced(one: Priced, price: str) -> Priced:
        uses = _others(one.uses) if resource is money else {**one.uses, problem.counts: getattr(one, price)}
        changes: dict[str, Any] = {price: usd * one.uses.get(resource, 0.0), "uses": uses}
        return replace(one, **changes)

    return replace(
        problem,
        pools=tuple(priced(one, "price_usd_per_h") for one in problem.pools),
        links=tuple(priced(one, "price_usd_per_gib") for one in problem.links),
        slo=replace(problem.slo, budget_usd_per_h=problem.most.get(money)),
        most=_others(problem.most) if budget is None else {**problem.most, money: budget},
        counts=resource,
    )
