"""A problem, or a plan, without its audits: what is left after a loss, when audits are shed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem

T = TypeVar("T")


def without_audits(problem: Problem) -> Problem:
    """The problem with the requests of clients alone."""
    if not problem.audits:
        return problem
    return replace(
        problem,
        **problem.nodes(lambda name: not problem.is_of_audit(name)),
        workflows=tuple(replace(workflow, audit=None) for workflow in problem.workflows),
        audit=None,
    )


def plan_without_audits(of: Problem | Plan, plan: Plan) -> Plan:
    """The plan with the requests of clients alone, on the same routes; workers that only audits use are left out.

    `of`: whose audits they are; a plan knows them too, once it is scored.
    """
    if not of.audits:
        return plan
    audits = {name for name in plan.operator_by_name if of.is_of_audit(name)}

    def served(of: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in of.items() if name not in audits}

    routes = tuple(replace(route, workers=served(route.workers)) for route in plan.routes)
    used = {worker for route in routes for worker in route.workers.values()}
    return replace(
        plan,
        **plan.nodes(lambda name: not of.is_of_audit(name)),
        routes=routes,
        workers=tuple(
            replace(worker, rates_per_s=served(worker.rates_per_s)) for worker in plan.workers if worker.name in used
        ),
        workflows=tuple(replace(workflow, audit=None) for workflow in plan.workflows),
        audit=None,
    )
