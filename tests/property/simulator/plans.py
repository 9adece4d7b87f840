"""Plans for tests: one operator after another by hand, and whole random ones."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence

from jellybean_solver import (
    Arrivals,
    Certificate,
    Cost,
    Edge,
    EdgeKind,
    Link,
    Plan,
    PlannedOperator,
    PlannedWorker,
    Route,
    ServiceTime,
    Sharing,
    Slo,
    Source,
)
from jellybean_solver.model.workflow import unbatched
from tests.planned import planned_operator

SOURCE = Source("image", "edge", 10.0, 1000.0)


def operator(
    name: str,
    inputs: Sequence[Edge],
    rate_per_s: float,
    service: Mapping[str, ServiceTime],
    message_bytes: Mapping[str, float] | None = None,
    batch: int = 1,
) -> PlannedOperator:
    return planned_operator(name, inputs, "v", rate_per_s, service, message_bytes, batch=batch)


def plan(
    sources: Sequence[Source],
    operators: Sequence[PlannedOperator],
    routes: Sequence[Route],
    workers: Mapping[str, str],  # worker -> tier; the pool is the name without its number
    links: Sequence[Link] = (),
    hop_s: float = 0.0,
    slo: Slo | None = None,
) -> Plan:
    planned = []
    for name, tier in workers.items():
        pool = name.rsplit("-", 1)[0]
        rates: dict[str, float] = {}
        for route in routes:
            for op in operators:
                if route.workers[op.name] == name:
                    rates[op.name] = rates.get(op.name, 0.0) + route.weight * op.rate_per_s
        by_name = {op.name: op for op in operators}
        load = sum(rate * by_name[op].request_s(pool) for op, rate in rates.items())
        planned.append(PlannedWorker(name, pool, tier, 1.0, Sharing.SHARED, rates, load))
    tiers = tuple(dict.fromkeys([*(source.tier for source in sources), *workers.values()]))
    return Plan(
        name="test",
        tiers=tiers,
        sources=tuple(sources),
        operators=tuple(operators),
        workers=tuple(planned),
        routes=tuple(routes),
        links=tuple(links),
        slo=slo or Slo(),
        utilisation=0.8,
        hop_s=hop_s,
        cost=Cost(1.0, 0.0),
        accuracy=None,
        certificate=Certificate(1.0, 1.0, 0.0, "optimal"),
    )


def chain(
    service: Sequence[ServiceTime],
    rate_per_s: float,
    arrivals: Arrivals = Arrivals.POISSON,
    *,
    hop_s: float = 0.0,
    slo: Slo | None = None,
) -> Plan:
    """Operators op-1, op-2, ... one after another, each on a worker of its own, all in one tier."""
    operators, routes = [], {}
    for index, time in enumerate(service, 1):
        upstream = f"op{index - 1}" if index > 1 else "image"
        edge = Edge(upstream, f"op{index}")
        operators.append(operator(f"op{index}", [edge], rate_per_s, {f"w{index}": time}, {f"op{index + 1}": 10.0}))
        routes[f"op{index}"] = f"w{index}-1"
    source = dataclasses.replace(SOURCE, rate_per_s=rate_per_s, arrivals=arrivals)
    workers = dict.fromkeys(routes.values(), "edge")
    return plan([source], operators, [Route(1.0, routes)], workers, hop_s=hop_s, slo=slo)


def exponential(mean_s: float) -> ServiceTime:
    """So many quantiles that sampling them is nearly exponential."""
    levels = [i / 400 for i in range(400)] + [0.999, 0.9999, 0.99999]
    quantiles = tuple((level, exponential_quantile(level, mean_s)) for level in levels)
    return ServiceTime(mean_s, mean_s, quantiles)


def exponential_quantile(level: float, mean_s: float) -> float:
    return -mean_s * math.log1p(-level)


RATIOS = (0.3, 0.5, 1.0, 1.5, 2.0, 3.0)
TIERS = ("edge", "hub", "cloud")


def random_edges(rng: random.Random) -> tuple[list[str], dict[str, list[Edge]]]:
    """Sources, and operators with their inputs: random joins, nested fan-outs and gathers, some left open at a sink.

    A node's scope names the fan-outs that are open there; all edges that fan out of one node share its ratio.
    """
    sources = [f"s{index}" for index in range(rng.randint(1, 3))]
    scope: dict[str, tuple[str, ...]] = dict.fromkeys(sources, ())
    ratio: dict[str, float] = {}
    inputs: dict[str, list[Edge]] = {}
    for index in range(rng.randint(1, 8)):
        name = f"o{index}"
        base = rng.choice(list(scope))
        here = scope[base]
        fans = base in inputs and len(here) < 3
        target = rng.choice([here, *([(*here, base)] * 2 if fans else []), *([here[:-1]] * 2 if here else [])])
        candidates = [(up, kind) for up in scope if (kind := _kind(up, scope[up], target)) is not None]
        candidates = [(up, kind) for up, kind in candidates if kind is not EdgeKind.FAN_OUT or up in inputs]
        first = next(candidate for candidate in candidates if candidate[0] == base)
        others = [candidate for candidate in candidates if candidate[0] != base]
        chosen = [first, *rng.sample(others, min(len(others), rng.choice([0, 0, 1, 1, 2])))]
        rng.shuffle(chosen)
        inputs[name] = []
        for up, kind in chosen:
            if kind is EdgeKind.FAN_OUT:
                factor = ratio.setdefault(up, rng.choice(RATIOS))
            else:
                factor = 1.0 / ratio[scope[up][-1]] if kind is EdgeKind.GATHER else 1.0
            inputs[name].append(Edge(up, name, kind, factor))
        scope[name] = target
    used = {edge.upstream for edges in inputs.values() for edge in edges}
    return [source for source in sources if source in used], inputs


def _kind(upstream: str, scope: tuple[str, ...], target: tuple[str, ...]) -> EdgeKind | None:
    if scope == target:
        return EdgeKind.EACH
    if target == (*scope, upstream):
        return EdgeKind.FAN_OUT
    return EdgeKind.GATHER if scope[:-1] == target and scope else None


def random_plan(rng: random.Random, load: float = 0.6, *, batches: bool = False) -> Plan:
    """Random wiring on random routes over up to three tiers; the busiest worker's load is `load`.

    `batches`: some operators take up to eight requests at once, for nothing: in the time of one.
    """
    sources, inputs = random_edges(rng)
    workers = {f"{tier}-{i}": tier for tier in TIERS for i in range(1, rng.randint(1, 2) + 1)}
    rates = dict.fromkeys(sources, 5.0)
    for name, edges in inputs.items():
        rates[name] = rates[edges[0].upstream] * edges[0].ratio
    times = {
        name: {tier: ServiceTime(mean, mean, ((0.5, 0.8 * mean), (0.9, 1.5 * mean), (0.99, 2 * mean)))}
        | {other: ServiceTime(mean, mean) for other in TIERS if other != tier}
        for name, tier, mean in [(name, rng.choice(TIERS), rng.uniform(0.001, 0.1)) for name in inputs]
    }
    routes = [_random_route(rng, inputs, workers) for _ in range(rng.randint(1, 4))]
    weights = [rng.uniform(0.1, 1.0) for _ in routes]
    weighted = [Route(w / sum(weights), route) for w, route in zip(weights, routes, strict=True)]
    busiest = max(
        sum(
            route.weight * rates[name] * times[name][workers[worker]].mean_s
            for route in weighted
            for name in inputs
            if route.workers[name] == worker
        )
        for worker in workers
    )
    scale = load / busiest
    alone = unbatched([edge for edges in inputs.values() for edge in edges])
    operators = [
        operator(
            name,
            edges,
            rates[name] * scale,
            times[name],
            {e.downstream: 1000.0 for es in inputs.values() for e in es if e.upstream == name},
            batch=rng.choice([1, 2, 8]) if batches and name not in alone else 1,
        )
        for name, edges in inputs.items()
    ]
    arrivals = rng.choice(list(Arrivals))
    links = [Link(a, b, 0.1, rng.choice([None, 1e9]), 0.01) for i, a in enumerate(TIERS) for b in TIERS[i + 1 :]]
    born = [Source(source, "edge", 5.0 * scale, 1000.0, arrivals) for source in sources]
    return plan(born, operators, weighted, workers, links, hop_s=rng.choice([0.0, 0.001]))


def _random_route(rng: random.Random, inputs: Mapping[str, list[Edge]], workers: Mapping[str, str]) -> dict[str, str]:
    route: dict[str, str] = {}
    for name, edges in inputs.items():
        lowest = max((TIERS.index(workers[route[e.upstream]]) for e in edges if e.upstream in route), default=0)
        route[name] = rng.choice([w for w, tier in workers.items() if TIERS.index(tier) >= lowest])
    return route
