"""The best plan that may mix variants: the cheapest with a mean accuracy, or the one of the highest mean accuracy.

From a running plan on, the cost includes that of migration, spread over the horizon.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

from jellybean_solver.deadline.lower_bound import LATENCY_TOLERANCE, least_latency_by_variant
from jellybean_solver.deadline.search import Deadline, Judge
from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.figures import duration_text, usd_text
from jellybean_solver.latency.estimate import latency
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.mixture.blocks import Block, blocks_of
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.mixture.routes import plan_of
from jellybean_solver.mixture.search import MixOutcome, best_mixture
from jellybean_solver.mixture.seats import TIE, Goal, Mixture
from jellybean_solver.mixture.ways import WayTable, all_ways
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.left_out import left_out
from jellybean_solver.model.loss import Loss, judged_losses, plan_after
from jellybean_solver.model.loss_checks import losses_that_break
from jellybean_solver.model.multi_workflow import of_one_selection, restricted
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Objective, Pool, Problem, Sharing
from jellybean_solver.model.spreading import identical_workers
from jellybean_solver.model.targets import LIMIT_TOLERANCE, LossKind, Slo
from jellybean_solver.outcome import Clock, Termination, termination_of
from jellybean_solver.planning.admission import WORTH_AND_P99, admitted, with_left_out
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.mode_search import ModeSearch
from jellybean_solver.planning.one_selection import best_of_one_selection
from jellybean_solver.planning.solver import Solution, cheapest_solution

WITHIN_BUDGET = 4  # programs, as rehearsals, 0.01 % of the requests, cost little
MIX_GAP = 1e-5  # relative, unless one is stated: of the cost, or of what the accuracy lacks of 100 %

SolveOne = Callable[[Problem], Solution]  # the cheapest plan in time of a problem that does not mix variants


def solve_mixed(
    problem: Problem,
    deadline: Deadline | None,
    *,
    gap: float | None,
    limit: Clock,
    explained: bool,
    solve_one: SolveOne,
    running: RunningPlan | None = None,
    assignment: AssignmentSettings = DEFAULT_ASSIGNMENT,
) -> Solution:
    """The best plan of a problem that may mix variants, or why there is none. SolverError if time ends before any.

    `solve_one`: solves a problem under the same `deadline` and `limit`. With a `running` plan its cost includes
    migration, as do the certificate's figures; `assignment` limits the matching of workers.
    """
    if stateful := [operator.name for operator in problem.operators if operator.state]:
        raise SolverError(f"variants cannot be mixed where an operator keeps a state by stream: {', '.join(stateful)}")
    if problem.may_leave_out:
        return _of_priorities(problem, deadline, MIX_GAP if gap is None else gap, limit, explained=explained)
    search = _MixSearch(problem, MIX_GAP if gap is None else gap, limit, running, assignment)
    if deadline is not None and problem.slo.survives:
        deadline = replace(deadline, judge=_judge_of_losses(problem, deadline))
    first = search.propose(NO_LIMITS)
    if first is None:
        return search.refused(explained=explained)
    if deadline is None:
        return search.solution(first, late=limit.left() == 0.0)
    return search.solve_in_time(first, deadline, solve_one)


def _of_priorities(
    problem: Problem, deadline: Deadline | None, gap: float, limit: Clock, *, explained: bool
) -> Solution:
    """The best plan of workflows that may be left out, one priority after another; SolverError with a p99 target."""
    if deadline is not None:
        raise SolverError(WORTH_AND_P99)

    def solve(level: Problem) -> Solution:
        search = _MixSearch(level, gap, limit, None, DEFAULT_ASSIGNMENT)
        plan = search.propose(NO_LIMITS)
        late = limit.left() == 0.0
        return search.solution(plan, late=late) if plan is not None else search.refused(explained=explained)

    decided = admitted(problem, solve)
    solution = solve(decided)
    return solution if decided is problem else with_left_out(problem, solution)


def plan_with_spare_workers(problem: Problem, *, gap: float, limit: Clock) -> Plan | None:
    """A plan that survives the loss of a worker as each group of workers has one to spare; None if none was found.

    It is found without flows after such losses, which makes its program small: that of a fleet with one worker less of
    each group, whose plan gets these workers.
    """
    spared = tuple(replace(pool, count=max(0, pool.count - _groups(problem, pool))) for pool in problem.pools)
    kinds = tuple(kind for kind in problem.slo.survives if kind not in (LossKind.WORKER, LossKind.SPOT_WORKER))
    fewer = replace(problem, pools=spared, slo=replace(problem.slo, survives=kinds))
    small = _MixSearch(fewer, gap, limit, None, DEFAULT_ASSIGNMENT)
    found = small.best(small.goal).mixture
    if found is None:
        return None
    return _MixSearch(problem, gap, limit, None, DEFAULT_ASSIGNMENT).scored_plan(found.with_spare_workers())


def _groups(problem: Problem, pool: Pool) -> int:
    """How many groups of workers a pool may have: one, or one for each operator where a worker serves only one."""
    return 1 if pool.sharing is Sharing.SHARED else len(problem.operators)


def _judge_of_losses(problem: Problem, deadline: Deadline) -> Judge:
    """The judge of plans that must be in time after each loss, too: the slowest of these cases counts."""

    def estimate(plan: Plan) -> float:
        return latency(plan).slowest_s / deadline.p99_s

    judge = deadline.judge or estimate

    def judged(plan: Plan) -> float:
        slowest = judge(plan)
        for loss in judged_losses(plan):
            if slowest > 1.0:
                break
            left = plan_after(problem, plan, loss)
            slowest = math.inf if left is None else max(slowest, judge(left))
        return slowest

    return judged


def _without_ways(problem: Problem) -> Problem:
    """The problem without mean accuracies, and without losses to bear."""

    def plain(slo: Slo) -> Slo:
        return replace(slo, mean_accuracy=None, penalty_usd_per_h=None, survives=())

    workflows = tuple(replace(workflow, slo=plain(workflow.slo)) for workflow in problem.workflows)
    return replace(problem, slo=plain(problem.slo), workflows=workflows, objective=Objective.COST)


class _MixSearch:
    """`bound`: on the value of every plan, without a p99 target."""

    def __init__(
        self,
        problem: Problem,
        gap: float,
        limit: Clock,
        running: RunningPlan | None,
        assignment: AssignmentSettings,
    ) -> None:
        self.problem, self.gap, self.limit = problem, gap, limit
        self.running, self.assignment = running, assignment
        self.network = Network(problem)
        blocks = blocks_of(problem)
        self.table = WayTable.of(self.network, blocks, all_ways(self.network, blocks, limit=limit))
        self.is_accuracy = problem.objective is Objective.MEAN_ACCURACY
        self.bound, self.tried = 0.0, 0
        slo = problem.slo
        budget = math.inf if slo.budget_usd_per_h is None else slo.budget_usd_per_h
        self.goal = Goal(0 if self.is_accuracy else None, budget, self._most_usd_per_h(), survives=slo.survives)

    def value(self, plan: Plan) -> float:
        """What is minimised: USD per hour with penalties and migration, or what the accuracy lacks of 100 %."""
        cost = plan.cost.total_usd_per_h + (self.running.usd_per_h(plan) if self.running is not None else 0.0)
        if self.is_accuracy:
            return 100.0 - (plan.accuracy or 0.0) + self.goal.points_per_usd * cost
        return cost + plan.accuracy_penalty_usd_per_h + sum(one.worth_usd_per_h for one in plan.left_out)

    def best(self, goal: Goal, modes: Modes = NO_LIMITS, cutoff: float = math.inf) -> MixOutcome:
        """The best mixture for a goal."""
        self.tried += 1
        return best_mixture(
            self.table,
            goal,
            gap=self.gap,
            clock=self.limit,
            cutoff=cutoff,
            modes=modes,
            running=self.running,
            assignment=self.assignment,
        )

    def propose(self, modes: Modes, below: float = math.inf) -> Plan | None:
        """The best plan within limits of batches and utilisations, if it has a value up to `below`; else None.

        None also if no plan was found in time.
        """
        budget = self.goal.budget
        for _ in range(WITHIN_BUDGET):
            found = self.best(replace(self.goal, budget=budget), modes, below)
            if modes == NO_LIMITS and budget == self.goal.budget:
                self.bound = max(0.0, found.bound)
            plan = None if found.mixture is None or not found.mixture.ways else self.scored_plan(found.mixture)
            over = 0.0 if plan is None else plan.cost.total_usd_per_h - self.goal.budget
            if over <= LIMIT_TOLERANCE * max(1.0, abs(self.goal.budget)):
                return plan
            budget -= 2.0 * over  # what the rehearsal of fallbacks costs, which the program leaves out
        return None

    def scored_plan(self, mixture: Mixture) -> Plan:
        """The plan of a mixture. SolverError if it contradicts the problem."""
        return self._scored(self._draft(mixture))

    def _scored(self, draft: Plan) -> Plan:
        """The plan with its cost and accuracy. SolverError if it contradicts the problem."""
        evaluation = evaluate(self.problem, draft)
        if evaluation.violations:
            complaints = "; ".join(evaluation.violations)
            raise SolverError(f"the plan found contradicts the problem ({complaints}); please report this problem")
        plan = evaluation.stated(draft)
        is_spread = self.problem.may_mix and not self.problem.slo.survives
        return replace(plan, spread=identical_workers(plan)) if is_spread else plan

    def _draft(self, mixture: Mixture) -> Plan:
        """The plan, with fallbacks for the losses that its routes do not bear in their proportions."""
        proof = Certificate.of(0.0, 0.0, Termination.GAP)
        needed: list[Loss] = []
        served = {self.table.blocks[way.block].workflow for way, _ in mixture.ways}
        gone = [workflow.name for workflow in self.problem.workflows if workflow.name not in served]
        problem = restricted(self.problem, served) if gone else self.problem
        network = Network(problem) if gone else self.network
        is_even, blocks = bool(self.problem.slo.survives), self.table.blocks
        while True:
            draft = plan_of(network, blocks, mixture, proof, even=is_even, fallbacks=needed)
            broken = dict.fromkeys(loss for loss, _ in losses_that_break(problem, draft, LIMIT_TOLERANCE))
            more = [loss for loss in broken if loss not in needed]
            if not more:
                return replace(draft, left_out=left_out(self.problem, gone))
            needed += more

    def solution(self, plan: Plan, *, late: bool = False) -> Solution:
        """The solution with its certificate. `late`: time ended."""
        value, bound = self.value(plan), min(self.bound, self.value(plan))
        ended = termination_of(value, bound, gap=self.gap, out_of_time=late)
        penalty = plan.accuracy_penalty_usd_per_h
        forgone = sum(one.worth_usd_per_h for one in plan.left_out)
        certificate = Certificate.of(value, bound, ended)
        certificate = replace(certificate, penalty_usd_per_h=penalty, forgone_usd_per_h=forgone)
        if self.is_accuracy:
            reached, most = plan.accuracy or 0.0, 100.0 - bound + TIE
            certificate = Certificate.of_accuracy(reached, max(reached, most), ended)
        best = replace(plan, certificate=certificate)
        return Solution(certificate.termination, best, None, self.tried, certificate)

    def _most_usd_per_h(self) -> float:
        """What no plan costs more than: all workers, each with all models to load, and the dearest way of the data."""
        fleet = sum(pool.count * self.problem.unit_usd_per_h(pool) for pool in self.problem.pools)
        loads = 0.0
        if self.running is not None:
            counts = {pool.name: pool.count for pool in self.problem.pools}
            loads = sum(counts[pool] * self.running.load_usd_per_h(*one, pool) for one, pool in self.table.busy)
        dearest = [0.0] * len(self.table.blocks)
        for way in self.table.ways:
            dearest[way.block] = max(dearest[way.block], way.usd_per_h)
        return fleet + loads + sum(dearest)

    def refused(self, *, explained: bool) -> Solution:
        """Why no mixture meets the mean accuracy; the highest that one reaches, if other targets can be met."""
        if self.limit.left() == 0.0:
            bound = self.bound if math.isfinite(self.bound) else 0.0
            raise OutOfTimeError("no plan was found in the time allowed; allow more time", bound)
        needed = [workflow.name for workflow in self.problem.workflows if workflow.worth_usd_per_h is None]
        if self.problem.workflows and not needed:
            nothing = "no workflow is worth what serving it costs, or none fits: the plan would leave out all of them"
            return Solution("infeasible", None, Infeasibility((nothing,)), self.tried, None)
        means = [number for number, block in enumerate(self.table.blocks) if block.slo.hard_mean is not None]
        for number in means if not self.problem.slo.survives else ():
            highest = self.best(Goal(number, self.goal.budget, keeps_mean=False)).mixture
            if highest is not None:
                return self._below(self.table.blocks[number], number, highest)
        served = restricted(self.problem, needed) if self.problem.may_leave_out else self.problem
        found = cheapest_solution(_without_ways(served), self.gap, self.limit, explained=explained)
        if found.plan is None:
            return found
        reason = "no plan is of selections whose accuracy is in the profiles"
        if len(means) > 1:
            reason = "no plan reaches the mean accuracies of "
            reason += f"{' and '.join(self.table.blocks[number].workflow for number in means)} together"
        if self.problem.slo.survives:
            cost = usd_text(found.plan.cost.total_usd_per_h)
            kinds = self.problem.slo.survives
            asked = kinds if explained and len(kinds) > 1 else ()
            alone = {kind: self.best(replace(self.goal, survives=(kind,))) for kind in asked}
            impossible = [kind for kind, outcome in alone.items() if outcome.bound == math.inf]
            reason = f"no plan holds after the loss of any one {' or '.join(impossible or kinds)}"
            reason += f"; without `survive` a plan costs {cost} USD/h"
        return Solution("infeasible", None, Infeasibility((reason,)), self.tried, None)

    def _below(self, block: Block, number: int, highest: Mixture) -> Solution:
        """That a block does not reach its mean accuracy; the others meet their targets in the `highest` mixture."""
        reached = sum(way.accuracy * share for way, share in highest.ways if way.block == number)
        of = f"{block.workflow}: " if block.workflow else ""
        reason = f"{of}no plan reaches a mean accuracy of {block.slo.hard_mean:g}; the highest is {reached:.6g}"
        known = None if block.workflow else reached
        return Solution("infeasible", None, Infeasibility((reason,), (), known), self.tried, None)

    # -- under a p99 target

    def solve_in_time(self, first: Plan, deadline: Deadline, solve_one: SolveOne) -> Solution:
        """The best plan found that meets a p99 target; `first` is the best one without it."""
        found = self._descent(deadline).run(first)
        plan, least_slowness = found.in_time, found.least_slowness
        if plan is None and (fewer := self._without_slow_variants(deadline.p99_s)) is not None:
            search, start = fewer
            found = search._descent(deadline).run(start)
            self.tried = search.tried
            plan, least_slowness = found.in_time, min(least_slowness, found.least_slowness)
        if plan is None and self.problem.may_mix:
            plan = self._of_one_selection(deadline, solve_one)
        late = self.limit.left() == 0.0
        if plan is not None:
            return self.solution(plan, late=late)
        if late:
            raise OutOfTimeError("no plan that keeps the p99 latency was found in the time allowed; allow more time")
        reason = f"no plan was found that keeps a p99 latency of {duration_text(deadline.p99_s)}"
        fastest_s = deadline.p99_s * least_slowness if math.isfinite(least_slowness) else None
        refused = Infeasibility((reason,), (), None, None, first, fastest_s, self.bound)
        return Solution("infeasible", None, refused, self.tried, None)

    def _descent(self, deadline: Deadline) -> ModeSearch:
        return ModeSearch(self.problem, self.propose, self.value, deadline, self.limit)

    def _without_slow_variants(self, p99_s: float) -> tuple[_MixSearch, Plan] | None:
        """A search without the variants that are late even with zero queueing delay, and its best plan at any p99.

        If no mixture is left, some of them are allowed, the fastest first: then the judge sees how fast plans can be.
        None if all variants are, so that the search would be the same.
        """
        used, least_s = {instance for instance, _ in self.table.busy}, least_latency_by_variant(self.problem)
        longer = {seconds for instance, seconds in least_s.items() if instance in used and seconds > p99_s}
        for allowed_s in (p99_s, *sorted(longer)):
            kept = {instance for instance in used if least_s[instance] <= allowed_s * (1.0 + LATENCY_TOLERANCE)}
            if kept == used or self.limit.left() == 0.0:
                return None
            search = copy.copy(self)
            search.table = self.table.using(kept)
            plan = search.propose(NO_LIMITS)
            if plan is not None:
                return search, plan
        return None

    def _of_one_selection(self, deadline: Deadline, solve_one: SolveOne) -> Plan | None:
        """The best plan found in time that gives all requests the same selection; None if there is none."""

        def plan_one(asked: Problem) -> Plan | None:
            try:
                solution = solve_one(asked)
            except OutOfTimeError:
                return None
            self.tried += solution.selections_tried
            if solution.plan is None:
                return None
            plan = self._scored(replace(solution.plan, slo=self.problem.slo))
            judge = deadline.judge or (lambda one: latency(one).slowest_s / deadline.p99_s)
            return None if plan.spread and judge(plan) > 1.0 else plan  # spread children queue elsewhere

        if self.problem.workflows:
            return plan_one(of_one_selection(self.problem))
        return best_of_one_selection(self.problem, [way.accuracy for way in self.table.ways], plan_one, self.value)
