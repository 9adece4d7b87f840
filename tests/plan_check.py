"""Is a plan possible? Worker by worker and link by link, from the routes up, sharing no code with the solver.

Of alike sites one is looked at; `site_check.py` names them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from tests.brute_force import rates as reference_rates

LITTLE = 1e-6


def complaints(problem: Problem, plan: Plan) -> list[str]:
    """Everything that a worker or a link could not do, in words; empty when all is well."""
    return [*_workers(problem, plan), *_links(problem, plan), *_counts(problem, plan), *_batches(problem, plan)]


def _workers(problem: Problem, plan: Plan) -> Iterator[str]:
    rates = reference_rates.rates(problem, plan.selection)
    pools = {pool.name: pool for pool in problem.pools}
    pool_of = {worker.name: pools[worker.pool] for worker in plan.workers}
    chosen = {o.name: o.variant for o in plan.operators}
    variants = {o.name: next(v for v in o.variants if v.name == chosen[o.name]) for o in problem.operators}
    batch = {o.name: o.batch for o in plan.operators}
    share: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for route in plan.routes:
        for name, worker in route.workers.items():
            share[worker][name] += route.weight
    for name in rates.keys() & variants.keys():
        served = sum(of[name] for of in share.values() if name in of)
        if abs(served - 1.0) > LITTLE:
            yield f"{served:.6f} of the requests of {name} are served"
    for worker, served_by_name in share.items():
        pool = pool_of[worker]
        held = sum(variants[name].memory_bytes.get(pool.name, 0.0) for name in served_by_name)
        if pool.memory_bytes is not None and held > pool.memory_bytes * (1 + LITTLE):
            yield f"{worker} holds {held:.0f} of {pool.memory_bytes:.0f} bytes"
        busy = sum(
            weight * rates[name] * variants[name].service[pool.name][size].load_s / size
            for name, weight in served_by_name.items()
            for size in [batch[name][pool.name]]
        )
        busy /= problem.sites.get(pool.tier, 1)
        if busy > problem.utilisation * (1 + LITTLE):
            yield f"{worker} is busy {busy:.6f} of the time"
        if pool.sharing.value == "exclusive" and len(served_by_name) > 1:
            yield f"{worker} serves {len(served_by_name)} operators"


def _links(problem: Problem, plan: Plan) -> Iterator[str]:
    rates = reference_rates.rates(problem, plan.selection)
    tier = {worker.name: worker.tier for worker in plan.workers}
    chosen = {o.name: o.variant for o in plan.operators}
    sources = {source.name: source for source in problem.sources}
    limits = {(link.upstream_tier, link.downstream_tier): link.bandwidth_bytes_per_s for link in problem.links}
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for operator in problem.operators:
        for edge in operator.inputs:
            upstream = sources.get(edge.upstream)
            if upstream is not None:
                size = upstream.message_bytes
            else:
                of = next(o for o in problem.operators if o.name == edge.upstream)
                size = next(v for v in of.variants if v.name == chosen[edge.upstream]).message_bytes[operator.name]
            messages = rates[edge.upstream] * reference_rates.rows(problem, edge, plan.selection)
            for route in plan.routes:
                here = tier[route.workers[operator.name]]
                there = upstream.tier if upstream is not None else tier[route.workers[edge.upstream]]
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
    for operator in plan.operators:
        gathers = any(kind == "gather" for edge, kind in kinds if edge.downstream == operator.name)
        splits = any(kind == "fan_out" for edge, kind in kinds if edge.upstream == operator.name)
        for pool, size in operator.batch.items():
            if size > 1 and (gathers or splits):
                yield f"{operator.name} takes {size} requests at once on {pool}, but gathers or fans out"
            if size != max(operator.service[pool]) or 1 not in operator.service[pool]:
                yield f"{operator.name} on {pool}: times of {sorted(operator.service[pool])} for batches of {size}"


def _counts(problem: Problem, plan: Plan) -> Iterator[str]:
    for pool in problem.pools:
        used = sum(worker.pool == pool.name for worker in plan.workers)
        if used > pool.count:
            yield f"{used} workers of {pool.name}, which has {pool.count}"
