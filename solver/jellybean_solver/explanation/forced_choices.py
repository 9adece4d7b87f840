"""Why-not questions: the cheapest plan with a forced choice, and its additional cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jellybean_solver.explanation.conflicts import Conflict, find_conflict
from jellybean_solver.explanation.counterfactuals import Counterfactual, Resolved, compare
from jellybean_solver.explanation.resolver import Resolve, Resolver
from jellybean_solver.explanation.restrictions import (
    force_pools,
    force_variant,
    runs_at,
    with_prepaid_worker,
    with_price_paid,
)
from jellybean_solver.figures import plain_text, rate_text, usd_text
from jellybean_solver.model.forms import as_planned
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Pool, Problem
from jellybean_solver.model.workflow import Operator
from jellybean_solver.outcome import COST_TOLERANCE
from jellybean_solver.planning.requirements import RequirementKind

RATE_TOLERANCE = 1e-6  # relative: a rate this close to the operator's total counts as all requests
POINTS_TOLERANCE = 0.01  # points of accuracy: a range this narrow is not told
MOST_NAMED_POOLS = 3  # in messages: if there are more pools, only their number is stated


@dataclass(frozen=True, slots=True)
class Question:
    """Why not this variant of an operator, this tier or pool, or this operator in that tier or pool?

    `text`: the question as asked. `place`: a tier, or a pool if no tier has that name.
    """

    text: str
    operator: str | None = None
    variant: str | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer to a question.

    `verdict`: used (the plan makes this choice already), dearer, same_cost, cheaper (possible only if the explained
    plan is not proven optimal), or worse, same, better where the accuracy is maximised; no_plan, no_profile (no variant
    has a profile there), left_out (its workflow is not served) or unknown. `used_per_s`: requests per second for which
    the plan already makes this choice. `change`: the best plan with the forced choice; `conflict`: why there is none.
    """

    question: str
    verdict: str
    sentence: str
    used_per_s: dict[str, float]
    change: Counterfactual | None = None
    conflict: Conflict | None = None


@dataclass(frozen=True, slots=True)
class _Forced:
    """One way to force the choice: a changed problem, described by `kind`, `subject` and `words`.

    `ask`: solves the problem in place of `resolver.ask`.
    """

    problem: Problem
    kind: str
    subject: str
    words: str
    ask: Resolve | None = None


def why_not(problem: Problem, plan: Plan, question: Question, resolver: Resolver) -> WhyNot:
    """Answer one question; `plan` is the problem's cheapest plan."""
    operator, variant = question.operator, question.variant
    if operator is not None and operator not in plan.operator_by_name:
        sentence = (
            f"{problem.workflow_of(operator)} is left out of this plan, as serving it costs more than it is worth"
        )
        return WhyNot(question.text, "left_out", sentence, {})
    if operator is None or variant is None:
        return _Place(problem, plan, question, resolver).answer()
    planned = plan.operator_by_name[operator]
    places = (place for place in plan.placements if (place.operator, place.variant) == (operator, variant))
    used = sum(place.rate_per_s for place in places)
    if [variant] == [one.variant for one in planned.variants]:
        return WhyNot(question.text, "used", f"{operator} uses {variant} in this plan", {operator: planned.rate_per_s})
    alone = " for all requests" if problem.may_mix else ""
    changed = force_variant(problem, operator, variant)
    way = _Forced(changed, "variant", question.text, f"with {operator} {variant}{alone}")
    reply = _cheapest(plan, question, resolver, [way])
    if not used:
        return reply
    share = f"{100 * used / planned.rate_per_s:.0f} % of the requests of {operator} get {variant} in this plan"
    return replace(reply, sentence=_joined(share, reply.sentence), used_per_s={operator: used})


def _cheapest(plan: Plan, question: Question, resolver: Resolver, ways: Sequence[_Forced]) -> WhyNot:
    """Solve several ways to force the choice, and answer with the cheapest plan, or with a conflict if none has one."""
    resolver.expect(len(ways) - 1)
    solved: list[tuple[Counterfactual, _Forced, Resolved]] = []
    for way in ways:
        answer = (way.ask or resolver.ask)(way.problem, question.text)
        solved.append((compare(plan, answer, way.kind, way.subject, way.words), way, answer))
    change, way, answer = min(solved, key=lambda item: _rank(item[0]))
    cost, worse = change.cost_usd_per_h, change.worse_by
    if change.status == "unknown":
        return WhyNot(question.text, "unknown", f"{change.words}: {change.reason}", {}, change)
    if not change.holds or cost is None or worse is None:
        conflict = find_conflict(way.problem, answer, resolver, way.ask)
        return WhyNot(question.text, "no_plan", _no_plan(change, conflict), {}, change, conflict)
    verdicts = ("dearer", "cheaper", "same_cost") if change.delta_points is None else ("worse", "better", "same")
    verdict = verdicts[0] if worse > 0 else verdicts[1] if worse < 0 else verdicts[2]
    changes = "; ".join(change.differences) or "nothing else changes"
    best = f"the cheapest plan costs {usd_text(cost)} USD/h"
    if change.delta_points is not None:
        best = f"the most accurate plan reaches {change.accuracy:.4g} %"
    sentence = f"{change.words} {best}, {describe_difference(change)}: {changes}"
    return WhyNot(question.text, verdict, sentence, {}, change)


