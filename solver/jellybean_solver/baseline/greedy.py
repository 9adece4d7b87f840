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
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Demand, Network, Tiers
from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.model.problem import Pool, Problem, Sharing
from jellybean_solver.model.workflow import Operator
from jellybean_solver.outcome import ACCURACY_SLACK, Clock, Selection
from jellybean_solver.small.assignment import Assignment, Group

MET = 1e-9  # relative tolerance on a worker's capacity


@dataclass(frozen=True, slots=True)
class GreedySettings:
    """Effort of the rule: larger values find cheaper plans but take longer.

    `within_links`: no link carries more than its bandwidth, which the rule of the paper does not look at.
    """

    kept: int = 16  # beam width: partial assignments kept after each operator
    selections: int = 256  # largest number of selections tried: those with the cheapest variants
    within_links: bool = False


@dataclass(frozen=True, slots=True)
class _Partial:
    """Operators placed so far. `cost` in USD per hour: whole workers and traffic."""

    cost: float
    tiers: Mapping[str, Mapping[str, float]]  # operator -> tier -> fraction of its requests
    taken: Mapping[tuple[str, str], int]  # (operator, pool) -> workers
    shares: Mapping[tuple[str, str], float]  # (operator, pool) -> fraction of the operator's requests
    sent: Mapping[Tiers, float]  # bytes per second over each link with a bandwidth


def greedy(
    problem: Problem, clock: Clock, settings: GreedySettings = GreedySettings()
) -> tuple[Network, Selection, Assignment] | str:
    """The cheapest greedy assignment over selections that reach the accuracy; if there is none, the reason.

    Returned with the network, in which every pool is exclusive (one operator per worker), and the selection. At the
    end of the `clock` the best so far is returned; OutOfTimeError if there is none.
    """
    pools = tuple(replace(pool, sharing=Sharing.EXCLUSIVE) for pool in problem.pools)
    network = Network(replace(problem, pools=pools))
    best: tuple[_Partial, Selection] | None = None
    unplaced = dict[str, None]()
    for _, selection in cheapest_selections(network, problem.accuracy_target, settings.selections, clock):
        try:
            found = _place(network, network.demand(selection), settings, clock)
        except OutOfTimeError:
            if best is None:
                raise
            break
        if isinstance(found, str):
            unplaced[found] = None
        elif best is None or found.cost < best[0].cost:
            best = found, selection
    if best is None:
        return _obstacle(unplaced)
    return network, best[1], _assignment(network, best[0])


def _obstacle(unplaced: Collection[str]) -> str:
    """Why the rule found nothing. `unplaced`: for each selection tried, the operator that it could not place."""
    if not unplaced:
        return "no selection of variants reaches the accuracy target"
    least = "no free workers, one operator each, sustain the rate of"
    return f"{least} {' or '.join(unplaced)} in a tier that its inputs reach, after the operators before it were placed"


def price_per_request(network: Network, operator: Operator, variant: str) -> tuple[float, float]:
    """Sort key of variants: least price (USD per hour) x busy seconds per request on any pool, then least seconds."""
    chosen = operator.variant(variant)
    usable: list[Pool] = [pool for pool in network.pools if 1 in chosen.service.get(pool.name, ())]
    loads = [network.request_s(operator.name, chosen, pool.name) for pool in usable]
    return min(p.price_usd_per_h * load for p, load in zip(usable, loads, strict=True)), min(loads)


def cheapest_selections(
    network: Network, target: float | None, most: int, clock: Clock
) -> list[tuple[float, dict[str, str]]]:
    """At most `most` selections that reach an accuracy target: those with the cheapest variants, and their prices.

    The price is that of the work in USD per hour. OutOfTimeError at the end of the clock.
    """
    problem = network.problem
    grown: list[tuple[float, dict[str, str]]] = [(0.0, {})]
    for operator in reversed(problem.operators):
        if clock.left() == 0.0:
            raise OutOfTimeError("time ended before the greedy rule had chosen the variants")
        rate = problem.rate_per_s[operator.name]
        price = {v: rate * price_per_request(network, operator, v)[0] for v in network.runnable[operator.name]}
        children = [(cost + price[v], {**chosen, operator.name: v}) for cost, chosen in grown for v in price]
        within = [child for child in children if target is None or _reaches(problem, child[1], target)]
        grown = heapq.nsmallest(most, within, key=lambda child: child[0])
    return grown


def _reaches(problem: Problem, partial: Selection, target: float) -> bool:
    complete = len(partial) == len(problem.operators)
    accuracy = problem.accuracy.value(partial) if complete else problem.accuracy.upper_bound(partial)
    return accuracy is not None and accuracy >= target - ACCURACY_SLACK


def _place(network: Network, demand: Demand, settings: GreedySettings, clock: Clock) -> _Partial | str:
    """The cheapest assignment; if there is none, the first operator that no partial assignment can place.

    OutOfTimeError at the end of the clock.
    """
    beam = [_Partial(0.0, {}, {}, {}, {})]
    for operator in network.problem.operators:
        if clock.left() == 0.0:
            raise OutOfTimeError("time ended before the greedy rule had placed all operators")
        grown = [child for partial in beam for child in _children(network, demand, partial, operator.name)]
        if settings.within_links:
            grown = [one for one in grown if all(sent <= network.bandwidth[link] for link, sent in one.sent.items())]
        beam = heapq.nsmallest(settings.kept, grown, key=lambda partial: partial.cost)
        if not beam:
            return operator.name
    return beam[0]


