"""Is a plan possible? Worker by worker and link by link, from the routes up, sharing no code with the solver.

Of alike sites one is looked at; `site_check.py` names them all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from jellybean_solver import Plan, Problem, Route, Variant
from tests.brute_force import rates as reference_rates

LITTLE = 1e-6


def complaints(problem: Problem, plan: Plan) -> list[str]:
    """Everything that a worker or a link could not do, in words; empty when all is well."""
    return [*_workers(problem, plan), *_links(problem, plan), *_counts(problem, plan), *_batches(problem, plan)]


def _selections(plan: Plan) -> Iterator[tuple[Route, dict[str, str]]]:
    """Each route with the variants that its requests get: the first of an operator, or what its worker states."""
    of_worker = {worker.name: worker.variants for worker in plan.workers}
    first = {operator.name: operator.variant for operator in plan.operators}
    for route in plan.routes:
        yield route, {name: of_worker[worker].get(name, first[name]) for name, worker in route.workers.items()}


def _variant(problem: Problem, name: str, chosen: str) -> Variant:
    return next(v for v in problem.operator_by_name[name].variants if v.name == chosen)


def _workers(problem: Problem, plan: Plan) -> Iterator[str]:
    pools = {pool.name: pool for pool in problem.pools}
    pool_of = {worker.name: pools[worker.pool] for worker in plan.workers}
    batch = {(o.name, one.variant): one.batch for o in plan.operators for one in (o, *o.others)}
    served: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    held: dict[str, dict[str, str]] = defaultdict(dict)
    for route, selection in _selections(plan):
        rates = reference_rates.rates(problem, selection, route.workers)
        for name, worker in route.workers.items():
            pool, chosen = pool_of[worker].name, selection[name]
            size = batch[name, chosen][pool]
            served[name] += route.weight
            held[worker][name] = chosen
            busy[worker] += (
                route.weight * rates[name] * _variant(problem, name, chosen).service[pool][size].load_s / size
            )
    for name in (operator.name for operator in problem.operators):
        if abs(served[name] - 1.0) > LITTLE:
            yield f"{served[name]:.6f} of the requests of {name} are served"
    for worker, models in held.items():
        pool = pool_of[worker]
        needed = sum(_variant(problem, *one).memory_bytes.get(pool.name, 0.0) for one in models.items())
        if pool.memory_bytes is not None and needed > pool.memory_bytes * (1 + LITTLE):
            yield f"{worker} holds {needed:.0f} of {pool.memory_bytes:.0f} bytes"
        if busy[worker] / problem.sites.get(pool.tier, 1) > problem.utilisation * (1 + LITTLE):
            yield f"{worker} is busy {busy[worker] / problem.sites.get(pool.tier, 1):.6f} of the time"
        if pool.sharing.value == "exclusive" and len(models) > 1:
            yield f"{worker} serves {len(models)} operators"


def _links(problem: Problem, plan: Plan) -> Iterator[str]:
    tier = {worker.name: worker.tier for worker in plan.workers}
    sources = {source.name: source for source in problem.sources}
    limits = {(link.upstream_tier, link.downstream_tier): link.bandwidth_bytes_per_s for link in problem.links}
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for route, selection in _selections(plan):
        rates = reference_rates.rates(problem, selection, route.workers)
        for operator in (problem.operator_by_name[name] for name in route.workers):
            for edge in operator.inputs:
                upstream = sources.get(edge.upstream)
                if upstream is not None:
                    size, there = upstream.message_bytes, upstream.tier
                else:
                    of = _variant(problem, edge.upstream, selection[edge.upstream])
                    size, there = of.message_bytes[operator.name], tier[route.workers[edge.upstream]]
                messages = rates[edge.upstream] * reference_rates.rows(problem, edge, selection)
                here = tier[route.workers[operator.name]]
                if here != there:
                    sent[there, here] += route.weight * messages * size
    for pair, bytes_per_s in sent.items():
        one = bytes_per_s / problem.sites.get(pair[0], 1)
        if pair not in limits:
            yield f"data flows from {pair[0]} to {pair[1]}, where there is no link"
        elif (limit := limits[pair]) is not None and one > limit * (1 + LITTLE):
            yield f"{pair[0]} -> {pair[1]} carries {one:.0f} of {limit:.0f} bytes/s"


def _batches(problem: Problem, plan: Plan) -> Iterator[str]:
    kinds = [(edge, edge.kind.value) for operator in problem.operators for edge in operator.inputs]
    gathering = {edge.downstream for edge, kind in kinds if kind == "gather"}
    splitting = {edge.upstream for edge, kind in kinds if kind == "fan_out"}
    counting = {(o.name, v.name) for o in problem.operators for v in o.variants if v.counts_rows}
    for operator in (one for o in plan.operators for one in (o, *o.others)):
        gathers, splits = operator.name in gathering, operator.name in splitting
        for pool, size in operator.batch.items():
            if size > 1 and (gathers or splits) and (operator.name, operator.variant) not in counting:
                yield f"{operator.name} takes {size} requests at once on {pool}, but gathers or fans out"
            if size != max(operator.service[pool]) or 1 not in operator.service[pool]:
                yield f"{operator.name} on {pool}: times of {sorted(operator.service[pool])} for batches of {size}"


def _counts(problem: Problem, plan: Plan) -> Iterator[str]:
    counts = Counter(worker.pool for worker in plan.workers)
    for pool in problem.pools:
        used = counts[pool.name]
        if used > pool.count:
            yield f"{used} workers of {pool.name}, which has {pool.count}"
