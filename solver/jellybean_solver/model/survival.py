"""A plan after the loss of a worker: its requests take the routes that are left, in their proportions.

So does a gateway when an agent dies (the routes through it are closed), which makes every other worker busier. Children
are not spread any more, as a worker is missing in the round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures

MOST_LOSSES = 12  # losses that a judge sees, of one worker each; of more workers one of each group, the busiest


def without_worker(problem: Problem, plan: Plan, worker: str) -> Plan | None:
    """The plan without a worker, with the problem's figures; None if no route is left."""
    routes = [route for route in plan.routes if worker not in route.workers.values()]
    total = sum(route.weight for route in routes)
    if total <= 0:
        return None
    used = {name for route in routes for name in route.workers.values()}
    workers = tuple(replace(one, rates_per_s={}) for one in plan.workers if one.name in used)
    left = tuple(replace(route, weight=route.weight / total) for route in routes)
    return with_figures(problem, replace(plan, routes=left, workers=workers, spread={}))


def lost_workers(plan: Plan) -> Iterator[str]:
    """The workers whose loss is simulated: all, or of many workers the busiest of those with the same operators."""
    if len(plan.workers) <= MOST_LOSSES:
        yield from (worker.name for worker in plan.workers)
        return
    groups: dict[tuple[object, ...], list[tuple[float, str]]] = {}
    for worker in plan.workers:
        key = worker.pool, *sorted(worker.rates_per_s), *sorted(worker.variants.items())
        groups.setdefault(key, []).append((worker.load, worker.name))
    yield from (max(own)[1] for own in groups.values())
