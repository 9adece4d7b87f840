"""The part of a running plan that stays as it is: the workflows whose figures are still those that it was made for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from jellybean_solver.model.loss import with_routes_of_one_workflow
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Fallback, Plan, PlannedOperator, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures, with_pool_figures

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
    if problem.is_for_ways or plan.mixes:
        plan = with_routes_of_one_workflow(plan, plan)
    every = [workflow.name for workflow in problem.workflows]
    kept = frozenset(every) - frozenset(names)
    changed = tuple(name for name in every if name in names)
    return Kept(_part(problem, plan, kept), tuple(name for name in every if name in kept), changed, (), ())


def kept_part(problem: Problem, before: Plan) -> Kept:
    """Compare a running plan with the problem, and take what is equal out of it."""
    here, there = [w.name for w in problem.workflows], {w.name for w in before.workflows}
    if problem.is_for_ways or before.mixes:
        before = with_routes_of_one_workflow(before, before)
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
    for worker in before.workers:
        pool = problem.pool_by_name.get(worker.pool)
        if pool is None or (pool.tier, pool.sharing) != (worker.tier, worker.sharing):
            other |= {before.workflow_of(name) for name in worker.rates_per_s}
    planned = {one.name: one for one in before.operators if before.workflow_of(one.name) in names}
    other |= {own.workflow_of(operator.name) for operator in own.operators if operator.name not in planned}
    other |= {before.workflow_of(name) for name, one in planned.items() if not _is_known(own, one)}
    known = names - other
    if known:
        present = with_figures(restricted(problem, known), _part(problem, before, frozenset(known)))
        other |= {before.workflow_of(one.name) for one in present.operators if not _is_alike(one, planned[one.name])}
    yield from names - other


def _is_known(problem: Problem, planned: PlannedOperator) -> bool:
    """True if the problem has an operator, its planned variants with the same models, and profiles of their batches."""
    operator = problem.operator_by_name.get(planned.name)
    variants = {} if operator is None else {variant.name: variant for variant in operator.variants}
    return all(
        one.variant in variants
        and one.model == variants[one.variant].model
        and all(size in variants[one.variant].service.get(pool, {}) for pool, size in one.batch.items())
        for one in planned.variants
    )


def _is_alike(present: PlannedOperator, planned: PlannedOperator) -> bool:
    """True if an operator has the figures with which it was planned; rates and ratios to rounding."""
    if not math.isclose(present.rate_per_s, planned.rate_per_s, rel_tol=SAME_RATE):
        return False
    if [replace(edge, ratio=0.0) for edge in present.inputs] != [replace(edge, ratio=0.0) for edge in planned.inputs]:
        return False
    ratios = zip(present.inputs, planned.inputs, strict=True)
    if not all(math.isclose(one.ratio, other.ratio, rel_tol=SAME_RATE) for one, other in ratios):
        return False
    others = zip(present.others, planned.others, strict=True)
    return _of_variant(present) == _of_variant(planned) and all(
        _of_variant(one) == _of_variant(two) for one, two in others
    )


def _of_variant(planned: PlannedOperator) -> tuple[object, ...]:
    """What a profile says of a planned variant."""
    service = {pool: dict(times) for pool, times in planned.service.items()}
    tables = (planned.message_bytes, planned.memory_bytes, planned.device_memory_bytes, planned.ratios)
    return service, *(dict(table) for table in tables)


def _part(problem: Problem, plan: Plan, workflows: frozenset[str]) -> Plan:
    """The plan with some of its workflows: their sources, operators, routes, and workers at present prices."""

    def owned(name: str) -> bool:
        return plan.workflow_of(name) in workflows

    routes, numbers = [], []
    for number, route in enumerate(plan.routes):
        workers = {name: worker for name, worker in route.workers.items() if owned(name)}
        if workers:
            routes.append(route if len(workers) == len(route.workers) else Route(route.weight, workers))
            numbers.append(number)
    operators = tuple(one for one in plan.operators if owned(one.name))
    by_name = {one.name: one for one in operators}
    staff = []
    for worker in plan.workers:
        rates = {name: rate for name, rate in worker.rates_per_s.items() if owned(name)}
        if rates:
            variants = {name: variant for name, variant in worker.variants.items() if owned(name)}
            runs = {name: by_name[name].with_variant(variants.get(name, by_name[name].variant)) for name in rates}
            load = sum(rate * runs[name].request_s(worker.pool) for name, rate in rates.items())
            own = replace(worker, rates_per_s=rates, load=load, variants=variants)
            staff.append(with_pool_figures(problem, own))
    return replace(
        restricted(plan, workflows),
        workers=tuple(staff),
        routes=tuple(routes),
        fallbacks=tuple(
            Fallback(one.lost, (), tuple(one.weights[number] for number in numbers))
            for one in plan.fallbacks
            if one.weights
        ),
        spread={name: groups for name, groups in plan.spread.items() if owned(name)},
    )
