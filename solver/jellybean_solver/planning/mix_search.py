"""The programs of ways of one problem: the best mixture, its plan with its proof, and why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.figures import usd_text
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.mixture.blocks import Block, blocks_of
from jellybean_solver.mixture.modes import NO_LIMITS, Modes
from jellybean_solver.mixture.routes import PlanBuilder
from jellybean_solver.mixture.search import FEW_WAYS, MixOutcome, best_mixture
from jellybean_solver.mixture.seats import TIE, Goal, Mixture
from jellybean_solver.mixture.ways import WayTable, all_ways
from jellybean_solver.model.evaluate import evaluate
from jellybean_solver.model.left_out import left_out
from jellybean_solver.model.loss import Loss
from jellybean_solver.model.loss_checks import losses_that_break
from jellybean_solver.model.multi_workflow import restricted, with_slos
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.resources import amount_text, counted
from jellybean_solver.model.spreading import identical_workers
from jellybean_solver.model.targets import LIMIT_TOLERANCE, Slo
from jellybean_solver.outcome import Clock, Termination, termination_of
from jellybean_solver.planning.admission import NONE_SERVED
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.solver import Solution, certified, cheapest_solution

WITHIN_BUDGET = 4  # programs, as rehearsals, 0.01 % of the requests, cost little
MIX_GAP = 1e-5  # relative, unless one is stated: of the cost, or of what the accuracy lacks of 100 %
STREAMS_GAP = (
    0.01  # likewise, for whole streams on more than `FEW_WAYS` ways: 108 ways on shared workers take 5 to 15 s
)


def _without_ways(problem: Problem) -> Problem:
    """The problem without mean accuracies, losses to bear, and limits of resources."""

    def plain(_: str, slo: Slo) -> Slo:
        return replace(slo, mean_accuracy=None, penalty_usd_per_h=None, survives=())

    return replace(with_slos(problem, plain), objective=Objective.COST, most={})


def _above(amount: float, most: float) -> float:
    """By how much an amount is above a limit; 0 within its tolerance."""
    over = amount - most
    return over if over > LIMIT_TOLERANCE * max(1.0, abs(most)) else 0.0


class MixSearch:
    """`bound`: on the value of every plan, without a p99 target."""

    def __init__(
        self,
        problem: Problem,
        gap: float | None,
        limit: Clock,
        running: RunningPlan | None = None,
        assignment: AssignmentSettings = DEFAULT_ASSIGNMENT,
    ) -> None:
        self.problem, self.limit = problem, limit
        self.running, self.assignment = running, assignment
        self.network = Network(problem)
        blocks = blocks_of(problem)
        self.table = WayTable.of(self.network, blocks, all_ways(self.network, blocks, limit=limit))
        are_many = bool(self.table.streams) and len(self.table.ways) > FEW_WAYS
        self.gap = gap if gap is not None else STREAMS_GAP if are_many else MIX_GAP
        self.is_accuracy = problem.objective is Objective.MEAN_ACCURACY
        self.bound, self.tried = 0.0, 0
        slo = problem.slo
        budget = math.inf if slo.budget_usd_per_h is None else slo.budget_usd_per_h
        served = tuple(number for number, block in enumerate(blocks) if not block.is_audit)
        maximised = served if self.is_accuracy else ()
        self.goal = Goal(maximised, budget, self._most_usd_per_h(), survives=problem.survives, most=problem.most)

    @property
    def accuracies(self) -> Sequence[float]:
        """The accuracy of each way, in percent, but for those of audits."""
        return [way.accuracy for way in self.table.ways if not self.table.blocks[way.block].is_audit]

    def value(self, plan: Plan) -> float:
        """What is minimised: USD per hour with penalties and migration, or what the accuracy lacks of 100 %."""
        moved = self.running.usd_per_h(plan) if self.running is not None else 0.0
        if self.is_accuracy:
            cost = plan.cost.total_usd_per_h + plan.forgone_usd_per_h + moved
            return 100.0 - (plan.mean_accuracy or 0.0) + self.goal.points_per_usd * cost
        return moved + plan.counted_usd_per_h

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
        goal = self.goal
        for _ in range(WITHIN_BUDGET):
            found = self.best(goal, modes, below)
            if modes == NO_LIMITS and goal == self.goal:
                self.bound = max(0.0, found.bound)
            plan = None if found.mixture is None or not found.mixture.ways else self.scored_plan(found.mixture)
            if plan is None:
                return plan
            over = {name: _above(plan.uses.get(name, 0.0), most) for name, most in self.goal.most.items()}
            dear = _above(plan.cost.total_usd_per_h, self.goal.budget)
            if not dear and not any(over.values()):
                return plan
            # What the rehearsal of fallbacks uses, which the program leaves out.
            most = {name: goal.most[name] - 2.0 * more for name, more in over.items()}
            goal = replace(goal, budget=goal.budget - 2.0 * dear, most=most)
        return None

    def scored_plan(self, mixture: Mixture) -> Plan:
        """The plan of a mixture. SolverError if it contradicts the problem."""
        return self.scored(self._draft(mixture))

    def scored(self, draft: Plan) -> Plan:
        """The plan with its cost and accuracy. SolverError if it contradicts the problem."""
        plan = evaluate(self.problem, draft).checked(draft, within_budget=False)
        is_spread = self.problem.may_mix and not self.problem.survives
        return replace(plan, spread=identical_workers(plan)) if is_spread else plan

    def _draft(self, mixture: Mixture) -> Plan:
        """The plan, with fallbacks for the losses that its routes do not bear in their proportions."""
        proof = Certificate.of(0.0, 0.0, Termination.GAP)
        needed: list[Loss] = []
        served = {self.table.blocks[way.block].workflow for way, _ in mixture.ways}
        gone = [workflow.name for workflow in self.problem.workflows if workflow.name not in served]
        problem = restricted(self.problem, served) if gone else self.problem
        network = Network(problem) if gone else self.network
        builder = PlanBuilder(network, self.table.blocks, mixture, even=bool(self.problem.survives))
        while True:
            draft = builder.plan(proof, needed)
            broken = [loss for loss, _ in losses_that_break(problem, draft, LIMIT_TOLERANCE)]
            more = [loss for loss in dict.fromkeys((*broken, *builder.served_less(draft))) if loss not in needed]
            if not more:
                return replace(draft, left_out=left_out(self.problem, gone))
            needed += more

    def solution(self, plan: Plan, *, late: bool = False) -> Solution:
        """The solution with its certificate. `late`: time ended."""
        value = self.value(plan)
        bound = min(self.bound, value)
        ended = termination_of(value, bound, gap=self.gap, out_of_time=late)
        if self.is_accuracy:
            reached, most = plan.mean_accuracy or 0.0, 100.0 - bound + TIE
            plan = replace(plan, certificate=Certificate.of_accuracy(reached, max(reached, most), ended))
        else:
            plan = certified(plan, bound, ended, value)
        return Solution(plan, None, self.tried)

    def _most_usd_per_h(self) -> float:
        """What no plan counts more than: all workers, all models to load, the dearest way of the data, all worths."""
        fleet = sum(pool.count * self.problem.unit_usd_per_h(pool) for pool in self.problem.pools)
        loads = 0.0
        if self.running is not None:
            counts = {pool.name: pool.count for pool in self.problem.pools}
            loads = sum(counts[pool] * self.running.load_usd_per_h(*one, pool) for one, pool in self.table.busy)
        dearest = [0.0] * len(self.table.blocks)
        for way in self.table.ways:
            dearest[way.block] = max(dearest[way.block], way.usd_per_h)
        return fleet + loads + sum(dearest) + sum(block.worth_usd_per_h or 0.0 for block in self.table.blocks)

    def refused(self, *, explained: bool) -> Solution:
        """Why no mixture meets the mean accuracy; the highest that one reaches, if other targets can be met."""
        if self.limit.left() == 0.0:
            bound = self.bound if math.isfinite(self.bound) else 0.0
            raise OutOfTimeError("no plan was found in the time allowed; allow more time", bound)
        needed = [workflow.name for workflow in self.problem.workflows if workflow.worth_usd_per_h is None]
        if self.problem.workflows and not needed:
            return Solution(None, Infeasibility((NONE_SERVED,)), self.tried)
        means = [number for number, block in enumerate(self.table.blocks) if block.slo.hard_mean is not None]
        for number in means if not self.problem.survives else ():
            highest = self.best(replace(self.goal, most_accurate=(number,), keeps_mean=False)).mixture
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
        if self.problem.most:
            limits = " and ".join(amount_text(*one) for one in self.problem.most.items())
            if self.bound < math.inf:
                raise SolverError(f"no plan was found within {limits}, nor proven that there is none")
            leasts = " and ".join(self._least_use(served, name) for name in self.problem.most)
            reason = f"no plan is within {limits}; the least that a plan uses is {leasts}"
        elif self.problem.survives:
            cost = usd_text(found.plan.cost.total_usd_per_h)
            kinds = self.problem.survives
            asked = kinds if explained and len(kinds) > 1 else ()
            alone = {kind: self.best(replace(self.goal, survives=(kind,))) for kind in asked}
            impossible = [kind for kind, outcome in alone.items() if outcome.bound == math.inf]
            reason = f"no plan holds after the loss of any one {' or '.join(impossible or kinds)}"
            reason += f"; without `survive` a plan costs {cost} USD/h"
        return Solution(None, Infeasibility((reason,)), self.tried)

    def _least_use(self, problem: Problem, resource: str) -> str:
        """The least that a plan uses of a resource, without regard to other limits."""
        alone = counted(replace(_without_ways(problem), objective=Objective(resource)), 1.0)
        plan = cheapest_solution(alone, self.gap, self.limit, explained=False).plan
        return f"unknown {resource}" if plan is None else amount_text(resource, plan.cost.total_usd_per_h)

    def _below(self, block: Block, number: int, highest: Mixture) -> Solution:
        """That a block does not reach its mean accuracy; the others meet their targets in the `highest` mixture."""
        reached = sum(way.accuracy * share for way, share in highest.ways if way.block == number)
        of = f"{block.workflow}: " if block.workflow else ""
        reason = f"{of}no plan reaches a mean accuracy of {block.slo.hard_mean:g}; the highest is {reached:.6g}"
        known = None if block.workflow else reached
        return Solution(None, Infeasibility((reason,), (), known), self.tried)
