"""The two-stage solver: model selection over worker assignment, with a certificate or an explanation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.dispatch import cheapest_large, is_large
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.model.evaluate import Evaluation, evaluate
from jellybean_solver.model.least_cost import least_usd_per_h_of_work
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, Outcome, Termination
from jellybean_solver.planning.infeasibility import Infeasibility, explain, explain_breaches
from jellybean_solver.small.assignment import Assignment
from jellybean_solver.small.beam_search import BeamSearch
from jellybean_solver.small.routes import build_plan
from jellybean_solver.time_limit import earlier, work_limit

AGREEMENT = 1e-6  # relative: largest difference between the costs that assignment and evaluation compute


@dataclass(frozen=True, slots=True)
class Solution:
    """The solver's answer. `selections_tried` counts exact worker assignments."""

    plan: Plan | None
    infeasibility: Infeasibility | None = None
    selections_tried: int = 0

    @property
    def status(self) -> str:
        """`infeasible`, or why it stopped with a plan (the certificate's termination)."""
        return "infeasible" if self.plan is None else self.plan.certificate.termination

    @property
    def certificate(self) -> Certificate | None:
        """That of the plan, or of the refused plan; None without either."""
        plan = self.plan or (None if self.infeasibility is None else self.infeasibility.refused)
        return None if plan is None else plan.certificate


def cheapest_solution(problem: Problem, gap: float, limit: Clock, *, explained: bool) -> Solution:
    """The cheapest plan without regard to latency, or why there is none."""

    def plan_of(changed: Problem) -> Plan | None:
        return cheapest_solution(changed, gap, limit, explained=False).plan

    network = Network(problem)
    outcome = cheapest(network, problem.accuracy_target, gap=gap, clock=limit)
    if outcome.found is None:
        if not outcome.is_conclusive:
            raise nothing_found(outcome)
        reasons = explain(network, limit, plan_of) if explained else None
        return Solution(None, reasons, outcome.tried)
    plan, evaluation = finish(network, outcome)
    if evaluation.breaches and (affordable := _affordable(network, outcome, gap, limit)) is not None:
        outcome, (plan, evaluation) = affordable, finish(network, affordable)
    plan = evaluation.checked(plan, within_budget=False)
    if evaluation.breaches:
        broken = Infeasibility(evaluation.breaches, evaluation.breaches, refused=plan)
        reasons = explain_breaches(network, plan, evaluation, limit, plan_of) if explained else broken
        return Solution(None, reasons, outcome.tried)
    return Solution(plan, None, outcome.tried)


def _affordable(network: Network, outcome: Outcome[Assignment], gap: float, limit: Clock) -> Outcome[Assignment] | None:
    """Search within the budget after a plan above it; None if no plan is within it, an error if that stays unknown."""
    budget, target = network.problem.slo.budget_usd_per_h, network.problem.accuracy_target
    if budget is None or outcome.bound > budget:
        return None
    within = outcome
    if is_large(network):  # solved to a gap only: a cheaper plan may be within the budget
        within = cheapest_large(network, target, fixed=None, gap=gap, clock=limit, budget=budget)
        if within.found is not None:
            return within
    if not within.is_conclusive:
        raise nothing_found(within, f" within the budget of {budget:g} USD/h")
    return None


def cheapest(
    network: Network,
    target: float | None,
    *,
    gap: float,
    clock: Clock,
    running: RunningPlan | None = None,
    budget: float = math.inf,
    assignment: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> Outcome[Assignment]:
    """The cheapest selection and assignment that reach the accuracy `target`.

    With a `running` plan the cost (USD per hour) includes migration; `budget` limits the cost without migration.
    """
    if is_large(network):
        return cheapest_large(network, target, fixed=None, gap=gap, clock=clock, budget=budget, running=running)
    search = BeamSearch(
        network,
        target,
        clock,
        running=running,
        budget=budget,
        companion=ConcurrentMilp(network, target, {}, clock, running=running, budget=budget),
        assignment=assignment,
    )
    return search.run()


def finish(
    network: Network, outcome: Outcome[Assignment], running: RunningPlan | None = None
) -> tuple[Plan, Evaluation]:
    """Build and score the plan of a search's result. SolverError if the costs of assignment and evaluation differ.

    With a `running` plan the certificate covers the cost including migration. This is recomputed from the two plans,
    and must equal the assignment's cost, or be lower if the search ended without a proof. Where time ended the matching
    of workers it is the cost of the best matching found, whatever the assignment's.
    """
    if outcome.found is None or outcome.selection is None:
        raise SolverError("the search has no answer to make a plan of")
    proof = Certificate.of(outcome.value, outcome.bound, outcome.termination)
    draft = build_plan(network, outcome.selection, outcome.found, proof)
    evaluation = evaluate(network.problem, draft)
    moved = None if running is None else running.migration(draft)
    total = evaluation.cost.total_usd_per_h
    if running is not None and moved is not None:
        total += moved.total_usd / running.horizon_h
    less = outcome.value - total
    unended = running is not None and not outcome.is_conclusive
    may_differ = (moved is not None and moved.out_of_time) or (unended and less > 0)
    if abs(less) > AGREEMENT * max(1.0, abs(outcome.value)) and not may_differ:
        raise SolverError(
            f"the assignment's cost of {outcome.value:.9g} USD/h and the plan's of {total:.9g} USD/h disagree; "
            "please report this problem"
        )
    bound = max(outcome.bound, least_usd_per_h_of_work(network.problem))
    return certified(evaluation.stated(draft), bound, outcome.termination, total), evaluation


def nothing_found(outcome: Outcome[Assignment], within: str = "") -> SolverError:
    """The error of a search that reached its time limit without a plan."""
    tried = f"({outcome.tried} selections tried)"
    if outcome.termination == Termination.TIME_LIMIT:
        bound = outcome.bound if math.isfinite(outcome.bound) else 0.0
        return OutOfTimeError(f"no plan{within} was found in the time allowed {tried}; allow more time", bound)
    return SolverError(
        f"no plan{within} was found, nor proven that there is none {tried}: too many sets of models "
        "fit on one worker to try them all; use fewer variants or pools, or give workers more memory"
    )


def certified(plan: Plan, bound: float, ended: Termination = Termination.GAP, value: float | None = None) -> Plan:
    """The plan with the certificate of a lower bound on its value: all that it counts, unless it is stated."""
    value = plan.counted_usd_per_h if value is None else value
    certificate = replace(
        Certificate.of(value, min(value, bound), ended),
        forgone_usd_per_h=plan.forgone_usd_per_h,
        penalty_usd_per_h=plan.accuracy_penalty_usd_per_h,
    )
    return replace(plan, certificate=certificate)


def limited(time_limit_s: float | None, clock: Callable[[], float] | None) -> Clock:
    """A clock that runs from now on to the limit, or to that of the work. SolverError for a limit without a clock."""
    if time_limit_s is None:
        return work_limit()
    if clock is None:
        raise SolverError("a time limit needs a clock: solve(problem, time_limit_s=5, clock=time.monotonic)")
    return earlier(work_limit(), Clock(clock, clock() + time_limit_s))
