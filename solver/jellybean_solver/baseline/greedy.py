"""Baseline: the greedy rule of the JellyBean prototype (VLDB 2023), operator by operator and tier by tier.

Operators are placed in topological order; tiers are opened one by one from the highest tier of the inputs upward. Among
the free workers of open tiers, the cheapest one that sustains the whole rate alone is taken; if there is none, workers
are added by price per throughput until the rate is met, and the last is the cheapest one that completes it. Each worker
serves one operator at its full rate, the last one the remainder. A beam search keeps the cheapest partial assignments.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jellybean_solver.baseline.selections import cheapest_selections
from jellybean_solver.demand.demand import Demand, Network
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, Selection, Termination
from jellybean_solver.small.assignment import Assignment, Group
from jellybean_solver.small.routes import build_plan

MET = 1e-9  # relative tolerance on a worker's capacity
KEPT = 16  # beam width: partial assignments kept after each operator
SELECTIONS = 256  # most selections tried: those with the cheapest variants

Staff = Mapping[str, tuple[int, float]]  # pool -> workers of an operator, and the fraction of its requests they serve


@dataclass(frozen=True, slots=True)
class _Partial:
    """Operators placed so far. `cost` in USD per hour: whole workers and traffic."""

    cost: float
    staff: Mapping[str, Staff]
    tiers: Mapping[str, Mapping[str, float]]  # operator -> tier -> fraction of its requests


def greedy(problem: Problem, clock: Clock) -> Plan | str:
    """The cheapest greedy plan over selections that reach the accuracy; if there is none, the reason.

    Every pool of the problem is exclusive. At the end of the `clock` the best plan so far is returned; OutOfTimeError
    if there is none.
    """
    network = Network(problem)
    best: tuple[_Partial, Selection] | None = None
    unplaced = dict[str, None]()
    for _, selection in cheapest_selections(network, problem.accuracy_target, SELECTIONS, clock):
        try:
            found = _place(network, network.demand(selection), clock)
        except OutOfTimeError:
            if best is None:
                raise
            break
        if isinstance(found, str):
            unplaced[found] = None
        elif best is None or found.cost < best[0].cost:
            best = found, selection
    if best is not None:
        unproven = Certificate.of(best[0].cost, 0.0, Termination.GAP)
        return build_plan(network, best[1], _assignment(network, best[0]), unproven)
    if not unplaced:
        return "no selection of variants reaches the accuracy target"
    least = "no free workers, one operator each, sustain the rate of"
    return f"{least} {' or '.join(unplaced)} in a tier that its inputs reach, after the operators before it were placed"


def _place(network: Network, demand: Demand, clock: Clock) -> _Partial | str:
    """The cheapest assignment; if there is none, the first operator that no partial assignment can place.

    OutOfTimeError at the end of the clock.
    """
    beam = [_Partial(0.0, {}, {})]
    for name in network.names:
        if clock.left() == 0.0:
            raise OutOfTimeError("time ended before the greedy rule had placed all operators")
        grown = [child for partial in beam for child in _children(network, demand, partial, name)]
        beam = heapq.nsmallest(KEPT, grown, key=lambda partial: partial.cost)
        if not beam:
            return name
    return beam[0]


def _children(network: Network, demand: Demand, partial: _Partial, name: str) -> Iterator[_Partial]:
    """Extensions of `partial` by the operator, one for each number of open tiers whose workers sustain its rate."""
    used: Counter[str] = Counter()
    for own in partial.staff.values():
        used.update({pool: count for pool, (count, _) in own.items()})
    traffic = dict[str, float]()  # of the open tiers
    for tier in network.problem.tiers:
        usd_per_h = _traffic_usd_per_h(demand, partial, name, tier)
        if math.isinf(usd_per_h):
            continue
        traffic[tier] = usd_per_h
        able = [pool for pool in network.pools if pool.tier in traffic and pool.name in demand.workers[name]]
        free = {pool.name: pool.count - used[pool.name] for pool in able}
        staff = _staff(free, demand.workers[name], network.usd_per_h)
        within: dict[str, float] = {}
        for pool, (_, share) in staff.items():
            within[network.tier_of[pool]] = within.get(network.tier_of[pool], 0.0) + share
        if tier in within:
            cost = partial.cost + sum(network.usd_per_h[pool] * count for pool, (count, _) in staff.items())
            cost += sum(traffic[at] * share for at, share in within.items())
            yield _Partial(cost, {**partial.staff, name: staff}, {**partial.tiers, name: within})


def _traffic_usd_per_h(demand: Demand, partial: _Partial, name: str, tier: str) -> float:
    """USD per hour of the operator's inputs if it runs in a tier; inf if they cannot all be sent there."""
    total = demand.entry[name].get(tier, math.inf)
    for (up, down), prices in demand.traffic.items():
        if down == name:
            total += sum(share * prices.get((at, tier), math.inf) for at, share in partial.tiers[up].items())
    return total


def _staff(free: Mapping[str, int], busy: Mapping[str, float], usd_per_h: Mapping[str, float]) -> Staff:
    """The workers taken of the `free` ones; none if they cannot sustain the rate.

    `free`: pool -> its free workers. `busy`: pool -> workers that all requests would keep busy.
    """
    left, rest = dict(free), 1.0
    taken: dict[str, tuple[int, float]] = {}
    while pools := [pool for pool, count in left.items() if count > 0]:
        able = [pool for pool in pools if rest * busy[pool] <= 1.0 + MET]
        if able:
            last = min(able, key=usd_per_h.__getitem__)
            count, share = taken.get(last, (0, 0.0))
            return {**taken, last: (count + 1, share + rest)}
        best = min(pools, key=lambda pool: usd_per_h[pool] * busy[pool])  # used up before the next one
        wanted = math.ceil((rest - (1.0 + MET) / min(busy[pool] for pool in pools)) * busy[best])
        number = min(left[best], max(1, wanted))  # until the fastest worker left can serve the rest
        count, share = taken.get(best, (0, 0.0))
        taken[best] = count + number, share + number / busy[best]
        left[best] -= number
        rest -= number / busy[best]
    return {}


def _assignment(network: Network, partial: _Partial) -> Assignment:
    """The result in the form of the exact assignment, so that route decomposition and scorer are shared."""
    bags = []
    for bag in network.bags:
        domains = [partial.tiers[name].items() for name in bag.operators]
        parts = [tuple(zip(*ends, strict=True)) for ends in itertools.product(*domains)]
        bags.append({tiers: math.prod(shares) for tiers, shares in parts})
    groups = (
        Group(pool, {name: share}, count)
        for name, staff in partial.staff.items()
        for pool, (count, share) in staff.items()
    )
    return Assignment(partial.cost, tuple(bags), tuple(groups))
