"""One workflow in unlike sites: rates, accuracies, workers, prices and links differ, and cloud pools are common."""

from __future__ import annotations

import random

from benchmarks.unlike.graphs import Graph, suited, worker_types
from jellybean_solver import Link, Operator, Pool, Problem, Sharing, Slo, Source
from jellybean_solver.model.accuracy import Margins
from jellybean_solver.model.workflow import Workflow

UTILISATION = 0.8
CLOUD_SPEED = 12.0  # over that of a site's workers


def unlike_sites(
    seed: int, sites: int, *, operators: int = 10, variants: int = 4, cloud: int = 6, share: float = 0.6
) -> Problem:
    """Each site is a workflow. The cloud's workers suffice for `share` of all work, so what goes there is contested."""
    rng = random.Random(f"unlike-sites/{seed}")
    graph = Graph.drawn(rng, operators, variants)
    near, far = worker_types(rng, "e", 6, 1.0), worker_types(rng, "c", cloud, CLOUD_SPEED)
    suits = suited(rng, (*near, *far), operators, variants)
    sources: list[Source] = []
    planned: list[Operator] = []
    pools: list[Pool] = []
    links: list[Link] = []
    workflows: list[Workflow] = []
    for number in range(sites):
        name, tier = f"s{number}", f"site-{number}"
        rate = 2.0 * rng.lognormvariate(0.0, 0.6)
        own = {f"{tier}-{kind.name}": kind for kind in rng.sample(near, rng.choice((1, 2)))}
        for pool, kind in own.items():
            price = round(kind.usd_per_h * rng.uniform(0.9, 1.1), 4)
            pools.append(Pool(pool, tier, rng.randint(1, 4), price, Sharing.SHARED))
        sources.append(Source(f"{name}/camera", tier, rate, rng.uniform(2e5, 1e6)))
        bandwidth = rng.uniform(0.5, 3.0) * rate * 3e5
        links.append(Link(tier, "cloud", rng.uniform(0.01, 0.12), bandwidth, rng.uniform(0.002, 0.05)))
        planned += graph.operators(name, f"{name}/camera", own | {kind.name: kind for kind in far}, suits)
        workflows.append(Workflow(name, Slo(accuracy=graph.target(name, rng))))
    work = graph.work * sum(source.rate_per_s for source in sources)
    each = work * share / UTILISATION / cloud
    pools += [
        Pool(kind.name, "cloud", max(1, round(each / kind.speed)), kind.usd_per_h, Sharing.SHARED) for kind in far
    ]
    return Problem(
        name=f"unlike-sites-{seed}",
        tiers=(*(source.tier for source in sources), "cloud"),
        sources=tuple(sources),
        operators=tuple(planned),
        pools=tuple(pools),
        links=tuple(links),
        accuracy=Margins({workflow.name: graph.accuracy(workflow.name) for workflow in workflows}),
        slo=Slo(),
        utilisation=UTILISATION,
        workflows=tuple(workflows),
    )
