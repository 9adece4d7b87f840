"""A seeded generator of middle-size problems with every feature of `Problem`, and of small ones for tests.

Seeds 0 to 199 are for development; 5000 to 5199 are reserved for the final comparison and are never run before it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from benchmarks.middle.accuracies import accuracy_model, reachable_target
from benchmarks.middle.workflows import UPWARD, Wiring, restricted_to_tiers, wiring
from jellybean_solver import (
    EdgeKind,
    Link,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
    combine_workflows,
)

GIB = 2.0**30
SPEED = {"edge": 1.0, "hub": 4.0, "cloud": 12.0}  # work per second of a typical worker
USD_PER_H = 0.05  # of a worker of speed 1; faster ones cost a little less per unit of work
MODEL_BYTES = 0.3 * GIB  # of the smallest variant
MESSAGE_BYTES = 36e3  # of a typical operator
SOURCE_BYTES = (5e4, 4e5)
BATCH_SIZES = ((1,), (1, 2, 4), (1, 4, 8), (1, 2, 4, 8))
TIGHT, LOOSE = (1.0, 5.0), (6.0, 40.0)  # memory of a worker, in models of middle size


@dataclass(frozen=True)
class Size:
    """Ranges (both ends included) that a problem's dimensions are drawn from."""

    operators: tuple[int, int] = (6, 12)
    variants: tuple[int, int] = (3, 5)
    pools: tuple[int, int] = (8, 20)
    most_workers: int = 30  # of one pool; most pools have far fewer
    measured_operators: int = 5  # that an end-to-end accuracy table covers


MIDDLE = Size()
SMALL = Size(operators=(2, 4), variants=(1, 3), pools=(2, 4), most_workers=4, measured_operators=3)


@dataclass(frozen=True)
class _Device:
    """A pool with the speed of its workers."""

    pool: Pool
    speed: float


@dataclass(frozen=True)
class _Workload:
    """What variants are drawn from. `work`: operator -> seconds of a request on a worker of speed 1."""

    work: dict[str, float]
    readers: dict[str, list[str]]
    ratio_options: dict[str, list[tuple[str, float]]]  # operator -> fan-out edges whose ratio depends on its variant
    batch_sizes: tuple[int, ...]
    batch_share: float  # least cost of a further request in a batch, as a share of the first one


