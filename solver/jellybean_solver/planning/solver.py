"""The two-stage solver: model selection over worker assignment, with a certificate or an explanation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from jellybean_solver.deadline.latency_lower_bound import LATENCY_TOLERANCE, least_latency_s
from jellybean_solver.deadline.link_headroom import RoomyLinks
from jellybean_solver.deadline.search import Timely, cheapest_timely
from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.dispatch import DEFAULT_GAP, assigned, cheapest_large, default_gap, is_large
from jellybean_solver.fleet.proposal import Proposal
from jellybean_solver.latency.estimate import latency
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.model.deadline_shares import deadline_shares
from jellybean_solver.model.evaluate import Evaluation, evaluate
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, Outcome, Selection, Termination, termination_of
from jellybean_solver.planning.infeasibility import Effort, Infeasibility, explain, explain_breaches
from jellybean_solver.small.assignment import Assignment
from jellybean_solver.small.beam_search import BEAM_WIDTH, BeamSearch
from jellybean_solver.small.objectives import Cheapest, Fleet
from jellybean_solver.small.ratio_branching import over_ratios
from jellybean_solver.small.routes import build_plan

AGREEMENT = 1e-6  # relative; assignment and evaluation are two computations of one cost


@dataclass(frozen=True, slots=True)
class Solution:
    """The solver's answer. `status`: infeasible, or why it stopped with a plan (the certificate's termination).

    `selections_tried` counts exact worker assignments; `certificate` is the plan's, or that of the refused plan.
    """

    status: str
    plan: Plan | None
    infeasibility: Infeasibility | None
    selections_tried: int
    certificate: Certificate | None


def solve(
    problem: Problem,
    *,
    beam_width: int = BEAM_WIDTH,
    gap: float | None = None,
    time_limit_s: float | None = None,
    clock: Callable[[], float] | None = None,
    explained: bool = True,
    p99_s: float | None = None,
) -> Solution:
    """The cheapest plan that meets the accuracy at the rates, or why there is none (only that, not `explained`).

    With `p99_s` the plan keeps that p99 latency too, by `latency.latency`; several workflows each their share of it
    (deadline_shares.py).

    `gap`: the relative gap at which the search on a large problem stops, by default `DEFAULT_GAP` for large fleets and
    under a deadline, else 0. Small problems are always solved to the end.
    `clock` gives seconds from any origin (such as time.monotonic) and is needed with a time limit. SolverError when
    time ends before any plan was found.
    """
    limit = limited(time_limit_s, clock)
    large = is_large(Network(problem))
    if gap is None:
        gap = default_gap(Network(problem)) if p99_s is None else DEFAULT_GAP
    possible = p99_s is None or least_latency_s(problem) <= p99_s * (1 + LATENCY_TOLERANCE)
    if p99_s is not None and possible and large and not problem.varying:
        return _large_in_time(problem, p99_s, beam_width, gap, limit, explained=explained)
    solution = _solve(problem, beam_width, gap, limit, explained=explained)
    if p99_s is None or solution.plan is None:
        return solution
    if not possible:
        return _too_slow(problem, solution, Timely(None, math.inf, latency(solution.plan).p99_s), p99_s)
    search = _timely_over_ratios if problem.varying else _timely
    found = search(problem, solution.plan, p99_s, beam_width, gap if large else 0.0, limit, large=large)
    return _in_time(problem, solution, found, p99_s)


def _in_time(problem: Problem, solution: Solution, found: Timely, p99_s: float) -> Solution:
    """What was found beside the cheapest plan that need not keep the latency."""
    if found.plan is None:
        if found.late and math.isfinite(found.bound):
            raise OutOfTimeError("no plan that keeps the p99 latency was found in the time allowed; allow more time")
        return _too_slow(problem, solution, found, p99_s)
    return solution if found.plan == solution.plan else _keeping(problem, found, solution.selections_tried)


def _large_in_time(
    problem: Problem, p99_s: float, beam_width: int, gap: float, limit: Clock, *, explained: bool
) -> Solution:
    """With room on links from the start; what else a plan is late for is seen to from the cheapest plan on."""
    roomy = RoomyLinks(problem, p99_s, gap, limit, _planned)
    first = roomy.run()
    if roomy.best is not None and (roomy.is_near or limit.left() == 0.0):
        return _certified(roomy.best, roomy.bound, roomy.tried, late=limit.left() == 0.0)
    if first is not None:
        solution = Solution(first.certificate.termination, first, None, roomy.tried, first.certificate)
    else:
        solution = _solve(problem, beam_width, gap, limit, explained=explained)
    if solution.plan is None:
        return solution
    found = _timely(problem, solution.plan, p99_s, beam_width, gap, limit, large=True, known=roomy.best)
    if found.plan is not None:
        found = replace(found, bound=max(found.bound, roomy.prove(found.plan)))
    return _in_time(problem, solution, found, p99_s)


def _planned(network: Network, outcome: Outcome[Assignment]) -> Plan | None:
    plan, evaluation = finish(network, outcome)
    return None if evaluation.complaints else plan


def _timely(
    problem: Problem,
    first: Plan,
    p99_s: float,
    beam_width: int,
    gap: float,
    limit: Clock,
    *,
    large: bool,
    known: Plan | None = None,
) -> Timely:
    """`first`: the cheapest plan that need not keep the latency; `known`: one that does."""
    budget, target = problem.slo.budget_usd_per_h or math.inf, problem.accuracy_target

    def solved(network: Network, proposal: Proposal | None) -> Plan | None:
        if proposal is None:
            outcome = cheapest_large(network, target, fixed=first.selection, gap=gap, clock=limit, budget=budget)
        elif large:
            outcome = assigned(network, proposal, budget, gap / 10.0, limit)
        else:
            outcome = cheapest(Fleet(network), target, beam_width=beam_width, gap=gap, clock=limit)
        return _planned(network, outcome) if outcome.found is not None else None

    return cheapest_timely(
        problem, p99_s, gap=gap, clock=limit, solve=solved, planned=_planned, first=first, large=large, known=known
    )


def _timely_over_ratios(
    problem: Problem, first: Plan, p99_s: float, beam_width: int, gap: float, limit: Clock, *, large: bool
) -> Timely:
    """One search for each choice of ratios, as far as its cheapest plan without the deadline is cheap enough."""
    if latency(first).meets(p99_s):
        return Timely(first, first.certificate.bound)
    fastest_s, late = math.inf, False

    def ask(plain: Problem, true: bool, limit: Clock, _: float) -> Outcome[Plan]:
        nonlocal fastest_s, late
        unknown: Outcome[Plan] = Outcome(math.inf, None, None, -math.inf, 1, Termination.TIME_LIMIT)
        try:
            cheap = _solve(plain, beam_width, gap, limit, explained=False)
        except OutOfTimeError:
            late = True
            return unknown
        if cheap.plan is None:
            bound = cheap.certificate.bound if cheap.certificate is not None else math.inf
            budget = plain.slo.budget_usd_per_h
            return replace(unknown, bound=math.inf if budget is not None and bound > budget else bound)
        if not true:
            return replace(unknown, bound=cheap.plan.certificate.bound)
        found = _timely(plain, cheap.plan, p99_s, beam_width, gap, limit, large=large)
        fastest_s, late = min(fastest_s, found.fastest_s), late or found.late
        if found.plan is None:
            return replace(unknown, bound=found.bound)
        value = found.plan.cost.total_usd_per_h
        return Outcome(value, found.plan, found.plan.selection, found.bound, 1, Termination.GAP)

    best = over_ratios(problem, ask, gap, limit)
    return Timely(best.found, best.bound, fastest_s, late)


def _keeping(problem: Problem, found: Timely, tried: int) -> Solution:
    """The solution of a plan that keeps the latency, with its own certificate."""
    if found.plan is None:
        raise SolverError("there is no plan to certify")
    evaluation = evaluate(problem, found.plan)
    if evaluation.complaints:
        complaints = "; ".join(evaluation.complaints)
        raise SolverError(f"the plan found contradicts the problem ({complaints}); please report this problem")
    return _certified(found.plan, found.bound, tried, late=found.late)


def _certified(plan: Plan, bound: float, tried: int, *, late: bool) -> Solution:
    value = plan.cost.total_usd_per_h
    certificate = Certificate.of(value, min(bound, value), termination_of(value, bound, out_of_time=late))
    return Solution(certificate.termination, replace(plan, certificate=certificate), None, tried, certificate)


def _too_slow(problem: Problem, cheap: Solution, found: Timely, p99_s: float) -> Solution:
    """No plan keeps the latency, proven or as far as was looked."""
    known = f"the fastest plan looked at has a p99 latency of {1e3 * found.fastest_s:.0f} ms"
    asked = f"a p99 latency of {1e3 * p99_s:.0f} ms"
    if problem.workflows:
        own = (f"{1e3 * share * p99_s:.0f} ms for {name}" for name, share in deadline_shares(problem).items())
        asked = f"p99 latencies of {' and '.join(own)}"
        known = f"of the fastest plan looked at one is {found.fastest_s / p99_s:.3g} times as long"
    if math.isinf(found.bound) and not problem.workflows:
        reason = f"no plan answers within {1e3 * p99_s:.0f} ms even when nothing waits"
    elif math.isinf(found.bound):
        reason = f"no plan keeps {asked} even when nothing waits"
    else:
        reason = f"no plan was found that keeps {asked}; {known}"
    refused = Infeasibility((reason,), (), None, None, cheap.plan, found.fastest_s, found.bound)
    return Solution("infeasible", None, refused, cheap.selections_tried, cheap.certificate)


def _solve(problem: Problem, beam_width: int, gap: float, limit: Clock, *, explained: bool) -> Solution:
    def holds(changed: Problem) -> bool:
        try:
            return _solve(changed, beam_width, gap, limit, explained=False).plan is not None
        except SolverError:  # out of time: not shown to hold
            return False

    fleet = Fleet(Network(problem))
    effort = Effort(limit, holds)
    outcome = cheapest(fleet, problem.accuracy_target, beam_width=beam_width, gap=gap, clock=limit)
    if outcome.found is None:
        if not outcome.is_conclusive:
            raise nothing_found(outcome)
        reasons = explain(fleet.network, effort) if explained else None
        return Solution("infeasible", None, reasons, outcome.tried, None)
    plan, evaluation = finish(fleet.network, outcome)
    if evaluation.breaches and (affordable := _affordable(fleet, outcome, gap, limit)) is not None:
        outcome, (plan, evaluation) = affordable, finish(fleet.network, affordable)
    if evaluation.violations:
        raise SolverError(
            f"the plan found contradicts the problem ({'; '.join(evaluation.violations)}); please report this problem"
        )
    if evaluation.breaches:
        broken = Infeasibility(evaluation.breaches, evaluation.breaches, refused=plan)
        reasons = explain_breaches(fleet.network, plan, evaluation, effort) if explained else broken
        return Solution("infeasible", None, reasons, outcome.tried, plan.certificate)
    return Solution(plan.certificate.termination, plan, None, outcome.tried, plan.certificate)


def _affordable(fleet: Fleet, outcome: Outcome[Assignment], gap: float, limit: Clock) -> Outcome[Assignment] | None:
    """An answer within the budget after one that is not, if there may be one; an error where that stays unknown."""
    budget, target = fleet.network.problem.slo.budget_usd_per_h, fleet.network.problem.accuracy_target
    if budget is None or outcome.bound > budget:
        return None
    within = outcome
    if is_large(fleet.network):  # a gap around the budget
        within = cheapest_large(fleet.network, target, fixed=None, gap=gap, clock=limit, budget=budget)
        if within.found is not None:
            return within
    if not within.is_conclusive:
        raise nothing_found(within, f" within the budget of {budget:g} USD/h")
    return None


def cheapest(
    fleet: Fleet,
    target: float | None,
    *,
    fixed: Selection | None = None,
    beam_width: int = BEAM_WIDTH,
    gap: float = DEFAULT_GAP,
    clock: Clock | None = None,
    running: RunningPlan | None = None,
    budget: float = math.inf,
) -> Outcome[Assignment]:
    """The cheapest selection and assignment that reach the accuracy `target` with the variants in `fixed`.

    From a `running` plan the cost includes the way there; `budget` is on what the plan costs without it.
    """
    if is_large(fleet.network, fixed):
        limit = clock or Clock()
        return cheapest_large(fleet.network, target, fixed=fixed, gap=gap, clock=limit, budget=budget, running=running)
    network, clock = fleet.network, clock or Clock()
    search: BeamSearch[Assignment] = BeamSearch(
        network,
        Cheapest(fleet, running, budget),
        target=target,
        fixed=fixed,
        beam_width=beam_width,
        clock=clock,
        companion=ConcurrentMilp(network, target, fixed or {}, clock, running=running, budget=budget),
    )
    return search.run()


def finish(
    network: Network, outcome: Outcome[Assignment], running: RunningPlan | None = None
) -> tuple[Plan, Evaluation]:
    """The plan of a search's answer, scored. SolverError when assignment and evaluation disagree.

    From a `running` plan the certificate is about what the plan costs with the way there. That is computed from the two
    plans alone and must be what the assignment says, or less where the search was not ended.
    """
    if outcome.found is None or outcome.selection is None:
        raise SolverError("the search has no answer to make a plan of")
    draft = build_plan(network, outcome.selection, outcome.found, _certificate(outcome, outcome.value))
    evaluation = evaluate(network.problem, draft)
    total = evaluation.cost.total_usd_per_h + (running.usd_per_h(draft) if running is not None else 0.0)
    less = outcome.value - total
    unended = running is not None and not outcome.is_conclusive
    if abs(less) > AGREEMENT * max(1.0, abs(outcome.value)) and not (unended and less > 0):
        raise SolverError(
            f"the assignment's cost of {outcome.value:.9g} USD/h and the plan's of {total:.9g} USD/h disagree; "
            "please report this problem"
        )
    certificate = _certificate(outcome, total)
    return replace(evaluation.stated(draft), certificate=certificate), evaluation


def nothing_found(outcome: Outcome[Assignment], within: str = "") -> SolverError:
    """Why a search that was not ended has no answer."""
    tried = f"({outcome.tried} selections tried)"
    if outcome.termination == Termination.TIME_LIMIT:
        return OutOfTimeError(f"no plan{within} was found in the time allowed {tried}; allow more time")
    return SolverError(
        f"no plan{within} was found, nor proven that there is none {tried}: too many sets of models "
        "fit on one worker to try them all; use fewer variants or pools, or give workers more memory"
    )


def _certificate(outcome: Outcome[Assignment], objective: float) -> Certificate:
    return Certificate.of(objective, min(outcome.bound, objective), outcome.termination)


def limited(time_limit_s: float | None, clock: Callable[[], float] | None) -> Clock:
    """A clock that runs from now on to the limit. SolverError for a limit without a clock."""
    if time_limit_s is None:
        return Clock()
    if clock is None:
        raise SolverError("a time limit needs a clock: solve(problem, time_limit_s=5, clock=time.monotonic)")
    return Clock(clock, clock() + time_limit_s)