def _children(network: Network, demand: Demand, partial: _Partial, name: str) -> Iterator[_Partial]:
    """Extensions of `partial` by the operator, one for each number of open tiers whose workers sustain its rate."""
    tiers = _reachable(network, demand, partial, name)
    used: Counter[str] = Counter()
    for (_, pool), count in partial.taken.items():
        used[pool] += count
    for number, last in enumerate(tiers, 1):
        free = [
            (pool, pool.count - used[pool.name])
            for pool in network.pools
            if pool.tier in tiers[:number] and pool.name in demand.workers[name]
        ]
        found = _workers(free, demand.workers[name], network.usd_per_h)
        if found is None or (number > 1 and all(network.tier_of[pool] != last for pool in found)):
            continue
        taken = {(name, pool): count for pool, (count, _) in found.items()}
        shares = {(name, pool): share for pool, (_, share) in found.items()}
        within: defaultdict[str, float] = defaultdict(float)
        for pool, (_, share) in found.items():
            within[network.tier_of[pool]] += share
        price = sum(network.usd_per_h[pool] * count for pool, (count, _) in found.items())
        cost = partial.cost + price + _traffic(demand, partial, name, within)
        sent = _sent(network, demand, partial, name, within)
        tiers_of = {**partial.tiers, name: within}
        yield _Partial(cost, tiers_of, {**partial.taken, **taken}, {**partial.shares, **shares}, sent)


def _reachable(network: Network, demand: Demand, partial: _Partial, name: str) -> list[str]:
    """Tiers to which all inputs of the operator can be sent from the tiers of their producers, lowest first."""
    inputs = [(key, up) for key in network.inner if key[1] == name for up in partial.tiers[key[0]]]
    return [
        tier
        for tier in network.problem.tiers
        if tier in demand.entry[name] and all((up, tier) in demand.traffic[key] for key, up in inputs)
    ]


def _traffic(demand: Demand, partial: _Partial, name: str, within: Mapping[str, float]) -> float:
    """USD per hour for the traffic of the operator's inputs. `within`: tier -> fraction of its requests there."""
    total = sum(demand.entry[name][tier] * share for tier, share in within.items())
    for key, prices in demand.traffic.items():
        if key[1] == name:
            ends = itertools.product(partial.tiers[key[0]].items(), within.items())
            total += sum(prices[up, down] * sent * got for (up, sent), (down, got) in ends)
    return total


def _sent(
    network: Network, demand: Demand, partial: _Partial, name: str, within: Mapping[str, float]
) -> dict[Tiers, float]:
    """Bytes per second over the links with a bandwidth, with the inputs of the operator; arguments as of `_traffic`."""
    sent = dict(partial.sent)
    for tier, share in within.items():
        for link, bytes_per_s in network.entry_bytes_per_s(name, tier).items():
            sent[link] = sent.get(link, 0.0) + share * bytes_per_s
    for key, bytes_per_s in demand.sent.items():
        if key[1] == name:
            for (up, of), (down, got) in itertools.product(partial.tiers[key[0]].items(), within.items()):
                sent[up, down] = sent.get((up, down), 0.0) + of * got * bytes_per_s
    return {link: bytes_per_s for link, bytes_per_s in sent.items() if link in network.bandwidth}


def _workers(
    free: Sequence[tuple[Pool, int]], busy: Mapping[str, float], usd_per_h: Mapping[str, float]
) -> dict[str, tuple[int, float]] | None:
    """Pool -> (workers taken, fraction of requests they serve); None if the `free` workers cannot sustain the rate.

    `free`: pools with their number of free workers. `busy`: pool -> workers that all requests would keep busy.
    """
    left = {pool.name: count for pool, count in free if count > 0}
    taken: dict[str, tuple[int, float]] = {}
    by_throughput = sorted(left, key=lambda name: usd_per_h[name] * busy[name])  # used up one after the other
    fastest = list(itertools.accumulate((busy[name] for name in reversed(by_throughput)), min, initial=math.inf))[::-1]
    rest = 1.0
    for chosen, (least, least_after) in zip(by_throughput, itertools.pairwise(fastest), strict=True):
        while left[chosen]:
            if rest * least <= 1.0 + MET:
                return _finished(taken, rest, left, busy, usd_per_h)
            wanted = math.ceil((rest - (1.0 + MET) / least) * busy[chosen])  # until the fastest one left can finish
            count = min(left[chosen], max(1, wanted))
            before, share = taken.get(chosen, (0, 0.0))
            taken[chosen] = before + count, share + count / busy[chosen]
            left[chosen] -= count
            rest -= count / busy[chosen]
        if rest * least_after <= 1.0 + MET:
            return _finished(taken, rest, left, busy, usd_per_h)
    return None


def _finished(
    taken: Mapping[str, tuple[int, float]],
    rest: float,
    left: Mapping[str, int],
    busy: Mapping[str, float],
    usd_per_h: Mapping[str, float],
) -> dict[str, tuple[int, float]]:
    """`taken` with the cheapest of the workers `left` that sustain the remaining fraction `rest` alone."""
    last = min((name for name in left if left[name] and rest * busy[name] <= 1.0 + MET), key=usd_per_h.__getitem__)
    count, share = taken.get(last, (0, 0.0))
    return {**taken, last: (count + 1, share + rest)}


def _assignment(network: Network, partial: _Partial) -> Assignment:
    """The result in the form of the exact assignment, so that route decomposition and scorer are shared."""
    bags = []
    for bag in network.bags:
        domains = [partial.tiers[name].items() for name in bag.operators]
        parts = [tuple(zip(*ends, strict=True)) for ends in itertools.product(*domains)]
        bags.append({tiers: math.prod(shares) for tiers, shares in parts})
    groups = (Group(pool, {name: partial.shares[name, pool]}, count) for (name, pool), count in partial.taken.items())
    return Assignment(partial.cost, -math.inf, tuple(bags), tuple(groups))
