"""A seeded generator of fleets and workflows of any size, in which memory, links and accuracy all matter."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from jellybean_solver import (
    Edge,
    Independent,
    Link,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
)

TIERS = ("edge", "hub", "cloud")
GIB = 2.0**30
MESSAGE_BYTES = 36e3  # of an operator, in the middle; a source's are many times larger
UTILISATION = 0.8


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    operators: int = 30
    variants: int = 5
    pools: int = 100
    workers: int = 10_000
    sharing: Sharing = Sharing.SHARED
    batches: tuple[int, ...] = (1,)  # sizes that are profiled
    sites: int = 1  # alike ones at the edge, each with the edge pools and the source; all else as many times larger


@dataclass(frozen=True)
class _Type:
    """A kind of device: work per second, USD per hour, bytes."""

    name: str
    tier: str
    speed: float
    price_usd_per_h: float
    memory_bytes: float


def fleet(seed: int, size: Size = Size()) -> Problem:
    """The problem of a seed: a layered workflow, pools of devices in three tiers, a target that rules out the cheapest.

    Edge devices are cheap and small, so large variants do not fit; links carry the messages of an operator or two.
    """
    told = f"{replace(size, batches=(1,), sites=1)!r}".replace(", batches=(1,)", "").replace(", sites=1", "")
    rng = random.Random(f"fleet/{seed}/{told}")
    pools = _pools(rng, size)
    work = {f"o{index}": rng.lognormvariate(-4.0, 0.7) for index in range(size.operators)}
    operators = _operators(rng, size, pools, work)
    power = sum(pool.count * kind.speed for pool, kind in pools)
    rate = 0.35 * UTILISATION * power / (2.5 * sum(work.values()))
    message = rng.uniform(2e5, 1e6)
    accuracy = Independent({operator.name: _percents(rng, size.variants) for operator in operators})
    best = accuracy.upper_bound({}) or 100.0
    worst = accuracy.value(dict.fromkeys(accuracy.table, "v0")) or 0.0
    carried = rate * MESSAGE_BYTES
    links = tuple(
        Link(low, high, rng.uniform(0.01, 0.12) / 10, carried * rng.uniform(0.5, 2.0), rng.uniform(0.002, 0.05))
        for low, high in (("edge", "hub"), ("edge", "cloud"), ("hub", "cloud"))
    )
    problem = Problem(
        name=f"fleet-{seed}",
        tiers=TIERS,
        sources=(Source("camera", "edge", rate, message),),
        operators=operators,
        pools=tuple(pool for pool, _ in pools),
        links=links,
        accuracy=accuracy,
        slo=Slo(accuracy=worst + rng.uniform(0.3, 0.7) * (best - worst)),
        utilisation=UTILISATION,
    )
    return _in_sites(problem, size.sites) if size.sites > 1 else problem


def _in_sites(problem: Problem, sites: int) -> Problem:
    """As many times the edge of the problem, and a hub and cloud that are as many times as large."""
    shared = {pool.name: pool.count * sites for pool in problem.pools if pool.tier != "edge"}
    pools = tuple(replace(pool, count=shared.get(pool.name, pool.count)) for pool in problem.pools)
    links = tuple(
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * sites)
        if link.upstream_tier != "edge" and link.bandwidth_bytes_per_s is not None
        else link
        for link in problem.links
    )
    return replace(problem, pools=pools, links=links, sites={"edge": sites})


def _percents(rng: random.Random, variants: int) -> dict[str, float]:
    loss = rng.uniform(0.5, 3.0)
    return {f"v{index}": 100.0 - loss * 0.55**index for index in range(variants)}


def _pools(rng: random.Random, size: Size) -> list[tuple[Pool, _Type]]:
    types = []
    for tier, speed, memory in (("edge", 1.0, 2.0), ("hub", 4.0, 8.0), ("cloud", 12.0, 24.0)):
        for number in range(6):
            own = speed * rng.lognormvariate(0.0, 0.4)
            price = 0.05 * own**0.9 * rng.uniform(0.8, 1.25)
            types.append(_Type(f"{tier}-{number}", tier, own, price, memory * GIB * rng.choice((0.5, 1.0, 2.0))))
    weights = [rng.uniform(0.2, 1.0) for _ in range(size.pools)]
    scale = size.workers / sum(weights)
    found = []
    for index, weight in enumerate(weights):
        kind = types[index % len(types)]
        count = max(1, round(weight * scale))
        price = round(kind.price_usd_per_h * rng.uniform(0.9, 1.1), 4)
        pool = Pool(f"p{index}", kind.tier, count, price, size.sharing, kind.memory_bytes)
        found.append((pool, kind))
    return found


def _operators(
    rng: random.Random, size: Size, pools: list[tuple[Pool, _Type]], work: dict[str, float]
) -> tuple[Operator, ...]:
    names = list(work)
    inputs: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        near = names[max(0, index - 4) : index]
        inputs[name] = sorted(rng.sample(near, min(len(near), rng.choice((1, 1, 2))))) or ["camera"]
    readers = {name: [other for other in names if name in inputs[other]] for name in names}
    return tuple(
        Operator(
            name,
            tuple(Edge(upstream, name) for upstream in inputs[name]),
            tuple(_variant(rng, index, pools, work[name], readers[name], size) for index in range(size.variants)),
        )
        for name in names
    )


def _variant(
    rng: random.Random, index: int, pools: list[tuple[Pool, _Type]], work: float, readers: list[str], size: Size
) -> Variant:
    heavy = work * 1.6**index
    memory = 0.3 * GIB * 2.0**index * rng.uniform(0.7, 1.4)
    suits = {kind.name: rng.uniform(0.85, 1.15) for _, kind in pools}
    loads = {pool.name: heavy / kind.speed * suits[kind.name] for pool, kind in pools}
    sent = MESSAGE_BYTES * rng.lognormvariate(0.0, 1.0)
    more = random.Random(f"batches/{work}/{index}").uniform(0.6, 1.0)  # each further request, as a share of the first

    def times(load: float) -> dict[int, ServiceTime]:
        seconds = {batch: load * (1.0 + (batch - 1) * more) for batch in size.batches}
        return {batch: ServiceTime(time, time) for batch, time in seconds.items()}

    return Variant(
        f"v{index}",
        {pool: times(load) for pool, load in loads.items()},
        dict.fromkeys(readers, sent),
        {pool.name: memory for pool, _ in pools},
    )
