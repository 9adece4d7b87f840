"""A lower bound on what plans of whole models cost, without a search."""

from __future__ import annotations

import math

from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import Operator, request_s


def least_usd_per_h_of_work(problem: Problem) -> float:
    """Lower bound on the cost of all plans of whole models: each operator's requests where they are cheapest.

    Accuracy, the number of workers and traffic are left out. A workflow that may be left out counts at most what it is
    worth, so that the bound is one on cost and worth together.
    """
    least: dict[str, float] = {}
    for operator in problem.operators:
        name = problem.workflow_of(operator.name)
        least[name] = least.get(name, 0.0) + _least_of(problem, operator)
    for workflow in problem.workflows:
        if workflow.worth_usd_per_h is not None:
            least[workflow.name] = min(workflow.worth_usd_per_h, least.get(workflow.name, 0.0))
    return math.fsum(least.values())


def _least_of(problem: Problem, operator: Operator) -> float:
    """USD per hour of the busy time of an operator's requests, with the variant and pool where it is the least."""
    per_s = problem.rate_per_s[operator.name] / problem.utilisation
    prices = (
        per_s * request_s(times, max(times)) / problem.sites_of(pool.tier) * problem.unit_usd_per_h(pool)
        for variant in operator.variants
        for name in variant.service
        if (pool := problem.pool_by_name.get(name)) and (times := problem.times(operator.name, variant, name))
    )
    return min(prices, default=0.0)
