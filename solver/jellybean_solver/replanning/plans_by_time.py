"""A plan for each period of rates that change with time: the cheapest sequence of plans, with the changes between them.

What a p99 latency counts takes a simulation, and plans that may be started from another one take a search. So both are
found only where the cheapest sequence without them needs them: until then its cost is a lower bound.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, starmap

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.migration.migration_cost import Migration, MigrationPrices, cheapest_migration
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.starts import startable
from jellybean_solver.outcome import Clock
from jellybean_solver.replanning.billing import improved, unused_usd
from jellybean_solver.replanning.by_time import Period, Rates, cheapest_sequence
from jellybean_solver.replanning.rescore import rescore
from jellybean_solver.time_limit import work_limit

PLANS_PART = 0.75  # of the time, for all plans; the rest for what they and the changes between them cost
PEAK_PART = 0.4  # of the time, for the plan for the highest rates, without which there is none for all periods
STARTED_PART = 0.2  # of the time left, for a plan that may be started from another one
MOST_STARTED = 60  # such plans: changes that are ruled out beyond are not made
BETWEEN = (0.25, 0.5, 0.75)  # of the way to higher rates, for which a plan is made so that those after it can start
FIRST_USD = 1e5  # per hour, of a point of accuracy or a second, beside which all costs are small
SAME_RATE = 1e-5  # relative: rates in settings have six digits

PlanFor = Callable[[Rates, Mapping[str, int], Clock], Plan | None]
Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """The plan of a period. `cost_usd`: of the whole period at its rates; `change_usd`: of changing to this plan.

    `loads`: models that workers load for the change. `penalty_usd`: what an accuracy below a soft target, and a p99
    latency above one, count in this period, which nobody pays; `forgone_usd`: what the workflows that the plan leaves
    out are worth in this period.
    """

    period: Period
    plan: Plan
    cost_usd: float
    penalty_usd: float
    forgone_usd: float
    change_usd: float = 0.0
    loads: int = 0

    @property
    def cost_usd_per_h(self) -> float:
        """The cost per hour at the period's rates."""
        return self.cost_usd / self.period.hours


@dataclass(frozen=True)
class PlansByTime:
    """`periods`: in order, each with its plan; `repeats`: the first follows on the last.

    `peak_usd`: cost over all of the time of one plan for the highest rates. `bound_usd`: lower bound on the cost of any
    plans by time, changes left out; 0 for another objective. Both count penalties of a soft target, and the worth of
    what is left out, as the choice of plans does. `unused_usd`: for the rest of units of billing that workers are
    stopped in. `limited_by`: pools whose `max_starts` rules out changes of the cheapest sequence without such limits,
    which is to cost `unlimited_usd`. `wanted_plans`: sets of rates for which a plan was to be made; `unplanned`: those
    of them that the time limit left without a plan of their own.
    """

    periods: tuple[TimedPlan, ...]
    repeats: bool
    peak_usd: float
    bound_usd: float
    unused_usd: float
    wanted_plans: int
    unplanned: int
    limited_by: tuple[str, ...] = ()
    unlimited_usd: float = 0.0

    @property
    def change_usd(self) -> float:
        """What all changes cost."""
        return sum(row.change_usd for row in self.periods)

    @property
    def total_usd(self) -> float:
        """What is paid."""
        return sum(row.cost_usd for row in self.periods) + self.change_usd + self.unused_usd

    @property
    def penalty_usd(self) -> float:
        """What accuracies and p99 latencies miss of soft targets, by their penalties."""
        return sum(row.penalty_usd for row in self.periods)

    @property
    def forgone_usd(self) -> float:
        """What the workflows that plans leave out are worth."""
        return sum(row.forgone_usd for row in self.periods)


@dataclass(frozen=True)
class TimedProblem:
    """A problem whose rates change with time. `repeats`: the first period follows on the last.

    `plan_for` makes the plan for some rates, with so many workers of some pools, until a limit; None if there is none.
    `billing_s`: pool -> unit in which its workers are paid. `late_usd_per_h`: what the p99 latencies of a plan count
    above soft targets, by a simulation; None without such targets. `worse`: what plans of another objective than the
    cost are compared by before all costs.
    """

    problem: Problem
    periods: tuple[Period, ...]
    repeats: bool
    prices: MigrationPrices
    billing_s: Mapping[str, float]
    plan_for: PlanFor
    late_usd_per_h: Callable[[Plan], float] | None
    worse: Callable[[Plan], float]


