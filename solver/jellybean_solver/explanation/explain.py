"""Explanation of a plan: each statement is the optimum of a changed problem, compared with the plan's own cost.

Where the mean accuracy is maximised, with its accuracy. No statement is a dual value or sensitivity range. Worker
counts are integers, so the marginal cost of a unit is found by solving with one more unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.explanation.conflicts import Conflict, carried_by_link, find_conflict, usage
from jellybean_solver.explanation.counterfactuals import Counterfactual, Resolved, compare, is_relaxation
from jellybean_solver.explanation.forced_choices import Question, WhyNot, why_not
from jellybean_solver.explanation.parts import Part
from jellybean_solver.explanation.resolver import Resolver, ResolveSettings
from jellybean_solver.explanation.restrictions import forbid_pool, forbid_tier, force_variant
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.plan_document import json_values
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.selection_shares import selection_shares
from jellybean_solver.model.workflow import WORKFLOW_SEPARATOR
from jellybean_solver.outcome import COST_TOLERANCE
from jellybean_solver.planning.requirements import Requirement, RequirementKind, drop, relaxed, requirements

MORE = 0.1  # relative increase of rates, bandwidth and memory for their marginal cost
BUSIER = 0.05  # absolute increase of the utilisation cap for its marginal cost
ACCURACY_POINT = 1.0  # change of the accuracy target in percentage points, up and down
NEXT = 1e-6  # percentage points added to the plan's accuracy, so that the next higher reachable accuracy is required
_ACCURACIES = {RequirementKind.ACCURACY: "accuracy", RequirementKind.MEAN_ACCURACY: "mean accuracy"}
_SIZES = (
    RequirementKind.BUDGET,
    RequirementKind.LIMIT,
    RequirementKind.BANDWIDTH,
    RequirementKind.MEMORY,
    RequirementKind.DEVICE_MEMORY,
)


@dataclass(frozen=True, slots=True)
class LimitAnalysis:
    """A requirement, and the plan's use of it in the requirement's unit.

    `without`: the cheapest plan without the requirement, None if not solved. `more`: the cheapest plan with one more
    unit of it, solved only if dropping it saves cost.
    """

    requirement: Requirement
    used: float | None
    reached: bool
    without: Counterfactual | None = None
    more: Counterfactual | None = None

    @property
    def binds(self) -> bool:
        """True if a valid plan is better without the requirement, or with one more unit of it."""
        changes = [change for change in (self.without, self.more) if change is not None and change.holds]
        return any(change.worse_by is not None and change.worse_by < 0 for change in changes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            **json_values(self.requirement),
            "used": self.used,
            "reached": self.reached,
            "binds": self.binds,
            "without": json_values(self.without),
            "one_more": json_values(self.more),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the plan is what it is, or why there is none (`status` optimal, time_limit, infeasible, refused).

    `limits`: which requirements bind. `values`: cost of accuracy and rates a unit up or down. `choices`: cost of each
    next-best variant, tier or pool. `unanswered`: number of questions left when time ended.
    """

    status: str
    plan: Plan | None
    limits: tuple[LimitAnalysis, ...] = ()
    values: tuple[Counterfactual, ...] = ()
    choices: tuple[Counterfactual, ...] = ()
    why_not: tuple[WhyNot, ...] = ()
    conflict: Conflict | None = None
    solves: int = 0
    unanswered: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        plan = _plan_dict(self.plan) if self.plan is not None and self.conflict is None else None
        others = (field.name for field in fields(self) if field.name not in ("status", "plan"))
        return {"status": self.status, "plan": plan, **{name: json_values(getattr(self, name)) for name in others}}


# What makes a changed problem, which takes time where there are many workflows; kind, subject and words of the change.
Changed = tuple[Callable[[], Problem], str, str, str]
Publish = Callable[[Explanation, Part], None]  # called with the explanation so far, and its part that is complete now


def explain(
    problem: Problem,
    questions: Sequence[Question] = (),
    settings: ResolveSettings | None = None,
    publish: Publish = lambda explanation, part: None,
) -> Explanation:
    """Solve the problem, then a changed problem for each statement and question.

    `publish` is called after each part. Without a plan the explanation's conflict has what is known then: the reason;
    its members, whose relaxations are unknown; the relaxations that are solved, the latest last. OutOfTimeError if time
    ends before there is a plan to explain.
    """
    resolver = Resolver(settings or ResolveSettings())
    answer = resolver.ask(problem, "the plan", thorough=True)
    if answer.status == "unknown":
        raise OutOfTimeError(answer.reason)
    if not answer.holds or answer.plan is None:

        def of_conflict(conflict: Conflict) -> Explanation:
            solves, unanswered = resolver.solved, resolver.unanswered
            return Explanation(answer.status, answer.plan, conflict=conflict, solves=solves, unanswered=unanswered)

        def publish_conflict(conflict: Conflict, part: Part) -> None:
            publish(of_conflict(conflict), part)

        return of_conflict(find_conflict(problem, answer, resolver, publish=publish_conflict))
    return _Explainer(problem, answer, answer.plan, resolver).run(questions, publish)