def middle_problem(seed: int, size: Size = MIDDLE) -> Problem:
    """The problem of a seed: deterministic, mostly feasible."""
    rng = random.Random(f"middle/{seed}/{size}")
    sites = {"edge": rng.choice((2, 3, 5))} if rng.random() < 0.15 else {}
    devices = _devices(rng, size)
    count = rng.randint(*size.operators)
    if rng.random() < 0.1 and count >= 4:  # two workflows on one fleet
        halves = (count // 2, count - count // 2)
        parts = [_workflow(rng, size, devices, half, sites, 0.5) for half in halves]
        links = parts[0].links
        fleet = {f"w{i}": replace(part, links=links, utilisation=0.8) for i, part in enumerate(parts)}
        problem = combine_workflows(f"middle-{seed}", fleet)
    else:
        problem = replace(_workflow(rng, size, devices, count, sites, 1.0), name=f"middle-{seed}")
    if rng.random() < 0.12:
        budget = rng.uniform(2.0, 5.0) * _least_compute_usd_per_h(problem)
        problem = replace(problem, slo=replace(problem.slo, budget_usd_per_h=round(budget, 3)))
    return problem


def _workflow(
    rng: random.Random, size: Size, devices: list[_Device], count: int, sites: dict[str, int], share: float
) -> Problem:
    """One workflow of `count` operators that needs about `share` of what the rates are sized by."""
    graph = wiring(rng, count)
    work = {name: rng.lognormvariate(-4.0, 0.8) for name in graph.inputs}
    capacity = sum(d.pool.count * sites.get(d.pool.tier, 1) * d.speed for d in devices)
    used = share * rng.choice((0.03, 0.1, 0.2, 0.3)) * rng.uniform(0.7, 1.4)
    per_request = sum(2.0 * work[name] * factor for name, factor in graph.rate.items())
    rate = used * capacity / per_request
    inputs, tiers = restricted_to_tiers(rng, graph) if rng.random() < 0.5 else (graph.inputs, {})
    workload = _workload(rng, graph, work)
    operators = tuple(
        Operator(name, edges, _variants(rng, size, devices, name, workload), tiers.get(name))
        for name, edges in inputs.items()
    )
    sources = tuple(
        Source(name, tier, rate * factor / sites.get(tier, 1), rng.uniform(*SOURCE_BYTES))
        for name, (tier, factor) in graph.sources.items()
    )
    accuracy = accuracy_model(rng, operators, size.measured_operators)
    return Problem(
        name="part",
        tiers=UPWARD,
        sources=sources,
        operators=operators,
        pools=tuple(device.pool for device in devices),
        links=_links(rng, rate, sites),
        accuracy=accuracy,
        slo=Slo(accuracy=reachable_target(rng, accuracy, operators) if rng.random() < 0.93 else None),
        utilisation=rng.choice((0.6, 0.8, 0.9)),
        sites=sites,
    )


def _devices(rng: random.Random, size: Size) -> list[_Device]:
    """Pools on three tiers. Sharing and memory follow a style drawn for the whole fleet, or differ by pool."""
    sharing = rng.choice((Sharing.SHARED, Sharing.SHARED, Sharing.EXCLUSIVE, None, None))
    memory = rng.choice((None, TIGHT, TIGHT, LOOSE))
    middle = MODEL_BYTES * 2.0 ** (size.variants[1] / 2.0)
    devices = []
    for index in range(rng.randint(*size.pools)):
        tier = UPWARD[index % 3] if index < 3 else rng.choice(UPWARD)
        speed = SPEED[tier] * rng.lognormvariate(0.0, 0.4)
        price = round(USD_PER_H * speed**0.9 * rng.uniform(0.7, 1.3), 4)
        count = max(1, round(size.most_workers ** rng.random()))
        own = sharing or rng.choice((Sharing.SHARED, Sharing.EXCLUSIVE))
        limit = None if memory is None or rng.random() < 0.15 else middle * rng.uniform(*memory)
        devices.append(_Device(Pool(f"p{index}", tier, count, price, own, limit), speed))
    return devices


def _links(rng: random.Random, rate: float, sites: dict[str, int]) -> tuple[Link, ...]:
    """All links up the tiers but an occasional one; in some problems their bandwidth binds, in some they are dear."""
    limited, dear = rng.random() < 0.6, rng.choice((0.1, 1.0, 5.0))
    links = []
    for low, high in (("edge", "hub"), ("edge", "cloud"), ("hub", "cloud")):
        if (low, high) == ("edge", "cloud") and rng.random() < 0.1:
            continue
        carried = rate * rng.uniform(0.4, 3.0) * SOURCE_BYTES[1] / sites.get(low, 1)
        bandwidth = carried if limited and rng.random() < 0.8 else None
        links.append(Link(low, high, dear * rng.uniform(0.001, 0.012), bandwidth, rng.uniform(0.002, 0.05)))
    return tuple(links)


def _workload(rng: random.Random, graph: Wiring, work: dict[str, float]) -> _Workload:
    """Ratios depend on the variant for at most two operators, in one problem of five that fan out."""
    readers: dict[str, list[str]] = {name: [] for name in graph.inputs}
    fan_outs: dict[str, list[tuple[str, float]]] = {}
    for name, edges in graph.inputs.items():
        for edge in edges:
            if edge.upstream in readers and name not in readers[edge.upstream]:
                readers[edge.upstream].append(name)
            if edge.kind is EdgeKind.FAN_OUT and edge.upstream in readers:
                fan_outs.setdefault(edge.upstream, []).append((name, edge.ratio))
    varying = dict(list(fan_outs.items())[:2]) if rng.random() < 0.2 else {}
    return _Workload(work, readers, varying, rng.choice(BATCH_SIZES), rng.uniform(0.3, 1.0))


def _variants(
    rng: random.Random, size: Size, devices: list[_Device], name: str, workload: _Workload
) -> tuple[Variant, ...]:
    """Later variants take longer, need more memory, and find more where ratios depend on them."""
    sizes = rng.sample((1.0, 0.5, 2.0, 4.0), 1)[0] * MESSAGE_BYTES
    count = rng.randint(*size.variants)
    return tuple(_variant(rng, index, devices, name, workload, sizes) for index in range(count))


def _variant(
    rng: random.Random, index: int, devices: list[_Device], name: str, workload: _Workload, message_bytes: float
) -> Variant:
    heavy = workload.work[name] * rng.uniform(1.3, 1.9) ** index
    memory = MODEL_BYTES * rng.uniform(1.6, 2.2) ** index * rng.uniform(0.6, 1.5)
    part = rng.uniform(workload.batch_share, 1.0)
    service, needed = {}, {}
    for device in devices:
        if rng.random() < 0.06 and index > 0:  # no profile there
            continue
        load = heavy / device.speed * rng.uniform(0.8, 1.25)
        times = {batch: load * (1.0 + (batch - 1) * part) for batch in workload.batch_sizes}
        service[device.pool.name] = {batch: ServiceTime(time, time) for batch, time in times.items()}
        needed[device.pool.name] = memory * rng.choice((1.0, 1.0, 0.6))
    sent = {reader: message_bytes * rng.lognormvariate(0.0, 0.7) for reader in workload.readers[name]}
    ratios = {reader: ratio * (1.0 + 0.25 * index) for reader, ratio in workload.ratio_options.get(name, ())}
    return Variant(f"v{index}", service, sent, needed, ratios=ratios)


def _least_compute_usd_per_h(problem: Problem) -> float:
    """What the lightest variants cost in their cheapest pools if workers came in fractions; scales budgets."""
    total = 0.0
    for operator in problem.operators:
        total += min(
            problem.rate_per_s[operator.name] * min(times.values(), key=lambda t: t.load_s).load_s
            / problem.utilisation * problem.pool_by_name[pool].price_usd_per_h
            for variant in operator.variants
            for pool, times in variant.service.items()
        )  # fmt: skip
    return max(total, 0.01)
