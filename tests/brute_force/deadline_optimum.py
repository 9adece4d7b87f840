"""The cheapest plan that answers in time where nothing queues, by enumeration: shares no code with the solver.

At next to no load one worker does for each operator and nothing waits, so a plan is one worker for each operator, and a
request takes the longest way through the workflow. All choices of variants and workers are gone through.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from jellybean_solver import Edge, Pool, Problem, Variant
from tests.brute_force import optimum
from tests.brute_force import rates as reference_rates

GIB = 1024.0**3
Worker = tuple[Pool, int]
Places = Mapping[str, Worker]


@dataclass(frozen=True)
class Choice:
    """USD per hour, and a request's seconds, at the least and at the most; of several workflows in their deadlines.

    At the least children run in the fastest of the sizes of runs; at the most in the slowest, and operators of one pool
    are on one worker, where a request's runs wait for each other: no search for headroom parts them at no load.
    `fastest_s`, `slowest_s`: the same in seconds, by workflow; "" is a single one.
    """

    cost: float
    fast_s: float
    slow_s: float
    fastest_s: Mapping[str, float]
    slowest_s: Mapping[str, float]


def cheapest(problem: Problem, within_s: float, *, surely: bool) -> float | None:
    """USD per hour; None when no choice is in time (`surely`: at the most), accurate and inside the budget."""
    found = [choice.cost for choice in choices(problem) if (choice.slow_s if surely else choice.fast_s) <= within_s]
    budget = problem.slo.budget_usd_per_h
    return min((cost for cost in found if budget is None or cost <= budget * (1 + 1e-6)), default=None)


def choices(problem: Problem, selections: Iterable[Mapping[str, str]] | None = None) -> Iterator[Choice]:
    """All that are allowed, the budget aside. `selections`: those that are accurate enough, of several workflows."""
    for selection in _accurate(problem) if selections is None else selections:
        chosen = {o.name: next(v for v in o.variants if v.name == selection[o.name]) for o in problem.operators}
        for places in _places(problem, chosen):
            traffic = _traffic_usd_per_h(problem, chosen, places)
            if traffic is not None:
                workers = {
                    (pool.name, index): pool.price_usd_per_h * problem.sites.get(pool.tier, 1)
                    for pool, index in places.values()
                }
                packed = {name: (pool, 0) for name, (pool, _) in places.items()}
                fastest_s, slowest_s = _takes_s(problem, chosen, places, min), _takes_s(problem, chosen, packed, max)
                fast_s, slow_s = (
                    max(own_s / _deadline(problem, name) for name, own_s in takes_s.items())
                    for takes_s in (fastest_s, slowest_s)
                )
                yield Choice(traffic + sum(workers.values()), fast_s, slow_s, fastest_s, slowest_s)


def least_value(choices_: Iterable[Choice], penalty: Callable[[str, float], float], *, surely: bool) -> float:
    """The least cost with what the times of each workflow count; `surely`: at the most."""
    return min(
        choice.cost
        + sum(penalty(name, own_s) for name, own_s in (choice.slowest_s if surely else choice.fastest_s).items())
        for choice in choices_
    )


def _accurate(problem: Problem) -> Iterator[Mapping[str, str]]:
    target = problem.slo.accuracy
    for selection in optimum.selections(problem):
        accuracy = optimum.accuracy(problem, selection)
        if target is None or (accuracy is not None and accuracy >= target - 1e-9):
            yield selection


def _deadline(problem: Problem, workflow: str) -> float:
    """Seconds of a workflow; 1 where there is one only. Never, for one that is asked for nothing."""
    if not problem.workflows:
        return 1.0
    asked = next(w.slo.latency_p99_s for w in problem.workflows if w.name == workflow)
    return math.inf if asked is None else asked


def _places(problem: Problem, chosen: Mapping[str, Variant]) -> Iterator[Places]:
    """An operator to a worker each, within what workers can run and hold; workers of a pool are used in their order."""
    able: list[list[Worker]] = []
    for operator in problem.operators:
        pools = [pool for pool in problem.pools if 1 in chosen[operator.name].service.get(pool.name, {})]
        allowed = [pool for pool in pools if operator.tiers is None or pool.tier in operator.tiers]
        able.append([(pool, index) for pool in allowed for index in range(pool.count)])
    for workers in itertools.product(*able):
        places = {operator.name: worker for operator, worker in zip(problem.operators, workers, strict=True)}
        if _in_order(workers) and all(_holds(places, chosen, worker) for worker in workers):
            yield places


def _in_order(workers: tuple[Worker, ...]) -> bool:
    seen: dict[str, int] = {}
    for pool, index in workers:
        if index > seen.setdefault(pool.name, 0):
            return False
        seen[pool.name] = max(seen[pool.name], index + 1)
    return True


def _holds(places: Places, chosen: Mapping[str, Variant], worker: Worker) -> bool:
    pool = worker[0]
    here = [name for name, place in places.items() if place == worker]
    alone = pool.sharing.value == "exclusive" and len(here) > 1
    return not alone and optimum.fits_in(pool, [chosen[name] for name in here])


def _ways(problem: Problem, places: Places) -> Iterator[tuple[Edge, str, str]]:
    born = {source.name: source.tier for source in problem.sources}
    for operator in problem.operators:
        for edge in operator.inputs:
            upstream = born[edge.upstream] if edge.upstream in born else places[edge.upstream][0].tier
            yield edge, upstream, places[edge.downstream][0].tier


def _visits(problem: Problem, chosen: Mapping[str, Variant]) -> dict[str, float]:
    """Per request of the first source of the workflow; all of one workflow are of one rate."""
    found = reference_rates.rates(problem, _names(chosen))
    first = {source.name.rpartition("/")[0]: found[source.name] for source in reversed(problem.sources)}
    return {name: rate / first[name.rpartition("/")[0]] for name, rate in found.items()}


def _names(chosen: Mapping[str, Variant]) -> dict[str, str]:
    return {name: variant.name for name, variant in chosen.items()}


def _bytes(problem: Problem, chosen: Mapping[str, Variant], edge: Edge) -> float:
    born = {source.name: source.message_bytes for source in problem.sources}
    return born[edge.upstream] if edge.upstream in born else chosen[edge.upstream].message_bytes[edge.downstream]


def _traffic_usd_per_h(problem: Problem, chosen: Mapping[str, Variant], places: Places) -> float | None:
    """None where data would go where it must not, or where there is no link."""
    links = {(link.upstream_tier, link.downstream_tier): link for link in problem.links}
    rates, cost = reference_rates.rates(problem, _names(chosen)), 0.0
    for edge, upstream, downstream in _ways(problem, places):
        if edge.tiers is not None and not {upstream, downstream} <= set(edge.tiers):
            return None
        if upstream != downstream:
            if (upstream, downstream) not in links:
                return None
            rows = reference_rates.rows(problem, edge, _names(chosen))
            sent = rates[edge.upstream] * rows * _bytes(problem, chosen, edge)
            cost += sent * 3600.0 / GIB * links[upstream, downstream].price_usd_per_gib
    return cost


def _takes_s(
    problem: Problem, chosen: Mapping[str, Variant], places: Places, each: Callable[[Iterable[float]], float]
) -> Mapping[str, float]:
    """The longest way of each workflow; the children of a request come one after the other, as do runs on a worker."""
    links = {(link.upstream_tier, link.downstream_tier): link for link in problem.links}
    visits = _visits(problem, chosen)
    begins = dict.fromkeys((operator.name for operator in problem.operators), 0.0)
    ready = {source.name: 0.0 for source in problem.sources}
    above: dict[str, set[str]] = {}
    own: dict[str, float] = {}
    ways = {(edge.upstream, edge.downstream): (edge, low, high) for edge, low, high in _ways(problem, places)}
    for operator in problem.operators:
        name, children = operator.name, max(1.0, visits[operator.name])
        for edge in operator.inputs:
            _, low, high = ways[edge.upstream, name]
            crossing = 0.0
            if low != high:
                link = links[low, high]
                sent = _bytes(problem, chosen, edge) * children
                crossing = link.latency_s + (sent / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)
            begins[name] = max(begins[name], ready[edge.upstream] + crossing)
        direct = {edge.upstream for edge in operator.inputs if edge.upstream in above}
        related = direct.union(*(above[d] for d in direct))
        own_workflow = name.rpartition("/")[0]
        beside = [o for o in above if o not in related and o.rpartition("/")[0] == own_workflow]
        times = chosen[name].service[places[name][0].name]
        own[name] = max(times[1].mean_s, children * each(time.mean_s / size for size, time in times.items()))
        waits = sum(own[other] for other in beside if places[other] == places[name])
        ready[name] = begins[name] + waits + own[name]
        above[name] = direct.union(*(above[d] for d in direct))
    takes_s: dict[str, float] = {}
    for name in above:
        workflow = name.rpartition("/")[0]
        takes_s[workflow] = max(takes_s.get(workflow, 0.0), ready[name])
    return takes_s
