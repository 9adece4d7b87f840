"""One plan of two: of workflows that stay, and of others on what these left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jellybean_solver.beside.after_losses import PartAfterLosses
from jellybean_solver.beside.kept import Kept
from jellybean_solver.beside.left_over import LeftOver
from jellybean_solver.model.left_out import served
from jellybean_solver.model.loss import RoutesAfterLoss, losses, with_routes_of_one_workflow
from jellybean_solver.model.plan import Fallback, Plan, PlannedOperator, PlannedWorker, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.spreading import identical_workers
from jellybean_solver.model.stated_figures import with_figures

SAME_WEIGHT = 1e-9  # of routes: closer weights are the same


def merged(problem: Problem, kept: Kept, added: Plan, left: LeftOver) -> Plan:
    """The plan of all workflows of the problem: the kept workers have their names, new ones get free ones.

    Its cost, accuracies and certificate are placeholders.
    """
    problem = served(problem, added)
    new = _on_fleet(kept.plan, added, left)
    stays = kept.plan
    if problem.is_for_ways or new.mixes or stays.mixes:
        new, stays = with_routes_of_one_workflow(new, new), with_routes_of_one_workflow(stays, stays)
    staff = dict(stays.worker_by_name)
    for worker in new.workers:
        before = staff.get(worker.name)
        variants = worker.variants if before is None else {**before.variants, **worker.variants}
        staff[worker.name] = replace(worker, variants=variants)
    planned = {one.name: one for one in (*stays.operators, *new.operators)}
    place = {pool.name: number for number, pool in enumerate(problem.pools)}
    plan = replace(
        new,
        operators=tuple(planned[operator.name] for operator in problem.operators),
        workers=tuple(sorted(staff.values(), key=lambda worker: place[worker.pool])),
        routes=(*stays.routes, *new.routes),
        workflows=(*stays.workflows, *new.workflows),
        stale_profiles=problem.stale_profiles,
        spread={},
        fallbacks=(),
    )
    is_spread = problem.may_mix and not problem.survives
    plan = with_fallbacks(problem, with_figures(problem, plan), (stays, new))
    return replace(plan, spread=identical_workers(plan) if is_spread else {})


def with_fallbacks(problem: Problem, plan: Plan, parts: Sequence[Plan]) -> Plan:
    """The plan, whose requests take after each loss the routes that its parts planned for it."""
    return replace(plan, fallbacks=tuple(_fallbacks(problem, replace(plan, fallbacks=()), parts)))


def _fallbacks(problem: Problem, plan: Plan, parts: Sequence[Plan]) -> Sequence[Fallback]:
    found, is_needed = [], False
    whole, after = RoutesAfterLoss(problem, plan), [PartAfterLosses(problem, part) for part in parts]
    for loss in losses(plan, problem.survives):
        weights = tuple(weight for one in after for weight in one.weights(loss))
        spread = whole.weights(loss)
        is_other = any(abs(one - other) > SAME_WEIGHT for one, other in zip(weights, spread, strict=True))
        is_needed = is_needed or is_other
        found.append(Fallback(str(loss), whole.closed(loss), weights if is_other else ()))
    return found if is_needed else ()


def _on_fleet(kept: Plan, added: Plan, left: LeftOver) -> Plan:
    """The plan of the added workflows with the workers' names and pools in the plan of all."""
    names = dict(_names(kept, added, left))
    known = kept.worker_by_name
    pool_of = {one.name: known[own].pool if (own := names[one.name]) in known else one.pool for one in added.workers}
    return replace(
        added,
        operators=tuple(_renamed(operator, added, pool_of) for operator in added.operators),
        workers=tuple(replace(one, name=names[one.name], pool=pool_of[one.name]) for one in added.workers),
        routes=tuple(_route(route, names) for route in added.routes),
        fallbacks=tuple(replace(one, lost=names.get(one.lost, one.lost)) for one in added.fallbacks),
    )


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
    """The operator with the batch sizes by pool of the fleet."""
    runs = [worker for worker in added.workers if operator.name in worker.rates_per_s]

    def of(one: PlannedOperator) -> PlannedOperator:
        batch = {pool_of[worker.name]: one.batch[worker.pool] for worker in runs if worker.pool in one.batch}
        return replace(one, batch=batch, others=())

    first, *others = (of(one) for one in operator.variants)
    return replace(first, others=tuple(others))


def _route(route: Route, names: Mapping[str, str]) -> Route:
    return Route(route.weight, {operator: names[worker] for operator, worker in route.workers.items()})
