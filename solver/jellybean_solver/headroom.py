"""Less load than the cap allows on some pools: what a latency needs that queues would break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jellybean_solver.plan import Plan, PlannedOperator, PlannedWorker
from jellybean_solver.problem import Problem, Variant

Shares = Mapping[str, float]  # pool -> share of the cap on utilisation that its workers may be loaded to


def with_headroom(problem: Problem, shares: Shares) -> Problem:
    """The problem in which a request counts for more where less load is allowed."""
    if not shares:
        return problem

    def slowed(variant: Variant) -> Variant:
        service = {
            pool: {size: replace(time, load_s=time.load_s / shares.get(pool, 1.0)) for size, time in times.items()}
            for pool, times in variant.service.items()
        }
        return replace(variant, service=service)

    operators = tuple(
        replace(operator, variants=tuple(slowed(variant) for variant in operator.variants))
        for operator in problem.operators
    )
    return replace(problem, operators=operators)


def in_own_figures(problem: Problem, plan: Plan) -> Plan:
    """A plan of a problem with headroom, or fewer batch sizes, with the service times and loads of the problem."""

    def restored(operator: PlannedOperator) -> PlannedOperator:
        known = problem.operator_by_name[operator.name].variant(operator.variant).service
        service = {pool: {size: known[pool][size] for size in times} for pool, times in operator.service.items()}
        return replace(operator, service=service)

    operators = {operator.name: restored(operator) for operator in plan.operators}

    def loaded(worker: PlannedWorker) -> PlannedWorker:
        load = sum(rate * operators[name].request_s(worker.pool) for name, rate in worker.rates_per_s.items())
        return replace(worker, load=load)

    return replace(
        plan,
        operators=tuple(operators.values()),
        workers=tuple(loaded(worker) for worker in plan.workers),
        utilisation=problem.utilisation,
    )
