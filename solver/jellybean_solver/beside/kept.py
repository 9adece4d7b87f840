"""The part of a running plan that stays as it is: the workflows whose figures are still those that it was made for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Plan, PlannedOperator, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_pool_figures
from jellybean_solver.model.variant_ratios import settled

SAME_RATE = 1e-9  # relative: rates of the documents and of a plan closer than this are equal


@dataclass(frozen=True)
class Kept:
    """`plan`: the running plan with these workflows alone. Names: `workflows` stay, `changed` have other figures now.

    `new` are only in the problem, `dropped` only in the running plan.
    """

    plan: Plan
    workflows: tuple[str, ...]
    changed: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def planned(self) -> tuple[str, ...]:
        """The workflows that are to be planned."""
        return (*self.changed, *self.new)


def kept_without(problem: Problem, plan: Plan, names: Collection[str]) -> Kept:
    """All of a problem's plan but the workflows called `names`, which are to be planned again."""
    every = [workflow.name for workflow in problem.workflows]
    kept = frozenset(every) - frozenset(names)
    changed = tuple(name for name in every if name in names)
    return Kept(_part(problem, plan, kept), tuple(name for name in every if name in kept), changed, (), ())


def kept_part(problem: Problem, before: Plan) -> Kept:
    """Compare a running plan with the problem, and take what is equal out of it."""
    here, there = [w.name for w in problem.workflows], {w.name for w in before.workflows}
    both = frozenset(here) & there
    different = both - frozenset(_unchanged(problem, before, both))
    workflows = both - different
    return Kept(
        _part(problem, before, workflows),
        tuple(name for name in here if name in workflows),
        tuple(name for name in here if name in different),
        tuple(name for name in here if name not in there),
        tuple(workflow.name for workflow in before.workflows if workflow.name not in here),
    )


def _unchanged(problem: Problem, before: Plan, names: frozenset[str]) -> Iterator[str]:
    """Those of these workflows that have the same sources, operators, profiles, targets and places as planned."""
    own = restricted(problem, names)
    wanted = {workflow.name: workflow.slo for workflow in own.workflows}
    other = {name for workflow in before.workflows if (name := workflow.name) in names and workflow.slo != wanted[name]}
    sources = {source.name: source for source in before.sources if before.workflow_of(source.name) in names}
    other |= {own.workflow_of(source.name) for source in own.sources if sources.pop(source.name, None) != source}
    other |= {before.workflow_of(name) for name in sources}
    planned = {one.name: one for one in before.operators if before.workflow_of(one.name) in names}
    other |= {before.workflow_of(name) for name in planned if name not in own.operator_by_name}
    known = settled(own, {name: one.variant for name, one in planned.items()})
    for operator in own.operators:
        if operator.name not in planned or not _same_figures(known, planned[operator.name]):
            other.add(own.workflow_of(operator.name))
    for worker in before.workers:
        pool = problem.pool_by_name.get(worker.pool)
        if pool is None or (pool.tier, pool.sharing) != (worker.tier, worker.sharing):
            other |= {before.workflow_of(name) for name in worker.rates_per_s}
    yield from names - other


def _same_figures(problem: Problem, planned: PlannedOperator) -> bool:
    """True if an operator has the rate, the inputs and, for the planned variant, the profile of the problem."""
    operator = problem.operator_by_name[planned.name]
    variant = {variant.name: variant for variant in operator.variants}.get(planned.variant)
    if variant is None or planned.others or planned.inputs != operator.inputs or planned.model != variant.model:
        return False
    if not math.isclose(planned.rate_per_s, problem.rate_per_s[planned.name], rel_tol=SAME_RATE):
        return False
    for pool, batch in planned.batch.items():
        times = {size: time for size, time in variant.service.get(pool, {}).items() if size <= batch}
        memory = variant.memory_bytes.get(pool), variant.device_memory_bytes.get(pool)
        stated = planned.memory_bytes.get(pool), planned.device_memory_bytes.get(pool)
        if dict(planned.service[pool]) != times or memory != stated:
            return False
    return dict(planned.message_bytes) == dict(variant.message_bytes)


def _part(problem: Problem, plan: Plan, workflows: frozenset[str]) -> Plan:
    """The plan with some of its workflows: their sources, operators, routes, and workers at present prices."""

    def owned(name: str) -> bool:
        return plan.workflow_of(name) in workflows

    routes = []
    for route in plan.routes:
        workers = {name: worker for name, worker in route.workers.items() if owned(name)}
        if workers:
            routes.append(route if len(workers) == len(route.workers) else Route(route.weight, workers))
    operators = tuple(one for one in plan.operators if owned(one.name))
    by_name = {one.name: one for one in operators}
    staff = []
    for worker in plan.workers:
        rates = {name: rate for name, rate in worker.rates_per_s.items() if owned(name)}
        if rates:
            load = sum(rate * by_name[name].request_s(worker.pool) for name, rate in rates.items())
            staff.append(with_pool_figures(problem, replace(worker, rates_per_s=rates, load=load)))
    return replace(
        plan,
        sources=tuple(source for source in plan.sources if owned(source.name)),
        operators=operators,
        workers=tuple(staff),
        routes=tuple(routes),
        workflows=tuple(workflow for workflow in plan.workflows if workflow.name in workflows),
    )