def pools_of(problem: Problem, place: str) -> frozenset[str]:
    """Pools of a place: all pools of a tier, or one pool."""
    of_tier = frozenset(pool.name for pool in problem.pools if pool.tier == place)
    return of_tier or frozenset(pool.name for pool in problem.pools if pool.name == place)


class _Place:
    """A question about a tier or pool.

    The answer is the cheapest plan with all requests of an operator at the place. If the question names no operator and
    the place is unused: the cheapest plan that pays for one worker there.
    """

    def __init__(self, problem: Problem, plan: Plan, question: Question, resolver: Resolver) -> None:
        self.problem, self.plan, self.question, self.resolver = problem, plan, question, resolver
        self.where = f"in {question.place}"
        self.pools = pools_of(problem, question.place or "")
        self.planned = as_planned(problem, plan).operator_by_name
        asked = [part.name for part in self._operator(question.operator).parts] if question.operator else []
        names = [name for name in plan.operator_by_name if not asked or name in asked]
        self.rates = {name: plan.operator_by_name[name].rate_per_s for name in names}
        self.used = {name: rate for name, rate in _served(plan, self.pools).items() if name in self.rates}

    def answer(self) -> WhyNot:
        rest = [name for name, rate in self.rates.items() if rate - self.used.get(name, 0.0) > RATE_TOLERANCE * rate]
        if not rest:
            return WhyNot(self.question.text, "used", self._stated(), self.used)
        rest = rest if self.question.operator is None else [self.question.operator]  # with all parts of its form
        possible = [name for name in rest if runs_at(self._operator(name), self.pools)]
        if not possible:
            sentence = f"no variant of {' or '.join(rest)} has a profile for workers {self.where}"
            return WhyNot(self.question.text, "no_profile", _joined(self._stated(), sentence), self.used)
        if self.question.operator is None and not self.used:
            return self._with_one_worker(possible)
        return self._with_all_requests(possible)

    def _operator(self, name: str) -> Operator:
        """An operator of the problem, or a part of the form that the plan has of one."""
        return self.problem.operator_by_name.get(name) or self.planned[name]

    def _with_one_worker(self, possible: list[str]) -> WhyNot:
        """The cheapest plan that pays for a worker at an unused place."""
        operators = [self._operator(name) for name in possible]
        worker_of = {
            pool.name: f"a worker of {pool.name}{self.problem.in_each(pool.tier)}"
            for pool in self.problem.pools
            if pool.name in self.pools and any(runs_at(operator, frozenset({pool.name})) for operator in operators)
        }
        ways = [
            _Forced(self.problem, "worker", name, f"with {worker}", _paying(name, self.resolver))
            for name, worker in worker_of.items()
        ]
        reply = _cheapest(self.plan, self.question, self.resolver, ways)
        change = reply.change
        if change is None or not change.holds or change.delta_usd_per_h is None or change.delta_points is not None:
            return reply
        pool = self.problem.pool_by_name[change.subject]
        price = self.problem.unit_usd_per_h(pool)
        saved = price - change.delta_usd_per_h
        if saved > COST_TOLERANCE * max(1.0, price):
            costs = f"{worker_of[pool.name]} costs {usd_text(price)} USD/h and saves {usd_text(saved)} elsewhere"
            return replace(reply, sentence=f"{costs}; {reply.sentence}")
        costs = (
            f"a worker of it{self.problem.in_each(pool.tier)} costs {usd_text(price)} USD/h and saves nothing elsewhere"
        )
        return replace(reply, sentence=f"{pool.name} would not pay: {costs}")

    def _with_all_requests(self, possible: list[str]) -> WhyNot:
        """The cheapest plan with all requests of some operator at the place."""
        ways = [
            _Forced(
                force_pools(self.problem, name, self.pools),
                "placement",
                f"{name}@{self.question.place}",
                f"with all of {name} {self.where}",
            )
            for name in possible
        ]
        reply = _cheapest(self.plan, self.question, self.resolver, ways)
        nowhere = "of no operator all requests fit: " if len(possible) > 1 and reply.verdict == "no_plan" else ""
        return replace(reply, sentence=_joined(self._stated(), nowhere + reply.sentence), used_per_s=self.used)

    def _stated(self) -> str:
        """A sentence on what the plan already runs at the place."""
        if not self.used:
            return ""
        parts = []
        for name, used in self.used.items():
            whole = self.rates[name] - used <= RATE_TOLERANCE * self.rates[name]
            parts.append(
                f"all of {name}" if whole else f"{plain_text(used, 3)} of {rate_text(self.rates[name], 3)} of {name}"
            )
        return f"this plan runs {', '.join(parts)} {self.where}"


