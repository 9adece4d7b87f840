"""A plan as today's problem sees it: the same choices, workers and routes, with today's rates, prices and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from jellybean_solver.evaluate import Evaluation, evaluate
from jellybean_solver.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.problem import Operator, Problem, Times, Variant


def restated(problem: Problem, plan: Plan) -> tuple[Plan, Evaluation, tuple[str, ...]]:
    """The plan, its score and why it is no answer to the problem (empty when it is one).

    What the problem does not know (a pool, an operator, a variant) stays as it was and is complained about; models stay
    those that run.
    """
    wrong = tuple(_other_models(problem, plan))
    operators = tuple(_operator(problem, plan, operator) for operator in plan.operators)
    found = replace(
        plan,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=operators,
        links=problem.links,
        slo=problem.slo,
        utilisation=problem.utilisation,
        hop_s=problem.hop_s,
    )
    shares: dict[str, dict[str, float]] = {}
    for route in plan.routes:
        for name, worker in route.workers.items():
            served = shares.setdefault(worker, {})
            served[name] = served.get(name, 0.0) + route.weight
    found = replace(
        found, workers=tuple(_worker(problem, found, worker, shares.get(worker.name, {})) for worker in plan.workers)
    )
    score = evaluate(problem, found)
    loaded = replace(
        found,
        workers=tuple(replace(worker, load=score.loads[worker.name]) for worker in found.workers),
        cost=score.cost,
        accuracy=score.accuracy,
    )
    return loaded, score, (*wrong, *score.complaints)


def _other_models(problem: Problem, plan: Plan) -> Iterator[str]:
    for planned in plan.operators:
        operator = problem.operator_by_name.get(planned.name)
        variants = {variant.name: variant for variant in operator.variants} if operator is not None else {}
        variant = variants.get(planned.variant)
        if variant is None:
            continue  # `evaluate` says so
        before = planned.model.sha256 if planned.model is not None else None
        now = variant.model.sha256 if variant.model is not None else None
        if before != now:
            yield (
                f"{planned.name} runs another file of variant {planned.variant}: SHA-256 {(before or 'none')[:12]}, "
                f"now {(now or 'none')[:12]}"
            )


def _operator(problem: Problem, plan: Plan, planned: PlannedOperator) -> PlannedOperator:
    operator = problem.operator_by_name.get(planned.name)
    if operator is None or planned.variant not in {variant.name for variant in operator.variants}:
        return planned
    return _with_figures(problem, plan, planned, operator)


def _with_figures(problem: Problem, plan: Plan, planned: PlannedOperator, operator: Operator) -> PlannedOperator:
    variant = operator.variant(planned.variant)
    pools = dict.fromkeys(worker.pool for worker in plan.workers if planned.name in worker.rates_per_s)
    service = {pool: _times(variant, pool, planned) for pool in pools}
    return replace(
        planned,
        inputs=operator.inputs,
        rate_per_s=problem.rate_per_s[planned.name],
        service=service,
        message_bytes=dict(variant.message_bytes),
        memory_bytes={pool: variant.memory_bytes[pool] for pool in pools if pool in variant.memory_bytes},
        children=variant.children,
    )


def _times(variant: Variant, pool: str, planned: PlannedOperator) -> Times:
    """Of the batch sizes that the plan may run; as it states them where the problem has none, as `evaluate` says."""
    batch, times = planned.batch[pool], variant.service.get(pool, {})
    return {size: time for size, time in times.items() if size <= batch} if batch in times else planned.service[pool]


def _worker(problem: Problem, plan: Plan, worker: PlannedWorker, shares: Mapping[str, float]) -> PlannedWorker:
    rates = {name: plan.operator_by_name[name].rate_per_s * share for name, share in shares.items()}
    pool = problem.pool_by_name.get(worker.pool)
    if pool is None:
        return replace(worker, rates_per_s=rates)
    return replace(
        worker,
        price_usd_per_h=pool.price_usd_per_h,
        sharing=pool.sharing,
        rates_per_s=rates,
        memory_bytes=pool.memory_bytes,
        speed=pool.speed,
    )
