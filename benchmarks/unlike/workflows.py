"""Many workflows of unlike shapes on one fleet of edge, hub and cloud, in which all pools are common."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.unlike.graphs import Graph, WorkerType, suited, worker_types
from jellybean_solver import Link, Operator, Pool, Problem, Sharing, Slo, Source
from jellybean_solver.model.accuracy import Margins
from jellybean_solver.model.workflow import Workflow

UTILISATION = 0.8
SPEEDS = {"edge": 1.0, "hub": 4.0, "cloud": 12.0}
POOLS = 8  # in each tier
MOST_OPERATORS = 10


def many_workflows(seed: int, workflows: int, workers: int, *, variants: int = 4, share: float = 0.7) -> Problem:
    """Workflows whose work, if spread by price, takes about `share` of so many workers."""
    rng = random.Random(f"many-workflows/{seed}")
    types = {tier: worker_types(rng, tier, POOLS, speed) for tier, speed in SPEEDS.items()}
    every = {kind.name: kind for own in types.values() for kind in own}
    suits = suited(rng, tuple(every.values()), MOST_OPERATORS, variants)
    pools = _pools(rng, types, workers)
    graphs = [Graph.drawn(rng, rng.randint(4, MOST_OPERATORS), variants) for _ in range(workflows)]
    power = UTILISATION * sum(every[pool.name].speed * pool.count for pool in pools)
    sizes = [rng.lognormvariate(0.0, 1.0) for _ in graphs]
    factor = share * power / sum(size * graph.work for size, graph in zip(sizes, graphs, strict=True))
    sources: list[Source] = []
    planned: list[Operator] = []
    made: list[Workflow] = []
    for number, (graph, size) in enumerate(zip(graphs, sizes, strict=True)):
        name = f"w{number}"
        sources.append(Source(f"{name}/camera", "edge", size * factor, rng.uniform(2e5, 1e6)))
        planned += graph.operators(name, f"{name}/camera", every, suits)
        made.append(Workflow(name, Slo(accuracy=graph.target(name, rng))))
    sent = sum(source.rate_per_s * source.message_bytes for source in sources)
    links = (
        Link("edge", "hub", 0.01, 0.7 * sent, 0.005),
        Link("hub", "cloud", 0.03, 0.5 * sent, 0.02),
        Link("edge", "cloud", 0.05, 0.3 * sent, 0.03),
    )
    return Problem(
        name=f"many-workflows-{seed}",
        tiers=tuple(SPEEDS),
        sources=tuple(sources),
        operators=tuple(planned),
        pools=pools,
        links=links,
        accuracy=Margins(
            {workflow.name: graph.accuracy(workflow.name) for workflow, graph in zip(made, graphs, strict=True)},
            {workflow.name: workflow.slo.accuracy or 0.0 for workflow in made},
        ),
        slo=Slo(),
        utilisation=UTILISATION,
        workflows=tuple(made),
    )


def _pools(rng: random.Random, types: dict[str, tuple[WorkerType, ...]], workers: int) -> tuple[Pool, ...]:
    """About so many workers, a quarter of the pools exclusive."""
    drawn = [
        Pool(kind.name, tier, 1, kind.usd_per_h, Sharing.EXCLUSIVE if rng.random() < 0.25 else Sharing.SHARED)
        for tier, own in types.items()
        for kind in own
    ]
    weights = [rng.uniform(0.5, 1.5) for _ in drawn]
    return tuple(
        replace(pool, count=max(1, round(workers * weight / sum(weights))))
        for pool, weight in zip(drawn, weights, strict=True)
    )
