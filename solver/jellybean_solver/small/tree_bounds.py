"""Lower bounds by dynamic programming over the tree of bags.

Relaxing the rows that tie operators to counted workers leaves a problem without capacities, in which one assignment of
operators to tiers is best: its cost is a minimum over the tree. Any multipliers give a valid bound (weak duality);
the duals of a selection's linear relaxation, but for those of links, give nearly that relaxation's own value for it,
and good bounds for its neighbours, whole or partial. So each relaxation that is solved sharpens the bound of everything
still open.
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
    """Prices of the relaxed rows, USD per hour, none below 0.

    `load`: per worker kept busy; `presence`: per request fraction (a pool without workers serves nothing);
    `scarcity`: per worker of an exclusive pool that is handed to an operator.
    """

    load: Mapping[OperatorPool, float]
    presence: Mapping[OperatorPool, float] = field(default_factory=dict)
    scarcity: Mapping[str, float] = field(default_factory=dict)


def prices(network: Network) -> Multipliers:
    """Every worker at its price, no capacity: the bound before any relaxation was solved."""
    return Multipliers({(name, pool): price for name in network.names for pool, price in network.usd_per_h.items()})


def lagrangian(network: Network, demand: Demand, multipliers: Multipliers) -> float:
    """The bound that `multipliers` prove for `demand`; inf when no assignment to tiers exists."""
    constant = 0.0
    for pool in network.pools:
        load = [multipliers.load.get((name, pool.name), 0.0) for name in network.names]
        presence = [multipliers.presence.get((name, pool.name), 0.0) for name in network.names]
        if pool.sharing is Sharing.SHARED:
            # One count serves all operators, so their load multiplier is one and the same row's.
            constant += pool.count * min(0.0, network.usd_per_h[pool.name] - max(load, default=0.0) - sum(presence))
        else:
            scarcity = multipliers.scarcity.get(pool.name, 0.0)
            constant -= pool.count * scarcity
            for own, part in zip(load, presence, strict=True):
                constant += pool.count * min(0.0, network.usd_per_h[pool.name] + scarcity - own - part)
    place = {
        name: {
            pool: workers * multipliers.load.get((name, pool), 0.0) + multipliers.presence.get((name, pool), 0.0)
            for pool, workers in demand.workers[name].items()
        }
        for name in network.names
    }
    return constant + least_cost(network, demand, place)


def can_flow(network: Network, demand: Demand) -> bool:
    """Whether any assignment to tiers exists, whatever its load and cost."""
    nothing = {name: dict.fromkeys(workers, 0.0) for name, workers in demand.workers.items()}
    return not math.isinf(least_cost(network, demand, nothing))


def least_cost(network: Network, demand: Demand, place: Mapping[str, Mapping[str, float]]) -> float:
    """The least sum of place[operator][pool] and traffic over whole assignments to tiers; inf when there is none."""
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
