"""Figures of a plan that follow from the problem and the plan's variants, batch sizes, workers and routes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.planned_audits import planned_audits
from jellybean_solver.model.problem import Pool, Problem
from jellybean_solver.model.selection_shares import routes_by_selection, shares_of_selections
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.model.workflow import Edge, EdgeKind

# What a worker has of its pool, by the names of the fields.
_OF_POOL = {one.name for one in fields(Pool)} & {one.name for one in fields(PlannedWorker)} - {"name", "tier"}


def with_figures(problem: Problem, plan: Plan) -> Plan:
    """The plan with the problem's rates, prices, profiles and targets; its choices, models and cost do not change.

    A worker of a pool that is unknown to the problem keeps its price; an operator without a profile at its batch size
    keeps its service times. Loads follow from the new rates.
    """
    rates = _rates(problem, plan)
    workers = [_worker(problem, worker, rates.by_worker.get(worker.name, {})) for worker in plan.workers]
    runs: dict[str, list[PlannedWorker]] = {operator.name: [] for operator in plan.operators}
    for worker in workers:
        for name in worker.rates_per_s:
            runs[name].append(worker)
    audits = {} if problem.workflows else planned_audits(problem, plan, shares_of_selections(plan))
    stated = replace(
        plan,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(_operator(problem, one, runs[one.name], rates) for one in plan.operators),
        workers=tuple(workers),
        links=problem.links,
        slo=problem.slo,
        utilisation=problem.utilisation,
        hop_s=problem.hop_s,
        sites={tier: count for tier, count in problem.sites.items() if count > 1},
        audit=audits.get(""),  # those of several workflows are stated with their accuracies
    )
    return replace(stated, workers=tuple(replace(worker, load=stated.load_of(worker)) for worker in workers))


@dataclass(frozen=True, slots=True)
class _Rates:
    """Requests per second. `by_worker`: worker -> operator -> in one site; `by_operator`: in all sites together.

    `edges`: operator -> its inputs, with the ratios of all requests together.
    """

    by_worker: Mapping[str, Mapping[str, float]]
    by_operator: Mapping[str, float]
    edges: Mapping[str, tuple[Edge, ...]]


def _rates(problem: Problem, plan: Plan) -> _Rates:
    by_worker: dict[str, dict[str, float]] = {}
    by_operator = {source.name: problem.rate_per_s[source.name] for source in problem.sources}
    edges: dict[str, tuple[Edge, ...]] = {}
    for selection, routes in routes_by_selection(plan):
        own = settled(problem, selection)
        share = sum(route.weight for route in routes) if plan.mixes else 1.0
        for name in selection:
            by_operator[name] = by_operator.get(name, 0.0) + share * own.rate_per_s[name]
            edges[name] = own.operator_by_name[name].inputs
        weights: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for route in routes:
            for key in route.workers.items():
                weights[key].append(route.weight)
        for (name, worker), parts in weights.items():
            rate = own.rate_per_s[name] * math.fsum(parts) / own.sites_of(plan.worker_by_name[worker].tier)
            known = by_worker.setdefault(worker, {})
            known[name] = known.get(name, 0.0) + rate
    if plan.mixes:
        edges = {name: tuple(_mean_ratio(edge, by_operator) for edge in own) for name, own in edges.items()}
    return _Rates(by_worker, by_operator, edges)


def _mean_ratio(edge: Edge, rates: Mapping[str, float]) -> Edge:
    """The edge with the ratio of all requests together: children of all selections per request of all of them."""
    if edge.kind is EdgeKind.EACH or rates[edge.upstream] == 0:
        return edge
    return replace(edge, ratio=rates[edge.downstream] / rates[edge.upstream])


def _worker(problem: Problem, worker: PlannedWorker, rates: Mapping[str, float]) -> PlannedWorker:
    """The worker with its rates (by operator), in the operators' order, and its pool's figures."""
    own = {name: rates[name] for name in sorted(rates, key=problem.position.__getitem__)}
    return with_pool_figures(problem, replace(worker, rates_per_s=own))


def with_pool_figures(problem: Problem, worker: PlannedWorker) -> PlannedWorker:
    """The worker with its pool's price, device, memory and speed; unchanged if the problem has no such pool."""
    pool = problem.pool_by_name.get(worker.pool)
    return worker if pool is None else replace(worker, **{name: getattr(pool, name) for name in _OF_POOL})


def _operator(
    problem: Problem, planned: PlannedOperator, runs: Sequence[PlannedWorker], rates: _Rates
) -> PlannedOperator:
    """The operator with the figures of its variants. `runs`: the workers that run it."""
    name = planned.name
    if not planned.others:
        return _of_variant(problem, planned, (worker.pool for worker in runs), rates)
    pools = [(worker.variants.get(name, planned.variant), worker.pool) for worker in runs]
    found = [
        replace(
            _of_variant(problem, one, (pool for variant, pool in pools if variant == one.variant), rates),
            ratios=dict(problem.operator_by_name[name].variant(one.variant).ratios),
            others=(),
        )
        for one in planned.variants
    ]
    return replace(found[0], others=tuple(found[1:]))


def _of_variant(problem: Problem, planned: PlannedOperator, pools: Iterable[str], rates: _Rates) -> PlannedOperator:
    """The operator with the figures of its first variant, in these pools."""
    operator = problem.operator_by_name[planned.name]
    variant = operator.variant(planned.variant)
    batch = {pool: planned.batch[pool] for pool in dict.fromkeys(pools) if pool in planned.batch}
    service = dict(planned.service)
    for pool, size in batch.items():
        times = variant.service.get(pool, {})
        if size in times:
            service[pool] = {own: times[own] for own in sorted(times) if own <= size}
    return replace(
        planned,
        inputs=rates.edges[planned.name],
        rate_per_s=rates.by_operator[planned.name],
        batch=batch,
        service={pool: service[pool] for pool in batch if pool in service},
        message_bytes=dict(variant.message_bytes),
        memory_bytes=_in(batch, variant.memory_bytes),
        device_memory_bytes=_in(batch, variant.device_memory_bytes),
        children=variant.children,
        stage=variant.stage,
        state=operator.state,
    )


def _in(pools: Iterable[str], table: Mapping[str, float]) -> Mapping[str, float]:
    return {pool: table[pool] for pool in pools if pool in table}
