"""Plans by time: for the rates of a trace, a plan for each period, with the cost of changing from one to the next."""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from jellybean.documents import (
    AnyProject,
    MultiWorkflowProject,
    build_problem,
    load_any_project,
    override_options,
    rates_of_sources,
    with_settings,
)
from jellybean.documents.rate_trace import RateTraceFile, read_rate_trace
from jellybean.errors import InfeasibleError, InputError
from jellybean.planning.deadline.predicted_latency import first_p99_s, latency_targets
from jellybean.planning.deadline.soft_targets import latency_penalty, soft_targets
from jellybean.planning.project_plan import plan_project
from jellybean.planning.searched_objectives import stated_objective
from jellybean.whatif.billing import improved, unused_usd
from jellybean_solver import (
    MigrationPrices,
    Objective,
    OutOfTimeError,
    Period,
    Plan,
    Problem,
    change,
    cheapest_sequence,
    deadline_s,
    merged_periods,
    rate_text,
    rescore,
    with_audit_rates,
    work_limit,
)

LEAST_SHARE = 0.01  # of a source's highest rate: a period without requests is planned for that
DEFAULT_PERIODS = 24
PLANS_PART = 0.75  # of the time, for all plans; the rest for what they and the changes between them cost
FIRST_USD = 1e5  # per hour, of a point of accuracy or a second, beside which all costs are small
PEAK_PART = 0.4  # of the time, for the plan for the highest rates, without which there is none for all periods

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """The plan of a period. `cost_usd`: of the whole period at its rates; `change_usd`: of changing to this plan.

    `options`: the `--set` options that make the plan. `loads`: models that workers load for the change. `penalty_usd`:
    what an accuracy below a soft target, and a p99 latency above one, count in this period, which nobody pays;
    `forgone_usd`: what the workflows that the plan leaves out are worth in this period.
    """

    period: Period
    plan: Plan
    options: tuple[str, ...]
    cost_usd: float
    change_usd: float
    loads: int
    penalty_usd: float = 0.0
    forgone_usd: float = 0.0

    def command(self, directory: Path, verb: str = "apply") -> str:
        """The command that changes to this plan."""
        return f"jellybean {verb} {shlex.quote(str(directory))}{override_options(self.options)}"


@dataclass(frozen=True, slots=True)
class Calendar:
    """`periods`: in order, each with its plan; `repeats`: the first follows on the last.

    `peak_usd`: cost over all of the time of one plan for the highest rates. `bound_usd`: lower bound on the cost of any
    plans by time, changes left out; 0 for another objective. Both count penalties of a soft target, and the worth of
    what is left out, as the choice of plans does. `unused_usd`: for the rest of units of billing that workers are
    stopped in.
    """

    project: AnyProject
    file: RateTraceFile
    periods: tuple[TimedPlan, ...]
    repeats: bool
    peak_usd: float
    bound_usd: float
    unused_usd: float = 0.0
    wanted_plans: int = 0  # sets of rates for which a plan was to be made
    unplanned: int = 0  # those of them that the time limit left without a plan of their own

    @property
    def total_usd(self) -> float:
        return sum(one.cost_usd + one.change_usd for one in self.periods) + self.unused_usd

    @property
    def penalty_usd(self) -> float:
        """What accuracies and p99 latencies miss of soft targets, by their penalties."""
        return sum(one.penalty_usd for one in self.periods)

    @property
    def forgone_usd(self) -> float:
        """What the workflows that plans leave out are worth."""
        return sum(one.forgone_usd for one in self.periods)

    @property
    def mean_accuracy(self) -> float | None:
        """The mean over the time of what `objective: mean_accuracy` maximises; None for another objective."""
        if stated_objective(self.project) is not Objective.MEAN_ACCURACY:
            return None
        hours = sum(one.period.hours for one in self.periods)
        return sum(one.period.hours * (one.plan.mean_accuracy or 0.0) for one in self.periods) / hours

    @property
    def command_verb(self) -> str:
        """The command that makes a plan of the calendar: plans of sites that differ are made, not served."""
        return "plan" if isinstance(self.project, MultiWorkflowProject) and self.project.written else "apply"

    @property
    def change_usd(self) -> float:
        return sum(one.change_usd for one in self.periods)

    @property
    def plans(self) -> int:
        """How many different plans there are."""
        return len({one.options for one in self.periods})