def plans_by_time(asked: TimedProblem, tell: Tell = lambda done, total: None) -> PlansByTime | Rates:
    """The cheapest plans by time that were found, or rates for which there is no plan.

    When the time limit of the work ends, periods that have no plan of their own get one of the others; that for the
    highest rates is made first. OutOfTimeError if there is no time for that one.
    """
    search, periods = _Search(asked), asked.periods
    peaks = {name: max(one.rates_per_s[name] for one in periods) for name in periods[0].rates_per_s}
    wanted = {_key(rates): rates for rates in (peaks, *(one.rates_per_s for one in periods))}
    bounds: dict[str, float] = {}
    work = work_limit().share(PLANS_PART)
    for number, (key, rates) in enumerate(wanted.items()):
        if bounds and work.left() == 0.0:
            break
        tell(number, len(wanted))
        share = max(1.0 / (len(wanted) - number), 0.0 if bounds else PEAK_PART)
        with contextlib.suppress(*([OutOfTimeError] if bounds else [])):
            if not search.add(rates, {}, work.share(share)):
                return rates
            bounds[key] = search.plans[-1].certificate.bound
    tell(len(wanted), len(wanted))
    sequence = search.cheapest()
    is_cost = asked.problem.objective is Objective.COST
    return PlansByTime(
        tuple(search.rows(sequence)),
        asked.repeats,
        search.usd([0] * len(periods)),
        sum(period.hours * bounds.get(_key(period.rates_per_s), 0.0) for period in periods if is_cost),
        search.unused_usd(sequence),
        len(wanted),
        len(wanted) - len(bounds),
        tuple(sorted(search.limiting)),
        search.unlimited_usd,
    )


def _key(rates: Rates) -> str:
    return repr(dict(rates))


def _levels(counts: Mapping[str, tuple[int, int]]) -> Iterator[Mapping[str, int]]:
    """Numbers of workers by pool, from the first one up in growing steps, as long as they are below the second."""
    more = 0
    while below := {pool: least + more for pool, (least, most) in counts.items() if least + more < most}:
        yield below
        more = 2 * more or 1


