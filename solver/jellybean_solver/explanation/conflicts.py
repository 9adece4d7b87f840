"""Minimal conflicts between requirements, and the least relaxation of each that makes the problem feasible.

A conflict is irreducible: if any one member is dropped, the other members can be met together; requirements that are no
members may still forbid a plan. It is found by recursive halving (QuickXplain, Junker, AAAI 2004), then a smaller one
is sought (`conflict_search.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jellybean_solver.explanation.conflict_search import ConflictSearch
from jellybean_solver.explanation.counterfactuals import Resolved
from jellybean_solver.explanation.parts import Part
from jellybean_solver.explanation.resolver import Resolve, Resolver
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.plan import Plan, PlannedOperator
from jellybean_solver.model.plan_document import json_values
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.outcome import ACCURACY_TOLERANCE, COST_TOLERANCE
from jellybean_solver.planning.requirements import (
    LEAST_RATE,
    Requirement,
    RequirementKind,
    drop,
    relaxed,
    requirements,
)

ACCURACIES = (RequirementKind.ACCURACY, RequirementKind.MEAN_ACCURACY)
RELAXATION_TOLERANCE = 1e-4  # relative precision of the least relaxation
TOLERANCES = {  # that of the others is relative
    RequirementKind.ACCURACY: 2.0 * ACCURACY_TOLERANCE,
    RequirementKind.MEAN_ACCURACY: 2.0 * RELAXATION_TOLERANCE,
    RequirementKind.COUNT: 1.0,
}


@dataclass(frozen=True, slots=True)
class LeastRelaxation:
    """The least change of one requirement alone that is known to make the problem feasible.

    `helps`: whether such a change exists; None if unknown. `value`: the relaxed limit in the requirement's unit, None
    if it must be dropped entirely. `cost_usd_per_h`, `accuracy`: of the resulting plan. `exact`: it is proven that no
    smaller change suffices; False if time ended, the plan is not proven cheapest, or only cheapest plans were checked
    against a limit.
    """

    requirement: Requirement
    helps: bool | None
    value: float | None = None
    cost_usd_per_h: float | None = None
    accuracy: float | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Conflict:
    """An irreducible set of requirements that no plan meets together; empty if structure alone is infeasible.

    `smallest`: it is proven that no conflict has fewer members. `proven`: every solve that led to it was conclusive; if
    it is False and the set is empty, time ended before a conflict was found. `remaining`: if relaxing a single member
    never suffices, a conflict among all requirements but the first member. `reason`: the solver's sentence on the
    infeasible problem.
    """

    relaxations: tuple[LeastRelaxation, ...]
    reason: str
    proven: bool
    smallest: bool = False
    remaining: tuple[Requirement, ...] = ()

    @property
    def members(self) -> tuple[Requirement, ...]:
        """The requirements of the conflict."""
        return tuple(relaxation.requirement for relaxation in self.relaxations)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "requirements": json_values(self.relaxations),
            "reason": self.reason,
            "proven": self.proven,
            "smallest": self.smallest,
            "remaining": json_values(self.remaining),
        }


PublishConflict = Callable[[Conflict, Part], None]  # called with what is known of a conflict, and the part just solved


def find_conflict(
    problem: Problem,
    answer: Resolved,
    resolver: Resolver,
    ask: Resolve | None = None,
    publish: PublishConflict = lambda conflict, part: None,
) -> Conflict:
    """The conflict of an infeasible problem; `answer` is the result of solving that problem.

    `ask`: solves changed problems in place of `resolver.ask`. `publish`: called with the reason, with the members while
    their relaxations are unknown, and after each relaxation with those solved so far.
    """
    ask = ask or partial(resolver.ask, explained=False)
    every = requirements(problem, resolver.settings.exclusive)
    reason = Conflict((), answer.reason, False)
    publish(reason, Part.REASON)

    def least(requirement: Requirement) -> LeastRelaxation:
        return _Relaxer(problem, answer, resolver, ask, requirement).least()

    if answer.status == "refused":
        broken = _broken_limits(problem, answer, every, resolver)
        # The plan that breaks them is only the cheapest one: no relaxation is proven to be the least.
        eased = _eased(broken, reason, lambda member: replace(least(member), exact=False), resolver, publish)
        return replace(reason, relaxations=eased)
    search = ConflictSearch(problem, every, resolver, ask, answer)
    members, fewest = search.smallest(search.irreducible(every))
    known = replace(reason, proven=search.proven, smallest=fewest)
    relaxations = _eased(members, known, least, resolver, publish)
    remaining: tuple[Requirement, ...] = ()
    if members and all(relaxation.helps is False for relaxation in relaxations):
        remaining = search.irreducible([requirement for requirement in every if requirement != members[0]])
    return Conflict(relaxations, answer.reason, search.proven, fewest, remaining)


def _eased(
    members: Sequence[Requirement],
    known: Conflict,
    least: Callable[[Requirement], LeastRelaxation],
    resolver: Resolver,
    publish: PublishConflict,
) -> tuple[LeastRelaxation, ...]:
    """The least relaxation of each member; publishes the members, and each relaxation as it is solved."""
    if members:
        resolver.expect(len(members))
        publish(replace(known, relaxations=tuple(LeastRelaxation(member, None) for member in members)), Part.CONFLICT)
    relaxations: tuple[LeastRelaxation, ...] = ()
    for member in members:
        relaxations = (*relaxations, least(member))
        publish(replace(known, relaxations=relaxations), Part.RELAXATION)
    return relaxations


def _broken_limits(
    problem: Problem, answer: Resolved, every: Sequence[Requirement], resolver: Resolver
) -> tuple[Requirement, ...]:
    """The limits that the cheapest plan breaks."""

    def breaks(plan: Plan, requirement: Requirement) -> bool:
        used, limit = usage(problem, plan, requirement, resolver), requirement.value
        return used is not None and limit is not None and used > limit * (1 + COST_TOLERANCE)

    limits = (requirement for requirement in every if requirement.kind not in ACCURACIES)
    return () if answer.plan is None else tuple(one for one in limits if breaks(answer.plan, one))


class _Relaxer:
    """Search for the least relaxation of one requirement: one bisection for all kinds.

    `good`: a value known to be feasible, with its result `answer`; `bad`: one that is not. `known`: all is proven.
    """

    def __init__(
        self, problem: Problem, answer: Resolved, resolver: Resolver, ask: Resolve, requirement: Requirement
    ) -> None:
        self.problem, self.resolver, self.ask, self.requirement = problem, resolver, ask, requirement
        self.hints, self.nearest = answer.infeasibility, answer.plan
        self.known = True
        self.good = self.bad = requirement.value or 0.0
        self.answer = answer

    def least(self) -> LeastRelaxation:
        """The least relaxation of this requirement alone."""
        self.answer = dropped = self._ask(drop(self.problem, self.requirement))
        if not dropped.holds or dropped.plan is None:
            return LeastRelaxation(self.requirement, False if dropped.proven else None)
        value = None if self.requirement.value is None else self._value(dropped.plan)
        plan = self.answer.plan or dropped.plan
        accuracy = accuracy_of(plan, self.requirement)
        return LeastRelaxation(self.requirement, True, value, plan.cost.total_usd_per_h, accuracy, self.known)

    def _value(self, plan: Plan) -> float | None:
        """The value nearest to the stated one that is feasible. `plan`: the best one without the requirement."""
        kind = self.requirement.kind
        if kind is RequirementKind.LATENCY_P99:
            return self._latency(plan)
        used = LEAST_RATE if kind is RequirementKind.RATE else self._used(self.answer)
        if kind is RequirementKind.BUDGET and self.problem.objective is not Objective.MEAN_ACCURACY:
            self.known = self.known and self.answer.status == "optimal"
            return used  # no plan costs less
        if used is None and kind is RequirementKind.ACCURACY:  # require a known one
            self._try(0.0)
            used = self._used(self.answer)
        elif kind not in (*ACCURACIES, RequirementKind.RATE):
            used = self._confirmed(used)
        if used is None:
            return None
        self.good = used
        for value in self._probes():
            self._try(value)
        return self.good

    def _confirmed(self, used: float | None) -> float | None:
        """The least limit by what the plan without it uses; None, and not `known`, if that is not feasible."""
        if used is not None and self.requirement.kind is not RequirementKind.COUNT:
            used *= 1 + COST_TOLERANCE
        if used is not None and self.requirement.kind is RequirementKind.UTILISATION:
            used = min(1.0, used)
        if used is not None and used > self.bad and self._try(used).holds:
            return used
        self.known = False
        return None

    def _probes(self) -> Iterator[float]:
        """The values to try, by what is known when each is asked for: near the hint, then between `good` and `bad`."""
        hint = self._hint()
        if hint is not None and self.good < hint < self.bad:
            yield hint
            step = self._tolerance() / 2  # two programs may differ by less
            yield hint - step if self.good < hint else hint + step
        while abs(self.good - self.bad) > self._tolerance():
            if self.requirement.kind is RequirementKind.ACCURACY:  # plans have few: this may be the highest
                yield self.good + self._tolerance() / 2
            low, high = sorted((self.good, self.bad))
            middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
            yield float(math.ceil(middle)) if self.requirement.kind is RequirementKind.COUNT else middle

    def _tolerance(self) -> float:
        """How close two values are that end the search."""
        relative = RELAXATION_TOLERANCE * min(self.good, self.bad)
        return TOLERANCES.get(self.requirement.kind, relative)

    def _hint(self) -> float | None:
        """The nearest feasible value, if the reasons of infeasibility have it."""
        if self.hints is None:
            return None
        if self.requirement.kind in ACCURACIES:
            return self.hints.nearest_accuracy
        return self.hints.nearest_rate_scale if self.requirement.kind is RequirementKind.RATE else None

    def _try(self, value: float) -> Resolved:
        """The result at a value, which becomes the best or the worst one known; a plan may be more accurate yet."""
        found = self._ask(relaxed(self.problem, self.requirement, value))
        if found.holds:
            reached = self._used(found) if self.requirement.kind in ACCURACIES else None
            self.good, self.answer = max(value, reached or value), found
        else:
            self.bad = value
        return found

    def _used(self, answer: Resolved) -> float | None:
        return None if answer.plan is None else usage(self.problem, answer.plan, self.requirement, self.resolver)

    def _latency(self, plan: Plan) -> float | None:
        """p99 in seconds of the plan that came nearest to the target, else of the cheapest plan without a target."""
        self.known = False  # a more expensive plan may be faster
        plan = self.nearest or plan
        self.answer = replace(self.answer, plan=plan)
        workflow = "".join(self.requirement.subjects)
        predicted = (self.resolver.p99_s(plan, workflow, thorough=thorough) for thorough in (True, False))
        return max((p99_s for p99_s in predicted if p99_s is not None), default=None)

    def _ask(self, problem: Problem) -> Resolved:
        answer = self.ask(problem, f"how far to ease {self.requirement.words}")
        self.known = self.known and answer.proven
        return answer


def accuracy_of(plan: Plan, requirement: Requirement) -> float | None:
    """A plan's accuracy in percent; with several workflows, that of the requirement's workflow. None if unknown."""
    if not plan.workflows or requirement.kind not in ACCURACIES:
        return plan.accuracy
    return next(workflow.accuracy for workflow in plan.workflows if workflow.name == requirement.subjects[0])


def usage(problem: Problem, plan: Plan, requirement: Requirement, resolver: Resolver) -> float | None:
    """The plan's value of the limited quantity (cost, p99, memory, ...), in the requirement's unit; None if unknown."""
    subjects = requirement.subjects
    uses: dict[RequirementKind, Callable[[], float | None]] = {
        RequirementKind.ACCURACY: lambda: accuracy_of(plan, requirement),
        RequirementKind.MEAN_ACCURACY: lambda: accuracy_of(plan, requirement),
        RequirementKind.RATE: lambda: requirement.value,
        RequirementKind.BUDGET: lambda: plan.cost.total_usd_per_h,
        RequirementKind.LIMIT: lambda: plan.uses.get(subjects[0], 0.0),
        RequirementKind.LATENCY_P99: lambda: resolver.p99_s(plan, "".join(subjects), thorough=True),
        RequirementKind.UTILISATION: lambda: (
            max(evaluate(problem, plan).loads.values(), default=0.0) * problem.margin.work
        ),
        RequirementKind.BANDWIDTH: lambda: carried_by_link(plan).get(subjects, 0.0),
        RequirementKind.MEMORY: lambda: _most_held_bytes(plan, subjects, lambda own: own.memory_bytes),
        RequirementKind.DEVICE_MEMORY: lambda: _most_held_bytes(plan, subjects, lambda own: own.device_memory_bytes),
        RequirementKind.COUNT: lambda: float(sum(worker.pool in subjects for worker in plan.workers)),
    }
    return uses.get(requirement.kind, lambda: None)()  # sharing, residency, losses and margins have no value


def carried_by_link(plan: Plan) -> Mapping[tuple[str, ...], float]:
    """Bytes per second by link in each site, as (upstream tier, downstream tier)."""
    found: dict[tuple[str, ...], float] = {}
    for use in link_uses(plan):
        tiers = use.upstream_tier, use.downstream_tier
        found[tiers] = found.get(tiers, 0.0) + use.bytes_per_s / use.sites
    return found


def _most_held_bytes(
    plan: Plan, pools: Collection[str], bytes_by_pool: Callable[[PlannedOperator], Mapping[str, float]]
) -> float:
    """The most bytes of models on a worker of some pools."""
    workers = (worker for worker in plan.workers if worker.pool in pools)
    held = ((worker.pool, [plan.operator_at(name, worker.name) for name in worker.rates_per_s]) for worker in workers)
    return max((sum(bytes_by_pool(one).get(pool, 0.0) for one in models) for pool, models in held), default=0.0)
