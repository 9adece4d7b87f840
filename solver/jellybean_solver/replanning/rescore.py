"""Rescoring a plan by today's problem: the same choices, workers and routes, at today's rates, prices and profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from jellybean_solver.model.evaluate import Evaluation, evaluate
from jellybean_solver.model.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.model.problem import Problem, Times, Variant
from jellybean_solver.model.variant_ratios import settled


def rescore(problem: Problem, plan: Plan) -> tuple[Plan, Evaluation, tuple[str, ...]]:
    """The rescored plan, its evaluation, and why it no longer answers the problem (empty if it does).

    A plan with operators or variants unknown to the problem stays as written, with its own cost. Workers of a removed
    pool stay; models stay those that run.
    """
    if not _is_known(problem, plan):
        score = evaluate(problem, plan)
        return plan, score, score.complaints
    problem = settled(problem, plan.selection)
    wrong = tuple(_other_models(problem, plan))
    operators = tuple(_with_figures(problem, plan, operator) for operator in plan.operators)
    found = replace(
        plan,
        tiers=problem.tiers,
        sources=problem.sources,
        operators=operators,
        links=problem.links,
        slo=problem.slo,
        utilisation=problem.utilisation,
        hop_s=problem.hop_s,
        sites={tier: count for tier, count in problem.sites.items() if count > 1},
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
    loaded = tuple(replace(worker, load=score.loads[worker.name]) for worker in found.workers)
    return replace(score.stated(found), workers=loaded), score, (*wrong, *score.complaints)


def _is_known(problem: Problem, plan: Plan) -> bool:
    known = {operator.name: {variant.name for variant in operator.variants} for operator in problem.operators}
    return known.keys() == plan.selection.keys() and all(
        chosen in known[name] for name, chosen in plan.selection.items()
    )


def _other_models(problem: Problem, plan: Plan) -> Iterator[str]:
    for planned in plan.operators:
        variant = problem.operator_by_name[planned.name].variant(planned.variant)
        before = planned.model.sha256 if planned.model is not None else None
        now = variant.model.sha256 if variant.model is not None else None
        if before != now:
            yield (
                f"{planned.name} runs another file of variant {planned.variant}: SHA-256 {(before or 'none')[:12]}, "
                f"now {(now or 'none')[:12]}"
            )


def _with_figures(problem: Problem, plan: Plan, planned: PlannedOperator) -> PlannedOperator:
    operator = problem.operator_by_name[planned.name]
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
        stage=variant.stage,
    )


def _times(variant: Variant, pool: str, planned: PlannedOperator) -> Times:
    """Service times up to the plan's batch size; the plan's own if the problem has none for that size."""
    batch, times = planned.batch[pool], variant.service.get(pool, {})
    return {size: time for size, time in times.items() if size <= batch} if batch in times else planned.service[pool]


def _worker(problem: Problem, plan: Plan, worker: PlannedWorker, shares: Mapping[str, float]) -> PlannedWorker:
    sites = problem.sites.get(worker.tier, 1)
    rates = {name: plan.operator_by_name[name].rate_per_s * share / sites for name, share in shares.items()}
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
