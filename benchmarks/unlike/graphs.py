"""A random workflow as figures: what each operator reads, computes, sends and loses in accuracy."""

from __future__ import annotations

import random
from dataclasses import dataclass

from jellybean_solver import Edge, Independent, Operator, ServiceTime, Variant

WORK_S, SPREAD = 0.018, 0.7  # median time of an operator's smallest variant on a worker of speed 1; of a log-normal
STEP = 1.6  # time of a variant over that of the next smaller one
FALL = 0.55  # accuracy lost with a variant over that with the next smaller one


@dataclass(frozen=True)
class WorkerType:
    """Speed relative to others, price of a worker, and how well each operator's variant suits it."""

    name: str
    speed: float
    usd_per_h: float


@dataclass(frozen=True)
class Graph:
    """`inputs`: the operators that each one reads, the source if none; `lost`: percent points with variant 0."""

    inputs: tuple[tuple[int, ...], ...]
    work_s: tuple[float, ...]
    sent: tuple[tuple[float, ...], ...]  # bytes of a message, by operator and variant
    lost: tuple[float, ...]
    variants: int

    @classmethod
    def drawn(cls, rng: random.Random, operators: int, variants: int) -> Graph:
        """Each operator reads one or two of the three before it."""
        near = [range(max(0, i - 3), i) for i in range(operators)]
        return cls(
            tuple(tuple(sorted(rng.sample(own, min(len(own), rng.choice((1, 1, 2)))))) for own in near),
            tuple(WORK_S * rng.lognormvariate(0.0, SPREAD) for _ in range(operators)),
            tuple(tuple(36e3 * rng.lognormvariate(0.0, 1.0) for _ in range(variants)) for _ in range(operators)),
            tuple(rng.uniform(0.5, 3.0) for _ in range(operators)),
            variants,
        )

    @property
    def work(self) -> float:
        """Seconds of a request on a worker of speed 1, with variants of middle size."""
        middle: float = STEP ** ((self.variants - 1) / 2.0)
        return sum(self.work_s) * middle

    def accuracy(self, workflow: str) -> Independent:
        """Every operator's accuracy by itself."""
        return Independent(
            {
                f"{workflow}/o{o}": {f"v{v}": 100.0 - lost * FALL**v for v in range(self.variants)}
                for o, lost in enumerate(self.lost)
            }
        )

    def target(self, workflow: str, rng: random.Random) -> float:
        """Between what the smallest variants reach and what the largest do."""
        model = self.accuracy(workflow)
        least = model.value(dict.fromkeys(model.table, "v0")) or 0.0
        most = model.value(dict.fromkeys(model.table, f"v{self.variants - 1}")) or 100.0
        return least + rng.uniform(0.3, 0.7) * (most - least)

    def operators(
        self, workflow: str, source: str, pools: dict[str, WorkerType], suits: dict[str, list[list[float]]]
    ) -> tuple[Operator, ...]:
        """The operators, with times on these pools; `suits`: type -> factor by operator and variant."""
        readers = {i: [j for j, own in enumerate(self.inputs) if i in own] for i in range(len(self.inputs))}
        found = []
        for o, own in enumerate(self.inputs):
            name, variants = f"{workflow}/o{o}", []
            for v in range(self.variants):
                service = {}
                for pool, kind in pools.items():
                    seconds = self.work_s[o] * STEP**v / kind.speed * suits[kind.name][o][v]
                    service[pool] = {1: ServiceTime(seconds, seconds)}
                variants.append(Variant(f"v{v}", service, {f"{workflow}/o{j}": self.sent[o][v] for j in readers[o]}))
            upstream = [f"{workflow}/o{i}" for i in own] or [source]
            found.append(Operator(name, tuple(Edge(one, name) for one in upstream), tuple(variants)))
        return tuple(found)


def worker_types(rng: random.Random, prefix: str, count: int, speed: float) -> tuple[WorkerType, ...]:
    """Types about so fast; faster ones cost a little less for what they do."""
    speeds = [speed * rng.lognormvariate(0.0, 0.4) for _ in range(count)]
    return tuple(
        WorkerType(f"{prefix}{t}", each, round(0.05 * each**0.9 * rng.uniform(0.8, 1.25), 4))
        for t, each in enumerate(speeds)
    )


def suited(
    rng: random.Random, types: tuple[WorkerType, ...], operators: int, variants: int
) -> dict[str, list[list[float]]]:
    """Per type a factor on the time of each operator's variant."""
    return {kind.name: [[rng.uniform(0.85, 1.15) for _ in range(variants)] for _ in range(operators)] for kind in types}
