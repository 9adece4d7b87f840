"""Lower bounds by dynamic programming over the tree of bags.

Lagrangian relaxation of the rows that tie operators to counted workers leaves a problem without capacities, whose
optimum puts each operator into one tier: a minimum over the tree of bags. Any multipliers give a valid lower bound
(weak duality). The duals of the linear relaxation of a selection (without those of links) give nearly the value of that
relaxation for the selection itself, and good bounds for similar complete or partial selections. So each solved
relaxation improves the bounds of all open selections.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean_solver.demand.demand import Demand, Network
from jellybean_solver.model.problem import Sharing

OperatorPool = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Lagrange multipliers of the relaxed rows in USD per hour, all at least 0.

    `load`: per worker kept busy; `presence`: per fraction of requests in a pool (row: a pool without workers serves
    nothing); `scarcity`: pool -> per worker used (row: at most the pool's count).
    """

    load: Mapping[OperatorPool, float]
    presence: Mapping[OperatorPool, float] = field(default_factory=dict)
    scarcity: Mapping[str, float] = field(default_factory=dict)


def prices(network: Network) -> Multipliers:
    """Multipliers equal to the prices of workers, which ignore capacity: for the bound before any LP was solved."""
    return Multipliers({(name, pool): price for name in network.names for pool, price in network.usd_per_h.items()})


def lagrangian(network: Network, demand: Demand, multipliers: Multipliers) -> float:
    """Lower bound in USD per hour on assignments of `demand`, by weak duality; inf if no assignment to tiers exists."""
    constant = 0.0
    for pool in network.pools:
        scarcity = multipliers.scarcity.get(pool.name, 0.0)
        constant -= pool.count * scarcity
        # The workers of a shared pool are counted together, with one load row, so that its multipliers are equal.
        groups = [network.names] if pool.sharing is Sharing.SHARED else [(name,) for name in network.names]
        for group in groups:
            load = max((multipliers.load.get((name, pool.name), 0.0) for name in group), default=0.0)
            presence = sum(multipliers.presence.get((name, pool.name), 0.0) for name in group)
            constant += pool.count * min(0.0, network.usd_per_h[pool.name] + scarcity - load - presence)
    place = {
        name: {
            pool: workers * multipliers.load.get((name, pool), 0.0) + multipliers.presence.get((name, pool), 0.0)
            for pool, workers in demand.workers[name].items()
        }
        for name in network.names
    }
    return constant + least_cost(network, demand, place)


def can_flow(network: Network, demand: Demand) -> bool:
    """True if data can flow under some assignment of operators to tiers; capacity and cost are ignored."""
    nothing = {name: dict.fromkeys(workers, 0.0) for name, workers in demand.workers.items()}
    return not math.isinf(least_cost(network, demand, nothing))


def least_cost(network: Network, demand: Demand, place: Mapping[str, Mapping[str, float]]) -> float:
    """Minimum of place[operator][pool] plus traffic, with each operator in one tier; inf if no assignment exists."""
    per_tier = {name: _per_tier(network, demand, name, place[name]) for name in network.names}
    messages: dict[int, list[tuple[tuple[str, ...], dict[tuple[str, ...], float]]]] = {}
    total = 0.0
    for index in range(len(network.bags) - 1, -1, -1):  # children before parents
        bag, (home, edges) = network.bags[index], network.homes[index]
        least: dict[tuple[str, ...], float] = {}
        for tiers in itertools.product(*(per_tier[name] for name in bag.operators)):
            at = dict(zip(bag.operators, tiers, strict=True))
            cost = sum(per_tier[name][at[name]] for name in home)
            for key in edges:
                cost += demand.traffic[key].get((at[key[0]], at[key[1]]), math.inf)
            for names, message in messages.get(index, ()):
                cost += message.get(tuple(at[name] for name in names), math.inf)
            shared = tuple(at[name] for name in bag.separator)
            least[shared] = min(cost, least.get(shared, math.inf))
        if bag.parent is None:
            total += least.get((), math.inf)
        else:
            messages.setdefault(bag.parent, []).append((bag.separator, least))
    return total


def _per_tier(network: Network, demand: Demand, name: str, place: Mapping[str, float]) -> dict[str, float]:
    best: dict[str, float] = {}
    for pool, cost in place.items():
        tier = network.tier_of[pool]
        if tier in demand.entry[name]:
            best[tier] = min(cost + demand.entry[name][tier], best.get(tier, math.inf))
    return best
