"""A seeded generator of fleets and workflows of any size, for which memory, links and accuracy all matter."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
MESSAGE_BYTES = 36e3  # median output of an operator
SOURCE_BYTES, SITE_SOURCE_BYTES = (2e5, 1e6), (3e5, 8e5)
UTILISATION = 0.8
LOAD, SITE_LOAD = 0.35, 1.0  # offered load over the fleet's capacity, if all variants were of medium size
TYPES = 6  # device types per tier
MEMORY_GIB = {"edge": 2.0, "hub": 8.0, "cloud": 24.0}  # medium; there are types with half and with double
SITE_MEMORY_GIB = {"edge": 16.0, "hub": 2.0, "cloud": 4.0}  # of fleets with sites
SITE_PRICE, MEMORY_PRICE_EXPONENT = 1.0, 0.5  # factor on prices in sites; price grows as memory to this power
UPLINK_OPERATORS, UPLINK_VARIANTS = 3, 3  # first operators, and smallest variants, that size a site's uplinks


@dataclass(frozen=True)
class Size:
    """Size and features of a generated problem."""

    operators: int = 30
    variants: int = 5
    pools: int = 100
    workers: int = 10_000
    sharing: Sharing = Sharing.SHARED
    batches: tuple[int, ...] = (1,)  # profiled batch sizes
    sites: int = 1  # identical edge sites with `site_workers` each; hub and cloud have all other workers and pools
    site_workers: tuple[int, ...] = (1, 1, 1, 2)  # workers per pool of a site, if there are several sites


@dataclass(frozen=True)
class _DeviceType:
    """A device type: work per second, USD per hour, bytes of memory."""

    name: str
    tier: str
    speed: float
    price_usd_per_h: float
    memory_bytes: float


def fleet(seed: int, size: Size = Size()) -> Problem:
    """The problem of a seed: a layered workflow, pools in three tiers, an accuracy that rules out the cheapest.

    Edge devices are cheap and small, so large variants do not fit; links carry the messages of one or two operators.
    """
    rng = random.Random(f"fleet/{seed}/{_seed_text(size)}")
    pools = _pools(rng, size)
    work = {f"o{index}": rng.lognormvariate(-4.0, 0.7) for index in range(size.operators)}
    operators = _operators(rng, size, pools, work)
    sites = {"edge": size.sites} if size.sites > 1 else {}
    power = sum(pool.count * sites.get(pool.tier, 1) * kind.speed for pool, kind in pools)
    load = LOAD if size.sites == 1 else SITE_LOAD
    rate = load * UTILISATION * power / (2.5 * sum(work.values()))
    message = rng.uniform(*(SOURCE_BYTES if size.sites == 1 else SITE_SOURCE_BYTES))
    accuracy = Independent({operator.name: _percents(rng, size.variants) for operator in operators})
    best = accuracy.upper_bound({}) or 100.0
    worst = accuracy.value(dict.fromkeys(accuracy.table, "v0")) or 0.0
    links = tuple(_link(rng, ends, rate * carried, size) for ends, carried in _link_bytes(operators, size).items())
    return Problem(
        name=f"fleet-{seed}",
        tiers=TIERS,
        sources=(Source("camera", "edge", rate / sites.get("edge", 1), message),),
        operators=operators,
        pools=tuple(pool for pool, _ in pools),
        links=links,
        accuracy=accuracy,
        slo=Slo(accuracy=worst + rng.uniform(0.3, 0.7) * (best - worst)),
        utilisation=UTILISATION,
        sites=sites,
    )


def _seed_text(size: Size) -> str:
    """The part of the random seed that depends on the size: batch sizes and a single site do not change the draw."""
    text = f"Size(operators={size.operators}, variants={size.variants}, pools={size.pools}, workers={size.workers}, "
    text += f"sharing={size.sharing!r}"
    return text + (f", sites={size.sites}, site_workers={size.site_workers})" if size.sites > 1 else ")")


def _link_bytes(operators: tuple[Operator, ...], size: Size) -> dict[tuple[str, str], float]:
    """Bandwidth of each link, in bytes per request, before a random factor of up to 2.

    A site's uplinks carry the smallest cut behind the first operators, and too little for any later one.
    """
    if size.sites == 1:
        return dict.fromkeys((("edge", "hub"), ("edge", "cloud"), ("hub", "cloud")), MESSAGE_BYTES)
    waist = min(_sent_bytes(operators, first) for first in range(1, UPLINK_OPERATORS + 1))
    return {("edge", "hub"): waist / size.sites, ("edge", "cloud"): waist / size.sites, ("hub", "cloud"): MESSAGE_BYTES}


def _link(rng: random.Random, ends: tuple[str, str], carried: float, size: Size) -> Link:
    """A link; a site's uplinks are narrow and have a flat rate."""
    price, more = rng.uniform(0.01, 0.12) / 10, rng.uniform(0.5, 2.0)
    if size.sites > 1 and ends[0] == "edge":
        price, more = 0.0, 1.0 + (more - 0.5) / 1.5
    return Link(*ends, price, carried * more, rng.uniform(0.002, 0.05))


