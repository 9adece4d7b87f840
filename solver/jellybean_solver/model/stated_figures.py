"""Figures of a plan that follow from the problem and the plan's variants, batch sizes, workers and routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.audit import PlannedAudit
from jellybean_solver.model.flows import worker_shares
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.planned_audits import planned_audits
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.selection_shares import routes_by_selection
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.model.workflow import Edge, EdgeKind


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
    operators = {operator.name: _operator(problem, operator, runs[operator.name], rates) for operator in plan.operators}

    def busy(worker: PlannedWorker, name: str) -> float:
        planned = operators[name]
        if name in worker.variants:
            planned = planned.with_variant(worker.variants[name])
        return worker.rates_per_s[name] * planned.request_s(worker.pool)

    return replace(
        plan,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(operators.values()),
        workers=tuple(replace(w, load=sum(busy(w, name) for name in w.rates_per_s)) for w in workers),
        links=problem.links,
        slo=problem.slo,
        utilisation=problem.utilisation,
        hop_s=problem.hop_s,
        sites={tier: count for tier, count in problem.sites.items() if count > 1},
        audit=_audit(problem, plan),
    )


def _audit(problem: Problem, plan: Plan) -> PlannedAudit | None:
    """The audit of the only workflow; those of several are stated with their accuracies."""
    if problem.audit is None:
        return None
    parts = [(selection, sum(route.weight for route in routes)) for selection, routes in routes_by_selection(plan)]
    return planned_audits(problem, plan, parts)[""]


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
    tier_of = {worker.name: worker.tier for worker in plan.workers}
    edges: dict[str, tuple[Edge, ...]] = {}
    for selection, routes in routes_by_selection(plan):
        own = settled(problem, selection)
        share = sum(route.weight for route in routes) if plan.mixes else 1.0
        for name in selection:
            by_operator[name] = by_operator.get(name, 0.0) + share * own.rate_per_s[name]
        for (name, worker), weight in worker_shares(routes).items():
            if name in own.operator_by_name:
                rate = own.rate_per_s[name] * weight / own.sites_of(tier_of.get(worker, ""))
                known = by_worker.setdefault(worker, {})
                known[name] = known.get(name, 0.0) + rate
        edges |= {operator.name: operator.inputs for operator in own.operators if operator.name in selection}
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
    if pool is None:
        return worker
    return replace(
        worker,
        price_usd_per_h=pool.price_usd_per_h,
        sharing=pool.sharing,
        memory_bytes=pool.memory_bytes,
        speed=pool.speed,
        device=pool.device,
        device_options=pool.device_options,
        device_memory_bytes=pool.device_memory_bytes,
        terms=pool.terms,
    )


def _operator(
    problem: Problem, planned: PlannedOperator, runs: Sequence[PlannedWorker], rates: _Rates
) -> PlannedOperator:
    """The operator with the figures of its variants. `runs`: the workers that run it."""
    name = planned.name
    if not planned.others:
        return _of_variant(problem, planned, runs, rates)
    found = [
        replace(
            _of_variant(problem, one, [w for w in runs if w.variants[name] == one.variant], rates),
            ratios=dict(problem.operator_by_name[name].variant(one.variant).ratios),
            others=(),
        )
        for one in planned.variants
    ]
    return replace(found[0], others=tuple(found[1:]))


def _of_variant(
    problem: Problem, planned: PlannedOperator, workers: Sequence[PlannedWorker], rates: _Rates
) -> PlannedOperator:
    operator = problem.operator_by_name[planned.name]
    variant = operator.variant(planned.variant)
    pools = dict.fromkeys(worker.pool for worker in workers)
    service = {}
    for pool in pools:
        times, batch = variant.service.get(pool, {}), planned.batch[pool]
        known = {size: times[size] for size in sorted(times) if size <= batch}
        service[pool] = known if batch in known else planned.service[pool]
    return replace(
        planned,
        inputs=rates.edges[planned.name],
        rate_per_s=rates.by_operator[planned.name],
        batch={pool: planned.batch[pool] for pool in pools},
        service=service,
        message_bytes=dict(variant.message_bytes),
        memory_bytes={pool: variant.memory_bytes[pool] for pool in pools if pool in variant.memory_bytes},
        device_memory_bytes={
            pool: variant.device_memory_bytes[pool] for pool in pools if pool in variant.device_memory_bytes
        },
        children=variant.children,
        stage=variant.stage,
        state=operator.state,
    )