def _paying(name: str, resolver: Resolver) -> Resolve:
    """A solver of problems in which one worker of the pool must be paid; it checks the cost against the budget."""

    def ask(problem: Problem, label: str) -> Resolved:
        pool = problem.pool_by_name[name]
        if pool.count == 0:
            return Resolved("infeasible", None, f"there are no workers in {name}")
        answer = resolver.ask(with_prepaid_worker(problem, pool), label, explained=False)
        if answer.plan is None:
            return answer
        return _within_budget(problem, pool, replace(answer, plan=with_price_paid(problem, pool, answer.plan)))

    return ask


def _within_budget(problem: Problem, pool: Pool, answer: Resolved) -> Resolved:
    plan, budget = answer.plan, problem.slo.budget_usd_per_h
    if plan is None or budget is None or plan.cost.total_usd_per_h <= budget * (1 + COST_TOLERANCE):
        return answer
    worker = f"{usd_text(problem.unit_usd_per_h(pool))} of it for the worker{problem.in_each(pool.tier)}"
    costs = f"{usd_text(plan.cost.total_usd_per_h)} USD/h, {worker}"
    if plan.certificate.bound <= budget * (1 + COST_TOLERANCE):
        open_question = f"whether a plan keeps the budget of {plain_text(budget)} USD/h is not known"
        return Resolved("unknown", None, f"{open_question}: the cheapest found costs {costs}")
    return Resolved(
        "infeasible", plan, f"no plan keeps the budget of {plain_text(budget)} USD/h: the cheapest costs {costs}"
    )


def _rank(change: Counterfactual) -> tuple[bool, bool, float]:
    """Sort key: plans that keep all limits, best first, then plans that break a limit, then results without a plan."""
    worse = change.worse_by
    return not change.holds, worse is None, worse if worse is not None else 0.0


def _no_plan(change: Counterfactual, found: Conflict) -> str:
    if change.status == "refused":
        return f"no plan {change.words} was found: {change.reason}, and no dearer one was found that keeps it"
    if found.members and change.status == "infeasible":
        verb = "conflict" if len(found.members) > 1 else "cannot be met"
        return f"no plan {change.words}: {describe_members(found)} {verb} ({change.reason})"
    return f"no plan {change.words}: {change.reason}"


def describe_members(found: Conflict) -> str:
    """The members of a conflict in words; of many pools only the number."""
    counts = [member for member in found.members if member.kind is RequirementKind.COUNT]
    words = [member.words for member in found.members if member.kind is not RequirementKind.COUNT]
    if len(counts) > MOST_NAMED_POOLS:
        words.append(f"the workers of {len(counts)} pools")
    else:
        words += [member.words for member in counts]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def describe_difference(change: Counterfactual) -> str:
    """A difference in USD per hour in words: `0.48 (6.8 %) more`, with its range if plans are not proven optimal.

    Where the accuracy is maximised, in points: `0.6 points less`.
    """
    if change.delta_points is not None:
        return _points_text(change.delta_points, *change.delta_between_points)
    delta, share = change.delta_usd_per_h or 0.0, change.delta_share
    low, high = (end or 0.0 for end in change.delta_between_usd_per_h)
    text = "no more"
    if delta != 0:
        percent = "" if share is None else f" ({abs(share) * 100:{'.0f' if abs(share) >= 1 else '.2g'}} %)"
        text = f"{usd_text(abs(delta))}{percent} {'more' if delta > 0 else 'less'}"
    if high - low <= COST_TOLERANCE:
        return text
    return f"about {text} (of the plans found; proven: {low:+.3g} to {high:+.3g})"


def _points_text(points: float, low: float | None, high: float | None) -> str:
    text = f"{abs(points):.3g} points {'more' if points > 0 else 'less'}" if points else "no less"
    if low is None or high is None or high - low <= POINTS_TOLERANCE:
        return text
    return f"about {text} (of the plans found; proven: {low:+.3g} to {high:+.3g})"


def _joined(stated: str, sentence: str) -> str:
    return f"{stated}; {sentence}" if stated else sentence


def _served(plan: Plan, pools: frozenset[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for place in plan.placements:
        if place.pool in pools:
            found[place.operator] = found.get(place.operator, 0.0) + place.rate_per_s
    return found