def _sent_bytes(operators: tuple[Operator, ...], first: int) -> float:
    """Bytes per request that the first operators send to others, with their smallest variants."""
    near = {operator.name: operator for operator in operators[:first]}
    return sum(
        min(variant.message_bytes[edge.downstream] for variant in near[edge.upstream].variants[:UPLINK_VARIANTS])
        for operator in operators[first:]
        for edge in operator.inputs
        if edge.upstream in near
    )


def _percents(rng: random.Random, variants: int) -> dict[str, float]:
    loss = rng.uniform(0.5, 3.0)
    return {f"v{index}": 100.0 - loss * 0.55**index for index in range(variants)}


def _types(rng: random.Random, size: Size) -> list[_DeviceType]:
    """Device types. With sites, small memories are cheaper and edge devices are scarce, so both constraints matter."""
    types = []
    gib = MEMORY_GIB if size.sites == 1 else SITE_MEMORY_GIB
    for tier, speed in (("edge", 1.0), ("hub", 4.0), ("cloud", 12.0)):
        for number in range(TYPES):
            own = speed * rng.lognormvariate(0.0, 0.4)
            price = 0.05 * own**0.9 * rng.uniform(0.8, 1.25)
            share = rng.choice((0.5, 1.0, 2.0))
            if size.sites > 1:
                price *= share**MEMORY_PRICE_EXPONENT * (SITE_PRICE if tier == "edge" else 1.0)
            types.append(_DeviceType(f"{tier}-{number}", tier, own, price, gib[tier] * GIB * share))
    return types


def _pools(rng: random.Random, size: Size) -> list[tuple[Pool, _DeviceType]]:
    types = _types(rng, size)
    stores = size.site_workers if size.sites > 1 else ()
    near, above = types[: len(stores)], types if size.sites == 1 else types[TYPES:]
    weights = [rng.uniform(0.2, 1.0) for _ in range(size.pools - len(stores))]
    scale = (size.workers - size.sites * sum(stores)) / sum(weights)
    counts = [*stores, *(max(1, round(weight * scale)) for weight in weights)]
    kinds = [*near, *(above[index % len(above)] for index in range(len(weights)))]
    found = []
    for index, (count, kind) in enumerate(zip(counts, kinds, strict=True)):
        price = round(kind.price_usd_per_h * rng.uniform(0.9, 1.1), 4)
        pool = Pool(f"p{index}", kind.tier, count, price, size.sharing, kind.memory_bytes)
        found.append((pool, kind))
    return found


def _operators(
    rng: random.Random, size: Size, pools: list[tuple[Pool, _DeviceType]], work: dict[str, float]
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
    rng: random.Random, index: int, pools: list[tuple[Pool, _DeviceType]], work: float, readers: list[str], size: Size
) -> Variant:
    heavy = work * 1.6**index
    memory = 0.3 * GIB * 2.0**index * rng.uniform(0.7, 1.4)
    suits = {kind.name: rng.uniform(0.85, 1.15) for _, kind in pools}
    loads = {pool.name: heavy / kind.speed * suits[kind.name] for pool, kind in pools}
    sent = MESSAGE_BYTES * rng.lognormvariate(0.0, 1.0)
    more = random.Random(f"batches/{work}/{index}").uniform(0.6, 1.0)  # time of each further request over the first's

    def times(load: float) -> dict[int, ServiceTime]:
        seconds = {batch: load * (1.0 + (batch - 1) * more) for batch in size.batches}
        return {batch: ServiceTime(time, time) for batch, time in seconds.items()}

    return Variant(
        f"v{index}",
        {pool: times(load) for pool, load in loads.items()},
        dict.fromkeys(readers, sent),
        {pool.name: memory for pool, _ in pools},
    )