def _first_name(subject: str) -> str:
    """The workflow that a requirement's subject is or belongs to, if there are several."""
    return subject.partition(WORKFLOW_SEPARATOR)[0]


class _Explainer:
    def __init__(self, problem: Problem, answer: Resolved, plan: Plan, resolver: Resolver) -> None:
        self.problem, self.answer, self.plan, self.resolver = problem, answer, plan, resolver
        gone = {one.name for one in plan.left_out}  # which the plan asks nothing of
        asked = requirements(problem, resolver.settings.exclusive)
        self.requirements = tuple(one for one in asked if not gone.intersection(map(_first_name, one.subjects)))

    def run(self, questions: Sequence[Question], publish: Publish) -> Explanation:
        """Solve part by part."""
        explanation = Explanation(self.answer.status, self.plan)

        def completed(part: Part, **found: Any) -> Explanation:
            solves, unanswered = self.resolver.solved, self.resolver.unanswered
            now = replace(explanation, **found, solves=solves, unanswered=unanswered)
            publish(now, part)
            return now

        self.resolver.expect(len(questions))  # the user's questions are solved first, with all of the time
        explanation = completed(Part.PLAN)
        asked = tuple(why_not(self.problem, self.plan, question, self.resolver) for question in questions)
        explanation = completed(Part.WHY_NOT, why_not=asked)
        choices, values = list(self._choices()), list(self._values())
        self.resolver.expect(len(choices) + len(values) + len(self.requirements))
        explanation = completed(Part.LIMITS, limits=tuple(self._limits()))
        self.resolver.expect_only(len(choices) + len(values))
        explanation = completed(Part.VALUES, values=tuple(self._ask(*change) for change in values))
        return completed(Part.CHOICES, choices=tuple(self._ask(*change) for change in choices))

    def _ask(self, change: Callable[[], Problem], kind: str, subject: str, words: str) -> Counterfactual:
        problem = change() if self.resolver.has_time else self.problem
        valid = self.plan if is_relaxation(kind, subject) else None
        return compare(self.plan, self.resolver.ask(problem, words, valid=valid), kind, subject, words)

    def _choices(self) -> Iterator[Changed]:
        """Changed problems in which a tier or pool in use is forbidden, or another variant is forced."""
        used = {worker.pool for worker in self.plan.workers}
        for tier in self.problem.tiers:
            if any(worker.tier == tier for worker in self.plan.workers):
                yield partial(forbid_tier, self.problem, tier), "tier", tier, f"without tier {tier}"
        for pool in self.problem.pools:
            if pool.name in used:
                change = partial(forbid_pool, self.problem, pool.name)
                yield change, "pool", pool.name, f"without pool {pool.name}"
        served = (operator for operator in self.problem.operators if operator.name in self.plan.operator_by_name)
        for operator in served:  # a workflow that is left out has no variants
            used_alone = [one.variant for one in self.plan.operator_by_name[operator.name].variants]
            cascades = (form.variant for form in operator.forms if not form.is_cut)
            for variant in (*(one.name for one in operator.variants), *cascades):
                if [variant] != used_alone:
                    changed = partial(force_variant, self.problem, operator.name, variant)
                    subject = f"{operator.name}={variant}"
                    alone = " for all requests" if self.problem.may_mix else ""
                    yield changed, "variant", subject, f"with {operator.name} {variant}{alone}"

    def _values(self) -> Iterator[Changed]:
        """Changed problems: accuracy one point up, down and at the next higher level; rates 10 % up; per workflow."""
        for requirement in self.requirements:
            target = requirement.value
            if target is not None and requirement.kind in _ACCURACIES:
                of = "".join(f" of {name}" for name in requirement.subjects)
                for step in (ACCURACY_POINT, -ACCURACY_POINT):
                    words = f"{_ACCURACIES[requirement.kind]} target{of} {target + step:g} ({step:+g})"
                    change = partial(relaxed, self.problem, requirement, target + step)
                    yield change, "accuracy", f"{step:+g}", words
        known = {w.name: w.accuracy for w in self.plan.workflows} or {"": self.plan.accuracy}
        for name, accuracy in known.items():
            if accuracy is not None and not self.problem.may_mix:  # a mean has no next level
                subjects, of = ((name,), f" of {name}") if name else ((), "")
                reached = Requirement(RequirementKind.ACCURACY, subjects)
                aimed = partial(relaxed, self.problem, reached, accuracy + NEXT)
                yield aimed, "next_accuracy", "next", f"accuracy{of} above this plan's {accuracy:g}"
        for requirement in self.requirements:
            if requirement.kind is RequirementKind.RATE:
                of = f" of {self.problem.workflow_of(requirement.subjects[0])}" if self.problem.workflows else ""
                words = f"{MORE * 100:g} % more requests{of}"
                change = partial(relaxed, self.problem, requirement, 1 + MORE)
                yield change, "rate", f"+{MORE * 100:g} %", words

    def _limits(self) -> Iterator[LimitAnalysis]:
        """Analyse the requirements kind by kind, except rates (always bind) and the budget of a cheapest plan."""
        skipped = [RequirementKind.RATE]
        if self.problem.objective is not Objective.MEAN_ACCURACY:
            skipped.append(RequirementKind.BUDGET)
        kinds = groupby(self.requirements, key=lambda requirement: requirement.kind)
        binding = {suspect for kind, group in kinds if kind not in skipped for suspect in self._suspects([*group])}
        for requirement in self.requirements:
            used = self._used(requirement)
            limit = LimitAnalysis(requirement, used, _reached(requirement, used))
            yield self._examined(limit) if requirement in binding else limit

    def _used(self, requirement: Requirement) -> float | None:
        if requirement.kind is RequirementKind.BANDWIDTH:
            return self._carried.get(requirement.subjects, 0.0)
        return usage(self.problem, self.plan, requirement, self.resolver)

    @cached_property
    def _carried(self) -> Mapping[tuple[str, ...], float]:
        return carried_by_link(self.plan)

    def _suspects(self, group: list[Requirement]) -> list[Requirement]:
        """All of `group` (requirements of one kind), or an empty list if dropping all of them saves nothing."""
        if len(group) < 2:
            return group
        words = f"without any {group[0].kind.value} limit"
        change = self._ask(partial(drop, self.problem, *group), "drop", group[0].kind.value, words)
        settled = change.status == "optimal" and self.answer.status == "optimal" and change.worse_by == 0
        return [] if settled else group

    def _examined(self, limit: LimitAnalysis) -> LimitAnalysis:
        requirement = limit.requirement
        words = f"without {requirement.words}"
        dropped = self._ask(partial(drop, self.problem, requirement), "drop", " ".join(requirement.subjects), words)
        limit = replace(limit, without=dropped)
        better = dropped.worse_by is not None and dropped.worse_by < 0  # also if the plan was refused
        more = self._one_more(requirement)
        return replace(limit, more=self._ask(*more)) if better and more is not None else limit

    def _one_more(self, requirement: Requirement) -> Changed | None:
        value, subject = requirement.value or 0.0, " ".join(requirement.subjects)
        if requirement.kind is RequirementKind.COUNT:
            more, words = value + 1, f"one more worker in {subject}"
        elif requirement.kind in _SIZES:
            more, words = value * (1 + MORE), f"{MORE * 100:g} % more than {requirement.words}"
        elif requirement.kind is RequirementKind.UTILISATION:
            more, words = min(1.0, value + BUSIER), f"a utilisation cap of {min(1.0, value + BUSIER):g}"
        else:
            return None
        return partial(relaxed, self.problem, requirement, more), f"more_{requirement.kind.value}", subject, words


def _reached(requirement: Requirement, used: float | None) -> bool:
    value = requirement.value
    return value is not None and used is not None and abs(used - value) <= COST_TOLERANCE * max(1.0, abs(value))


def _plan_dict(plan: Plan) -> dict[str, Any]:
    shares = [{"share": part.share, "selection": dict(part.selection)} for part in selection_shares(plan)]
    return {
        "cost_usd_per_h": {
            "total": plan.cost.total_usd_per_h,
            "compute": plan.cost.compute_usd_per_h,
            "network": plan.cost.network_usd_per_h,
        },
        "accuracy": plan.accuracy,
        "selection": dict(plan.selection),
        **({"selections": shares} if plan.mixes else {}),
        "certificate": json_values(plan.certificate),
    }
