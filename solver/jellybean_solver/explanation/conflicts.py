"""Minimal conflicts between requirements, and the least relaxation of each that makes the problem feasible.

A conflict is irreducible: if any one member is dropped, the other members can be met together; requirements that are no
members may still forbid a plan. It is found by recursive halving (QuickXplain, Junker, AAAI 2004); all requirements of
a kind are dropped together first, so that a hundred irrelevant pools cost one solve. Then a smaller conflict is sought
(`minimum_conflict.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jellybean_solver.explanation.conflict_search import ConflictSearch
from jellybean_solver.explanation.counterfactuals import Resolved
from jellybean_solver.explanation.parts import Part
from jellybean_solver.explanation.resolver import Resolve, Resolver
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.margin import largest_margin
from jellybean_solver.model.plan import Plan, PlannedWorker
from jellybean_solver.model.plan_document import json_values
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import ACCURACY_TOLERANCE, COST_TOLERANCE
from jellybean_solver.planning.requirements import (
    LEAST_RATE,
    Requirement,
    RequirementKind,
    drop,
    relaxed,
    requirements,
)

RelaxedAt = tuple[float | None, Resolved]  # value in the requirement's unit (None: dropped), and the result

RELAXATION_TOLERANCE = 1e-4  # relative precision of the least relaxation


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
    plan = answer.plan
    if plan is None:
        return ()
    return tuple(requirement for requirement in every if _breaks(problem, plan, requirement, resolver))


def _breaks(problem: Problem, plan: Plan, requirement: Requirement, resolver: Resolver) -> bool:
    if requirement.kind not in (
        RequirementKind.BUDGET,
        RequirementKind.LIMIT,
        RequirementKind.LATENCY_P99,
        RequirementKind.BANDWIDTH,
        RequirementKind.MEMORY,
        RequirementKind.DEVICE_MEMORY,
    ):
        return False
    used, limit = usage(problem, plan, requirement, resolver), requirement.value
    return used is not None and limit is not None and used > limit * (1 + COST_TOLERANCE)


class _Relaxer:
    """Search for the least relaxation of one requirement."""

    def __init__(
        self, problem: Problem, answer: Resolved, resolver: Resolver, ask: Resolve, requirement: Requirement
    ) -> None:
        self.problem, self.resolver, self.ask, self.requirement = problem, resolver, ask, requirement
        self.hints, self.nearest = answer.infeasibility, answer.plan
        self.known = requirement.kind is not RequirementKind.LATENCY_P99  # a more expensive plan may be faster

    def least(self) -> LeastRelaxation:
        """The least relaxation of this requirement alone."""
        dropped = self._ask(drop(self.problem, self.requirement))
        if not dropped.holds or dropped.plan is None:
            return LeastRelaxation(self.requirement, False if dropped.proven else None)
        if self.requirement.value is None:
            return self._relaxation(None, dropped)
        value, answer = _SEARCHES.get(self.requirement.kind, _Relaxer.limit)(self, dropped, dropped.plan)
        return self._relaxation(value, answer)

    def accuracy(self, dropped: Resolved, plan: Plan) -> RelaxedAt:
        """The highest feasible accuracy (percent) below the target; each plan found raises the next target."""
        best, high = dropped, self.requirement.value or 0.0
        hint = self.hints.nearest_accuracy if self.hints is not None else None
        if hint is not None and hint < high:
            best = self._better(best, hint)
        if self._reached(best) is None:  # the plan's accuracy is unknown: require a known one
            best = self._better(best, 0.0)
        while (low := self._reached(best)) is not None and high - low > ACCURACY_TOLERANCE:
            best = self._better(best, low + ACCURACY_TOLERANCE)
            if self._reached(best) == low:
                break
            middle = ((self._reached(best) or low) + high) / 2
            halfway = self._better(best, middle)
            best, high = halfway, middle if halfway is best else high
        return self._reached(best), best

    def mean_accuracy(self, dropped: Resolved, plan: Plan) -> RelaxedAt:
        """The highest feasible mean accuracy (percent) below the target, to a hundredth of a point's hundredth."""
        low, answer, high = self._reached(dropped) or 0.0, dropped, self.requirement.value or 0.0
        hint = self.hints.nearest_accuracy if self.hints is not None else None
        if hint is not None and low < hint < high and (found := self._eased(hint - RELAXATION_TOLERANCE)).holds:
            low, answer, high = hint - RELAXATION_TOLERANCE, found, hint + RELAXATION_TOLERANCE
            if self._eased(high).holds:
                high = self.requirement.value or high
        while high - low > 2.0 * RELAXATION_TOLERANCE:
            middle = (low + high) / 2.0
            found = self._eased(middle)
            low, answer, high = (middle, found, high) if found.holds else (low, answer, middle)
        return low, answer

    def _reached(self, answer: Resolved) -> float | None:
        """The accuracy (percent) of a result's plan for the requirement's workflow; None if unknown."""
        return None if answer.plan is None else accuracy_of(answer.plan, self.requirement)

    def _better(self, best: Resolved, target: float) -> Resolved:
        """The result with this accuracy target (percent), or `best` if the target is infeasible."""
        found = self._eased(target)
        return found if found.holds else best

    def rate(self, dropped: Resolved, plan: Plan) -> RelaxedAt:
        """The largest feasible factor on all rates, and the result at it."""
        good, answer, bad = LEAST_RATE, dropped, 1.0
        hint = self.hints.nearest_rate_scale if self.hints is not None else None
        if hint is not None and hint < 1.0 and (found := self._eased(hint)).holds:
            good, answer = hint, found
            if not self._eased(beyond := hint * (1 + RELAXATION_TOLERANCE / 2)).holds:
                bad = beyond
        return self._bisect(good, bad, answer)

    def budget(self, dropped: Resolved, plan: Plan) -> RelaxedAt:
        """The cost of the cheapest plan without a budget, in USD per hour."""
        self.known = self.known and dropped.status == "optimal"
        return plan.cost.total_usd_per_h, dropped

    def limit(self, dropped: Resolved, plan: Plan) -> RelaxedAt:
        """The least feasible limit above the given one, searched up to what the plan without the limit uses."""
        value, kind = self.requirement.value or 0.0, self.requirement.kind
        used = usage(self.problem, plan, self.requirement, self.resolver)
        ceiling = 1.0 if kind is RequirementKind.UTILISATION else math.inf
        if used is None:
            self.known = False
            return None, dropped
        start = used if kind is RequirementKind.COUNT else min(ceiling, used * (1 + COST_TOLERANCE))
        first = self._eased(start) if start < ceiling else dropped
        if not first.holds or start <= value:
            self.known = False
            return None, dropped
        return self._bisect(start, value, first)

    def latency(self, dropped: Resolved, plan: Plan) -> RelaxedAt:
        """p99 in seconds of the plan that came nearest to the target, else of the cheapest plan without a target."""
        answer = dropped if self.nearest is None else replace(dropped, plan=self.nearest)
        workflow = "".join(self.requirement.subjects)
        plan = self.nearest or plan
        predicted = (self.resolver.p99_s(plan, workflow, thorough=thorough) for thorough in (True, False))
        return max((p99_s for p99_s in predicted if p99_s is not None), default=None), answer

    def _bisect(self, good: float, bad: float, answer: Resolved) -> tuple[float, Resolved]:
        """Bisect between a feasible (`good`) and an infeasible (`bad`) value; the best feasible one with its result.

        Worker counts are integers; other values are exact to `RELAXATION_TOLERANCE`.
        """
        while (middle := self._between(good, bad)) is not None:
            found = self._eased(middle)
            good, bad, answer = (middle, bad, found) if found.holds else (good, middle, answer)
        return good, answer

    def _between(self, good: float, bad: float) -> float | None:
        """The next value to try between two; None if they are close enough to end the search."""
        if self.requirement.kind is RequirementKind.COUNT:
            return (good + bad) // 2 if good - bad > 1 else None
        if abs(good - bad) <= RELAXATION_TOLERANCE * min(good, bad):
            return None
        return math.sqrt(good * bad) if min(good, bad) > 0 else (good + bad) / 2

    def _eased(self, value: float) -> Resolved:
        return self._ask(relaxed(self.problem, self.requirement, value))

    def _ask(self, problem: Problem) -> Resolved:
        answer = self.ask(problem, f"how far to ease {self.requirement.words}")
        self.known = self.known and answer.proven
        return answer

    def _relaxation(self, value: float | None, answer: Resolved) -> LeastRelaxation:
        plan = answer.plan
        if plan is None:
            return LeastRelaxation(self.requirement, None)
        accuracy = accuracy_of(plan, self.requirement)
        return LeastRelaxation(self.requirement, True, value, plan.cost.total_usd_per_h, accuracy, self.known)


