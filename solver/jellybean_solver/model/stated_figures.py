"""Figures of a plan that follow from the problem and the plan's variants, batch sizes, workers and routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jellybean_solver.model.flows import WorkerShares, worker_shares
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.problem import Problem


def with_figures(problem: Problem, plan: Plan) -> Plan:
    """The plan with the problem's rates, prices, profiles and targets; its choices, models and cost do not change.

    `problem` must have the fan-out ratios of the plan's variants. A worker of a pool that is unknown to the problem
    keeps its price; an operator without a profile at its batch size keeps its service times. Loads follow from the new
    rates.
    """
    shares = worker_shares(plan.routes)
    workers = [_worker(problem, worker, shares) for worker in plan.workers]
    operators = {operator.name: _operator(problem, operator, workers) for operator in plan.operators}
    return replace(
        plan,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=tuple(operators.values()),
        workers=tuple(
            replace(w, load=sum(rate * operators[name].request_s(w.pool) for name, rate in w.rates_per_s.items()))
            for w in workers
        ),
        links=problem.links,
        slo=problem.slo,
        utilisation=problem.utilisation,
        hop_s=problem.hop_s,
        sites={tier: count for tier, count in problem.sites.items() if count > 1},
    )


def _worker(problem: Problem, worker: PlannedWorker, shares: WorkerShares) -> PlannedWorker:
    sites = problem.sites.get(worker.tier, 1)
    served = [name for name in problem.operator_by_name if (name, worker.name) in shares]
    rates = {name: problem.rate_per_s[name] * shares[name, worker.name] / sites for name in served}
    pool = problem.pool_by_name.get(worker.pool)
    if pool is None:
        return replace(worker, rates_per_s=rates)
    return replace(
        worker,
        rates_per_s=rates,
        price_usd_per_h=pool.price_usd_per_h,
        sharing=pool.sharing,
        memory_bytes=pool.memory_bytes,
        speed=pool.speed,
        device=pool.device,
        device_options=pool.device_options,
        device_memory_bytes=pool.device_memory_bytes,
    )


def _operator(problem: Problem, planned: PlannedOperator, workers: Sequence[PlannedWorker]) -> PlannedOperator:
    operator = problem.operator_by_name[planned.name]
    variant = operator.variant(planned.variant)
    pools = dict.fromkeys(worker.pool for worker in workers if planned.name in worker.rates_per_s)
    service = {}
    for pool in pools:
        times, batch = variant.service.get(pool, {}), planned.batch[pool]
        known = {size: times[size] for size in sorted(times) if size <= batch}
        service[pool] = known if batch in known else planned.service[pool]
    return replace(
        planned,
        inputs=operator.inputs,
        rate_per_s=problem.rate_per_s[planned.name],
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
