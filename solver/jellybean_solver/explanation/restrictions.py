"""Restricted problems: a variant, tier or pool forced or forbidden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jellybean_solver.beside.left_over import Rest, with_profiles
from jellybean_solver.model.plan import Cost, Plan, PlannedOperator
from jellybean_solver.model.problem import Objective, Pool, Problem
from jellybean_solver.model.resources import without_price
from jellybean_solver.model.workflow import Operator, Variant
from jellybean_solver.replanning.rescore import rescore


def force_variant(problem: Problem, operator: str, variant: str) -> Problem:
    """The problem in which the operator must use this variant: whole, cut, or a cascade of this name."""

    def forced(own: Operator) -> Operator:
        variants = tuple(one for one in own.variants if one.name == variant)
        return replace(own, variants=variants, forms=tuple(form for form in own.forms if form.variant == variant))

    return _with_operator(problem, operator, forced)


def force_pools(problem: Problem, operator: str, pools: frozenset[str]) -> Problem:
    """The problem in which the operator, or a part of a form of one, must run in these pools."""

    def kept(variant: Variant) -> Variant:
        return replace(variant, service={pool: times for pool, times in variant.service.items() if pool in pools})

    return _with_operator(problem, operator, lambda own: own.with_variants(kept))


def forbid_tier(problem: Problem, tier: str) -> Problem:
    """The problem without the workers of a tier."""
    return replace(problem, pools=tuple(pool for pool in problem.pools if pool.tier != tier))


def forbid_pool(problem: Problem, name: str) -> Problem:
    """The problem without the workers of a pool."""
    return replace(problem, pools=tuple(pool for pool in problem.pools if pool.name != name))


def runs_at(operator: Operator, pools: frozenset[str]) -> bool:
    """True if some variant of the operator, or of a part of its forms, has a profile in some of the pools."""
    return any(pool in pools for part in operator.parts for variant in part.variants for pool in variant.service)


def with_prepaid_worker(problem: Problem, pool: Pool) -> Problem:
    """The problem with one worker of a pool for free, and without a budget.

    Its optimal cost plus the worker's price is the least cost of all plans that pay for a worker of the pool, idle or
    not. The caller compares that cost with the budget. Where the accuracy is maximised, the budget is what is left.
    """
    paid = replace(without_price(pool), name=_paid(pool), count=1)
    rest = replace(pool, count=pool.count - 1)
    pools = tuple(item for other in problem.pools for item in ((paid, rest) if other == pool else (other,)))
    budget = problem.slo.budget_usd_per_h if problem.objective is Objective.MEAN_ACCURACY else None
    left = None if budget is None else budget - problem.unit_usd_per_h(pool)
    slo = replace(problem.slo, budget_usd_per_h=left)
    each = problem.sites_of(pool.tier)
    most = {name: limit - each * pool.uses.get(name, 0.0) for name, limit in problem.most.items()}
    alike = [Rest(paid, pool.name, 1.0, ())]  # the same profiles
    operators = tuple(one.with_variants(lambda own: with_profiles(own, alike)) for one in problem.operators)
    return replace(problem, pools=tuple(p for p in pools if p.count > 0), operators=operators, slo=slo, most=most)


def with_price_paid(problem: Problem, pool: Pool, plan: Plan) -> Plan:
    """Convert a plan of `with_prepaid_worker` back to the original problem: worker's name and price, targets."""
    paid, price = _paid(pool), problem.unit_usd_per_h(pool)

    def named(operator: PlannedOperator) -> PlannedOperator:
        batch = {pool.name if name == paid else name: size for name, size in operator.batch.items()}
        return replace(operator, batch=batch, others=tuple(map(named, operator.others)))

    workers = tuple(replace(one, pool=pool.name) if one.pool == paid else one for one in plan.workers)
    draft = replace(plan, workers=workers, operators=tuple(map(named, plan.operators)))
    stated, _, _ = rescore(problem, draft)
    cost = Cost(plan.cost.compute_usd_per_h + price, plan.cost.network_usd_per_h)  # also if it is idle
    return replace(stated, cost=cost, certificate=plan.certificate.with_cost(price))


def _paid(pool: Pool) -> str:
    return f"{pool.name} (one paid)"  # no name in a document holds a space


def _with_operator(problem: Problem, name: str, change: Callable[[Operator], Operator]) -> Problem:
    """The problem with an operator changed, or a part of forms, one of which must be chosen then."""

    def changed(operator: Operator) -> Operator:
        if operator.name == name:
            return change(operator)
        if all(part.name != name for part in operator.parts):
            return operator
        forms = tuple(
            replace(form, operators=tuple(change(part) if part.name == name else part for part in form.operators))
            for form in operator.forms
            if any(part.name == name for part in form.operators)
        )
        return replace(operator, variants=(), forms=forms)

    return replace(problem, operators=tuple(map(changed, problem.operators)))
