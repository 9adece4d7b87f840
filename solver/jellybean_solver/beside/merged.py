"""One plan of two: of workflows that stay, and of others on what these left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from jellybean_solver.beside.kept import Kept
from jellybean_solver.beside.left_over import LeftOver
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Certificate, Plan, PlannedOperator, PlannedWorker, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures


def merged(problem: Problem, kept: Kept, added: Plan, left: LeftOver, certificate: Certificate) -> Plan:
    """The plan of all workflows of the problem: the kept workers have their names, new ones get free ones.

    Its cost and accuracies are placeholders; `evaluate` computes them. Only figures of the added workflows are computed
    here: those of the kept ones did not change.
    """
    new = _on_fleet(restricted(problem, kept.planned), kept.plan, added, left)
    staff = {worker.name: worker for worker in kept.plan.workers}
    for worker in new.workers:
        before = staff.get(worker.name)
        staff[worker.name] = worker if before is None else _both(before, worker)
    planned = {one.name: one for one in (*kept.plan.operators, *new.operators)}
    place = {pool.name: number for number, pool in enumerate(problem.pools)}
    return replace(
        new,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(planned[operator.name] for operator in problem.operators),
        workers=tuple(sorted(staff.values(), key=lambda worker: place[worker.pool])),
        routes=(*kept.plan.routes, *new.routes),
        certificate=certificate,
        stale_profiles=problem.stale_profiles,
    )


def _both(before: PlannedWorker, worker: PlannedWorker) -> PlannedWorker:
    """A worker with the operators of the kept workflows and those of the added ones."""
    return replace(before, rates_per_s={**before.rates_per_s, **worker.rates_per_s}, load=before.load + worker.load)


def _on_fleet(problem: Problem, kept: Plan, added: Plan, left: LeftOver) -> Plan:
    """The plan of the added workflows with the workers' names and pools in the plan of all, and the figures there."""
    names = dict(_names(kept, added, left))
    workers = []
    for worker in added.workers:
        before = kept.worker_by_name.get(names[worker.name])
        workers.append(replace(worker, name=names[worker.name], pool=worker.pool if before is None else before.pool))
    pool_of = {one.name: worker.pool for one, worker in zip(added.workers, workers, strict=True)}
    draft = replace(
        added,
        operators=tuple(_renamed(operator, added, pool_of) for operator in added.operators),
        workers=tuple(workers),
        routes=tuple(_route(route, names) for route in added.routes),
    )
    return with_figures(problem, draft)


def _names(kept: Plan, added: Plan, left: LeftOver) -> Iterator[tuple[str, str]]:
    """Each worker of `added` with its name in the plan of all."""
    taken = set(kept.worker_by_name)
    rests = {pool: iter(workers) for pool, workers in left.workers.items()}
    for worker in added.workers:
        if worker.pool in rests:
            yield worker.name, next(rests[worker.pool])
        else:
            yield worker.name, _free_name(worker, taken)


def _free_name(worker: PlannedWorker, taken: set[str]) -> str:
    number = 1
    while (name := f"{worker.pool}-{number}") in taken:
        number += 1
    taken.add(name)
    return name


def _renamed(operator: PlannedOperator, added: Plan, pool_of: Mapping[str, str]) -> PlannedOperator:
    """The operator with the batch sizes by pool of the fleet; with_figures fills in what else is by pool."""
    runs = [worker for worker in added.workers if operator.name in worker.rates_per_s]
    batch = {pool_of[worker.name]: operator.batch[worker.pool] for worker in runs}
    return replace(operator, batch=batch, service={}, memory_bytes={}, device_memory_bytes={})


def _route(route: Route, names: Mapping[str, str]) -> Route:
    return Route(route.weight, {operator: names[worker] for operator, worker in route.workers.items()})