_SEARCHES: dict[RequirementKind, Callable[[_Relaxer, Resolved, Plan], RelaxedAt]] = {
    RequirementKind.ACCURACY: _Relaxer.accuracy,
    RequirementKind.MEAN_ACCURACY: _Relaxer.mean_accuracy,
    RequirementKind.RATE: _Relaxer.rate,
    RequirementKind.BUDGET: _Relaxer.budget,
    RequirementKind.LATENCY_P99: _Relaxer.latency,
}


def accuracy_of(plan: Plan, requirement: Requirement) -> float | None:
    """A plan's accuracy in percent; with several workflows, that of the requirement's workflow. None if unknown."""
    if not plan.workflows or requirement.kind is not RequirementKind.ACCURACY:
        return plan.accuracy
    return next(workflow.accuracy for workflow in plan.workflows if workflow.name == requirement.subjects[0])


def usage(problem: Problem, plan: Plan, requirement: Requirement, resolver: Resolver) -> float | None:
    """The plan's value of the limited quantity (cost, p99, memory, ...), in the requirement's unit; None if unknown."""
    subjects = requirement.subjects
    uses: dict[RequirementKind, Callable[[], float | None]] = {
        RequirementKind.ACCURACY: lambda: accuracy_of(plan, requirement),
        RequirementKind.MEAN_ACCURACY: lambda: plan.accuracy,
        RequirementKind.RATE: lambda: requirement.value,
        RequirementKind.BUDGET: lambda: plan.cost.total_usd_per_h,
        RequirementKind.LIMIT: lambda: plan.uses.get(subjects[0], 0.0),
        RequirementKind.LATENCY_P99: lambda: resolver.p99_s(plan, "".join(subjects), thorough=True),
        RequirementKind.UTILISATION: lambda: (
            max(evaluate(problem, plan).loads.values(), default=0.0) * largest_margin(problem.targets).work
        ),
        RequirementKind.BANDWIDTH: lambda: carried_by_link(plan).get(subjects, 0.0),
        RequirementKind.MEMORY: lambda: max(
            (_held_bytes(plan, w, on_device=False) for w in plan.workers if w.pool in subjects), default=0.0
        ),
        RequirementKind.DEVICE_MEMORY: lambda: max(
            (_held_bytes(plan, w, on_device=True) for w in plan.workers if w.pool in subjects), default=0.0
        ),
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


def _held_bytes(plan: Plan, worker: PlannedWorker, *, on_device: bool) -> float:
    held = [plan.operator_at(name, worker.name) for name in worker.rates_per_s]
    tables = [operator.device_memory_bytes if on_device else operator.memory_bytes for operator in held]
    return sum(table.get(worker.pool, 0.0) for table in tables)
