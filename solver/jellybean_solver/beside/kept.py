"""The part of a running plan that stays as it is: the workflows whose figures are still those that it was made for."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.model.loss import with_routes_of_one_workflow
from jellybean_solver.model.multi_workflow import restricted
from jellybean_solver.model.plan import Fallback, Plan, PlannedOperator, Route
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.stated_figures import with_figures

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


def kept_part(problem: Problem, before: Plan, again: Collection[str] | None = None) -> Kept:
    """What of a running plan stays. `again`: the workflows that are planned again; None: those that differ from it."""
    here, there = [w.name for w in problem.workflows], {w.name for w in before.workflows}
    if problem.is_for_ways or before.mixes:
        before = with_routes_of_one_workflow(before, before)
    both = frozenset(here) & there
    workflows = _unchanged(problem, before, both) if again is None else both.difference(again)
    return Kept(
        with_figures(restricted(problem, workflows), _part(before, workflows)),
        tuple(name for name in here if name in workflows),
        tuple(name for name in here if name in both - workflows),
        tuple(name for name in here if name not in there),
        tuple(workflow.name for workflow in before.workflows if workflow.name not in here),
    )


def _unchanged(problem: Problem, before: Plan, names: frozenset[str]) -> frozenset[str]:
    """Those of these workflows that have the same sources, operators, profiles, targets and places as planned."""
    own, part, of = restricted(problem, names), _part(before, names), problem.workflow_of
    changed = _differing(own.slo_by_workflow, part.slo_by_workflow)
    changed |= {of(name) for name in _differing(own.source_by_name, part.source_by_name)}
    changed |= {of(name) for name in own.operator_by_name.keys() ^ part.operator_by_name.keys()}
    changed |= {of(one.name) for one in part.operators if not _is_known(own, one)}
    for worker in part.workers:
        pool = problem.pool_by_name.get(worker.pool)
        if pool is None or (pool.tier, pool.sharing) != (worker.tier, worker.sharing):
            changed |= set(map(of, worker.rates_per_s))
    if known := names - changed:
        present = with_figures(restricted(problem, known), _part(part, known))
        planned = part.operator_by_name
        changed |= {of(one.name) for one in present.operators if not _is_alike(one, planned[one.name])}
    return names - changed


def _differing(present: Mapping[str, object], planned: Mapping[str, object]) -> set[str]:
    """The names of which only one has an entry, or the other another one."""
    return {name for name in {*present, *planned} if present.get(name) != planned.get(name)}


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
    (exact, rounded), (exact_before, rounded_before) = _figures(present), _figures(planned)
    return exact == exact_before and all(map(_is_same_rate, rounded, rounded_before))


def _is_same_rate(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME_RATE)


def _figures(planned: PlannedOperator) -> tuple[list[object], list[float]]:
    """What the documents say of a planned operator; and its rate and the ratios of its inputs."""
    exact: list[object] = [replace(edge, ratio=0.0) for edge in planned.inputs]
    for one in planned.variants:
        tables = (one.message_bytes, one.memory_bytes, one.device_memory_bytes, one.ratios)
        service = {pool: dict(times) for pool, times in one.service.items()}
        exact.append((service, *(dict(table) for table in tables)))
    return exact, [planned.rate_per_s, *(edge.ratio for edge in planned.inputs)]


def _part(plan: Plan, workflows: frozenset[str]) -> Plan:
    """The plan with some of its workflows: their sources, operators, routes and workers."""

    def owned(name: str) -> bool:
        return plan.workflow_of(name) in workflows

    routes, numbers = [], []
    for number, route in enumerate(plan.routes):
        workers = {name: worker for name, worker in route.workers.items() if owned(name)}
        if workers:
            routes.append(route if len(workers) == len(route.workers) else Route(route.weight, workers))
            numbers.append(number)
    staff = []
    for worker in plan.workers:
        rates = {name: rate for name, rate in worker.rates_per_s.items() if owned(name)}
        if rates:
            variants = {name: variant for name, variant in worker.variants.items() if owned(name)}
            staff.append(replace(worker, rates_per_s=rates, variants=variants))
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