@dataclass(frozen=True, slots=True)
class _Candidate:
    rates_per_s: dict[str, float]
    options: tuple[str, ...]
    plan: Plan


def plan_by_time(
    directory: Path,
    path: Path,
    overrides: Sequence[str] = (),
    *,
    most: int = DEFAULT_PERIODS,
    repeats: bool = True,
    accept_stale: bool = False,
    progress: Progress = lambda done, total, label: None,
) -> Calendar:
    """Plan for each period of a trace, and choose where changing pays. InfeasibleError if a period has no plan.

    `most`: periods; neighbours of like rates are merged. When the time limit of the work ends, periods that have no
    plan of their own get one of the others; that for the highest rates is made first.
    """

    project = load_any_project(directory, overrides, accept_stale=accept_stale)
    problem = build_problem(project)
    if problem.objective is Objective.RATE:
        raise InputError(
            "objective: rate asks for the highest rates, but a trace states them: write objective: cost, mean_accuracy "
            "or latency"
        )
    file = read_rate_trace(path, problem)
    periods = _periods(file, most)
    found, wanted = _candidates(project, periods, progress)
    prices = MigrationPrices(
        project.infrastructure.migration.start_usd, project.infrastructure.migration.download_usd_per_gib
    )
    timed = deadline_s(problem) is not None or problem.objective is Objective.LATENCY
    costs_usd = [[_cost_usd(problem, period, one, timed=timed) for one in found] for period in periods]

    @cache
    def change_between(before: int, after: int) -> tuple[float, int]:
        """USD and loads of a change, by the plans' indices."""
        if before == after:
            return 0.0, 0
        moved = change(found[before].plan, found[after].plan, prices)
        if not _is_startable(project, found[before].plan, found[after].plan):
            return math.inf, moved.replicas
        return moved.total_usd, moved.replicas

    indices = range(len(found))
    changes_usd = [[change_between(one, two)[0] for two in indices] for one in indices]
    billing_s = {name: pool.billing_s for name, pool in project.infrastructure.workers.items() if pool.billing_s}

    @cache
    def late_usd(number: int, at: int) -> float:
        """USD that the p99 latencies of a period with a plan count, by indices."""
        return periods[number].hours * _late_usd_per_h(problem, periods[number], found[at])

    worse = [_worse(problem.objective, one.plan) for one in found]
    costs = _SequenceCosts(periods, [one.plan for one in found], costs_usd, changes_usd, billing_s, repeats, worse)
    costs, chosen = costs.with_late(late_usd)
    rows = _timed_plans(costs, chosen, found, lambda before, at: change_between(before, at)[1], late_usd)
    is_cost = problem.objective is Objective.COST
    bounds = {_key(one.rates_per_s): one.plan.certificate.bound for one in found if is_cost}
    bound = sum(period.hours * bounds.get(_key(period.rates_per_s), 0.0) for period in periods)
    peak_usd = costs.total_usd([len(found) - 1] * len(periods))
    return Calendar(
        project, file, tuple(rows), repeats, peak_usd, bound, costs.unused_usd(chosen), wanted, wanted - len(found)
    )