class _Search:
    """Plans, and what they cost in each period. `plans`: that for the highest rates first; sequences are of indices."""

    def __init__(self, asked: TimedProblem) -> None:
        self.asked = asked
        self.is_timed = asked.problem.deadline_s is not None or asked.problem.objective is Objective.LATENCY
        self.plans: list[Plan] = []
        self.limiting: set[str] = set()
        self.unlimited_usd = 0.0
        self._tried: set[str] = set()
        self._ruled_out: set[tuple[int, int]] = set()
        self._late_usd: dict[tuple[int, int], float] = {}
        self._entry = cache(self._entry_of)
        self._change = cache(self._change_of)

    def add(self, rates: Rates, counts: Mapping[str, int], within: Clock) -> bool:
        """Add the plan for some rates, with so many workers of some pools; False if there is none."""
        plan = self.asked.plan_for(rates, counts, within)
        self.plans += [] if plan is None else [plan]
        return plan is not None

    def _entry_of(self, number: int, at: int) -> TimedPlan | None:
        """A period with a plan at the period's rates; None if it does not meet the targets there.

        Requests take the plan's routes in its proportions, also after the losses that it is to bear. With a p99 target
        a plan does for rates up to those that it was made for, where it was simulated.
        """
        period, plan = self.asked.periods[number], self.plans[at]
        made = {source.name: source.rate_per_s * (1 + SAME_RATE) for source in plan.sources}
        if self.is_timed and any(rate > made.get(name, math.inf) for name, rate in period.rates_per_s.items()):
            return None
        _, score, wrong = rescore(self._at_rates(period), plan)
        if wrong:
            return None
        # The accuracy, and what it counts for a soft target that it misses, is the same at all rates.
        figures = (score.cost.total_usd_per_h, plan.accuracy_penalty_usd_per_h, plan.forgone_usd_per_h)
        cost, penalty, forgone = (period.hours * usd_per_h for usd_per_h in figures)
        return TimedPlan(period, plan, cost, penalty, forgone)

    def _at_rates(self, period: Period) -> Problem:
        """The problem at the rates of a period."""
        problem = self.asked.problem
        rates = problem.with_audit_rates(period.rates_per_s)
        return replace(problem, sources=tuple(replace(one, rate_per_s=rates[one.name]) for one in problem.sources))

    def _change_of(self, before: int, after: int) -> Migration:
        return cheapest_migration(self.plans[before], self.plans[after], self.asked.prices)

    def _move_usd(self, before: int, after: int) -> float:
        if (before, after) in self._ruled_out:
            return math.inf
        return 0.0 if before == after else self._change(before, after).total_usd

    def _stay_usd(self, number: int, at: int) -> float:
        entry = self._entry(number, at)
        if entry is None:
            return math.inf
        return entry.cost_usd + entry.penalty_usd + entry.forgone_usd + self._late_usd.get((number, at), 0.0)

    def _first_usd(self, number: int, at: int) -> float:
        """What a plan counts before all costs, on their scale."""
        return FIRST_USD * self.asked.periods[number].hours * self.asked.worse(self.plans[at])

    def _steps(self, sequence: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The plan before each period, and that of the period. Before the first is the last, if periods repeat."""
        return pairwise((sequence[-1 if self.asked.repeats else 0], *sequence))

    def usd(self, sequence: Sequence[int]) -> float:
        """USD of the periods, of the changes between them, and of what is unused."""
        own = sum(starmap(self._stay_usd, enumerate(sequence)))
        return own + sum(starmap(self._move_usd, self._steps(sequence))) + self.unused_usd(sequence)

    def unused_usd(self, sequence: Sequence[int]) -> float:
        """USD for the rest of units of billing that workers are stopped in."""
        plans, asked = [self.plans[at] for at in sequence], self.asked
        return unused_usd(asked.periods, plans, asked.billing_s, repeats=asked.repeats)

    def _value(self, sequence: Sequence[int]) -> float:
        return self.usd(sequence) + sum(starmap(self._first_usd, enumerate(sequence)))

    def cheapest(self) -> Sequence[int]:
        """The cheapest sequence found: what is not known yet of it is counted, and it is sought again."""
        numbers = range(len(self.asked.periods))
        while True:
            plans = range(len(self.plans))
            stays = [[self._stay_usd(number, at) + self._first_usd(number, at) for at in plans] for number in numbers]
            moves = [[self._move_usd(before, after) for after in plans] for before in plans]
            _, sequence = cheapest_sequence(stays, moves, repeats=self.asked.repeats)
            if self.asked.billing_s:
                sequence = tuple(improved(sequence, self._value, len(plans)))
            if not self._count_late(sequence) and not self._rule_out(sequence):
                return sequence

    def _count_late(self, sequence: Sequence[int]) -> bool:
        """Count what p99 latencies above soft targets cost in a sequence, and with the first plan; False if known."""
        late_usd_per_h = self.asked.late_usd_per_h
        if late_usd_per_h is None:
            return False
        wanted = {*enumerate(sequence), *((number, 0) for number in range(len(sequence)))} - set(self._late_usd)
        for number, at in wanted:
            period = self.asked.periods[number]
            plan, _, _ = rescore(self._at_rates(period), self.plans[at])
            self._late_usd[number, at] = period.hours * late_usd_per_h(plan)
        return bool(wanted)

    def _rule_out(self, sequence: Sequence[int]) -> bool:
        """Rule out changes of a sequence that start too many workers, and add plans that may be started instead.

        These have as many workers as may be started, or more, for a plan before them that has more. Plans for the
        period before have more of those that cannot be started: they have fewer workers of other pools, or are for
        higher rates. False if there is nothing to rule out.
        """
        usd = self.usd(sequence)
        steps = [(number, step, self._limits(*step)) for number, step in enumerate(self._steps(sequence))]
        steps = [one for one in steps if one[2]]
        if steps and not self._ruled_out:
            self.unlimited_usd = usd
        for number, step, limits in steps:
            self._ruled_out.add(step)
            self.limiting |= set(limits)
            runs, wanted = (Counter(worker.pool for worker in self.plans[at].workers) for at in step)
            rates = self.asked.periods[number].rates_per_s
            for counts in _levels({pool: (count, wanted[pool]) for pool, count in limits.items()}):
                self._try(rates, counts)
            earlier = self.asked.periods[number - 1].rates_per_s
            for counts in _levels({pool: (0, count) for pool, count in runs.items() if pool not in limits}):
                self._try(earlier, counts)
            more = {name: max(0.0, rate - earlier[name]) for name, rate in rates.items()}
            for share in BETWEEN if any(more.values()) else ():
                self._try({name: rate + share * more[name] for name, rate in earlier.items()}, {})
        return bool(steps)

    def _limits(self, before: int, after: int) -> Mapping[str, int]:
        """Pools of which a change starts too many workers, with the number of workers that it can have."""
        wanted = Counter(worker.pool for worker in self.plans[after].workers)
        reached = startable(self.asked.problem, self.plans[before]).pool_by_name
        return {pool: reached[pool].count for pool, count in wanted.items() if count > reached[pool].count}

    def _try(self, rates: Rates, counts: Mapping[str, int]) -> None:
        """Add the plan for some rates with so many workers of some pools, if there is one and time is left."""
        key, limit = _key(rates) + _key(counts), work_limit()
        if key in self._tried or len(self._tried) == MOST_STARTED or limit.left() == 0.0:
            return
        self._tried.add(key)
        with contextlib.suppress(OutOfTimeError):
            self.add(rates, counts, limit.share(STARTED_PART))

    def rows(self, sequence: Sequence[int]) -> Iterator[TimedPlan]:
        """The periods with their plans and the changes to them."""
        for number, (before, at) in enumerate(self._steps(sequence)):
            entry = self._entry(number, at)
            if entry is None:
                raise AssertionError("a plan of the sequence does for its period")
            loads = 0 if before == at else self._change(before, at).replicas
            penalty_usd = entry.penalty_usd + self._late_usd.get((number, at), 0.0)
            yield replace(entry, penalty_usd=penalty_usd, change_usd=self._move_usd(before, at), loads=loads)