@dataclass(frozen=True, slots=True)
class _SequenceCosts:
    """What sequences of plans cost, each the indices of the periods' plans.

    `costs_usd`: by period and plan; `changes_usd`: from one plan to another; `billing_s`: pool -> unit of its billing.
    `worse`: by plan, what another objective than the cost minimises first, over the time.
    """

    periods: Sequence[Period]
    plans: Sequence[Plan]
    costs_usd: Sequence[Sequence[float]]
    changes_usd: Sequence[Sequence[float]]
    billing_s: Mapping[str, float]
    repeats: bool
    worse: Sequence[float]

    def with_late(self, late_usd: Callable[[int, int], float]) -> tuple[_SequenceCosts, Sequence[int]]:
        """The costs with what p99 latencies count, by period and plan, and the cheapest sequence.

        Only what such a sequence and that of the last plan alone need is asked for: without it costs are lower bounds.
        """
        costs = [list(row) for row in self.costs_usd]
        needed = {(number, len(self.plans) - 1) for number in range(len(self.periods))}
        known: set[tuple[int, int]] = set()
        while needed:
            for number, at in needed:
                costs[number][at] += late_usd(number, at)
            known |= needed
            counted = replace(self, costs_usd=costs)
            chosen = counted.cheapest()
            needed = set(enumerate(chosen)) - known
        return counted, chosen

    def cheapest(self) -> Sequence[int]:
        """The cheapest sequence found. InfeasibleError if each one has a period that its plan does not do for."""
        counted = [
            [usd + self._first(period, at) for at, usd in enumerate(row)]
            for period, row in zip(self.periods, self.costs_usd, strict=True)
        ]
        total, chosen = cheapest_sequence(counted, self.changes_usd, repeats=self.repeats)
        if not chosen or total == float("inf"):
            raise InfeasibleError(("no plan does for one of the periods, although each has one by itself",))
        return improved(chosen, self._value, len(self.plans)) if self.billing_s else chosen

    def _first(self, period: Period, at: int) -> float:
        """What a plan counts before all costs, on their scale."""
        return FIRST_USD * period.hours * self.worse[at]

    def _value(self, sequence: Sequence[int]) -> float:
        first = sum(self._first(period, at) for period, at in zip(self.periods, sequence, strict=True))
        return first + self.total_usd(sequence)

    def steps(self, sequence: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The plan before each period, and that of the period. Before the first is the last, if periods repeat."""
        return itertools.pairwise((sequence[-1 if self.repeats else 0], *sequence))

    def total_usd(self, sequence: Sequence[int]) -> float:
        """USD of the periods, of the changes between them, and of what is unused."""
        own = sum(costs[at] for costs, at in zip(self.costs_usd, sequence, strict=True))
        changes = sum(self.changes_usd[before][at] for before, at in self.steps(sequence))
        return own + changes + self.unused_usd(sequence)

    def unused_usd(self, sequence: Sequence[int]) -> float:
        """USD for the rest of units of billing that workers are stopped in."""
        return unused_usd(self.periods, [self.plans[at] for at in sequence], self.billing_s, repeats=self.repeats)


def _timed_plans(
    costs: _SequenceCosts,
    chosen: Sequence[int],
    found: Sequence[_Candidate],
    loads: Callable[[int, int], int],
    late_usd: Callable[[int, int], float],
) -> Iterator[TimedPlan]:
    """The plan of each period. `loads`: of a change, by indices of plans; `late_usd`: by period and plan."""
    for number, (before, at) in enumerate(costs.steps(chosen)):
        period, own = costs.periods[number], found[at]
        penalty_usd = period.hours * own.plan.accuracy_penalty_usd_per_h + late_usd(number, at)
        forgone_usd = period.hours * own.plan.forgone_usd_per_h
        cost_usd, change_usd = costs.costs_usd[number][at] - penalty_usd - forgone_usd, costs.changes_usd[before][at]
        yield TimedPlan(
            period, own.plan, own.options, cost_usd, change_usd, loads(before, at), penalty_usd, forgone_usd
        )


def _worse(objective: Objective, plan: Plan) -> float:
    """What plans of an objective are compared by before their cost: points of accuracy, or seconds of the p99 target.

    Rounded, so that figures that differ by less are equal and the cost decides.
    """
    if objective is Objective.MEAN_ACCURACY:
        return round(100.0 - (plan.mean_accuracy or 0.0), 2)
    if objective is Objective.LATENCY:
        return round(max(latency_targets(plan).values(), default=0.0), 3)
    return 0.0


def _periods(file: RateTraceFile, most: int) -> tuple[Period, ...]:
    """The trace's periods, no rate below a share of its source's highest."""
    peaks, start_s = file.trace.peaks_per_s, 0.0
    found = []
    for stretch in file.trace.stretches:
        rates = {name: max(rate, LEAST_SHARE * peaks[name]) for name, rate in stretch.rates_per_s.items()}
        found.append(Period(start_s, start_s + stretch.length_s, rates))
        start_s += stretch.length_s
    return merged_periods(found, most)


def _candidates(project: AnyProject, periods: Sequence[Period], progress: Progress) -> tuple[list[_Candidate], int]:
    """A plan for each set of rates, at the end the one for the highest rates of all; and how many sets there are.

    That one is made first, as it does for all periods. The time left is shared among the sets that are left.
    """
    peaks = {name: max(one.rates_per_s[name] for one in periods) for name in periods[0].rates_per_s}
    wanted = {_key(one.rates_per_s): dict(one.rates_per_s) for one in periods}
    wanted.pop(_key(peaks), None)
    wanted[_key(peaks)] = peaks
    found: list[_Candidate] = []
    work = work_limit().share(PLANS_PART)
    for number, rates in enumerate((peaks, *list(wanted.values())[:-1])):
        if found and work.left() == 0.0:
            break
        progress(number, len(wanted), f"plan {number + 1} of {len(wanted)}")
        share = max(1.0 / (len(wanted) - number), 0.0 if found else PEAK_PART)
        asked = with_settings(project, rates_of_sources(project, rates))
        try:
            planned = plan_project(asked, time_limit_s=work.share(share).left(), compare=False)
        except OutOfTimeError:
            if not found:
                raise
            continue
        if planned.plan is None:
            shown = ", ".join(f"{name} {rate_text(rate)}" for name, rate in rates.items())
            raise InfeasibleError((f"no plan meets the targets at {shown}", *planned.reasons))
        found.append(_Candidate(rates, planned.plan.overrides, planned.plan))
    progress(len(wanted), len(wanted), "done")
    return [*found[1:], found[0]], len(wanted)


def _is_startable(project: AnyProject, before: Plan, after: Plan) -> bool:
    """True if a change starts no more workers of any pool than `workers.W.max_starts`."""
    running, wanted = (Counter(worker.pool for worker in plan.workers) for plan in (before, after))
    fleet = project.infrastructure.startable_beside(running).workers
    return all(count <= max(running[pool], fleet[pool].count) for pool, count in wanted.items())


def _cost_usd(problem: Problem, period: Period, candidate: _Candidate, *, timed: bool) -> float:
    """USD of a period with a plan at the period's rates, with its penalties and what it leaves out.

    inf if it does not meet the targets there.

    Requests take the plan's routes in its proportions, also after the losses that it is to bear. With a p99 target
    (`timed`) a plan does for rates up to those that it was made for, where it was simulated.
    """
    rates = period.rates_per_s
    if timed and any(rate > candidate.rates_per_s[name] * (1 + 1e-9) for name, rate in rates.items()):
        return float("inf")
    _, score, wrong = rescore(_at_rates(problem, period), candidate.plan)
    if wrong:
        return float("inf")
    # The accuracy, and what it counts for a soft target that it misses, is the same at all rates.
    beside = candidate.plan.accuracy_penalty_usd_per_h + candidate.plan.forgone_usd_per_h
    return period.hours * (score.cost.total_usd_per_h + beside)


def _late_usd_per_h(problem: Problem, period: Period, candidate: _Candidate) -> float:
    """USD per hour that the p99 latencies of a plan count at a period's rates, by one simulation."""
    if not soft_targets(problem):
        return 0.0
    plan, _, _ = rescore(_at_rates(problem, period), candidate.plan)
    return latency_penalty(plan, first_p99_s(plan, {})[0])


def _at_rates(problem: Problem, period: Period) -> Problem:
    """The problem at the rates of a period."""
    rates = with_audit_rates(problem, period.rates_per_s)
    sources = tuple(replace(source, rate_per_s=rates[source.name]) for source in problem.sources)
    return replace(problem, sources=sources)


def _key(rates: object) -> str:
    return repr(rates)
