"""Plans of a fleet under ever lower limits on the linearised delay of all requests.

By Chernoff's bound a plan's p99 latency is nearly a sum along its routes of one term per operator and pool
(fleet/delay_linearisation.py). A limit on that sum is linear, so it becomes a constraint of the fleet search's
relaxation. The sum ignores correlation of routes and bursts, but its error changes little from one plan to the next, so
the estimated p99 of each plan tells how far to lower the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from jellybean_solver.deadline.restriction import Restriction
from jellybean_solver.deadline.search import Deadline, Proposals
from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Outcome
from jellybean_solver.small.assignment import Assignment

Planned = Callable[[Network, Outcome[Assignment]], Plan | None]


class FleetProposals:
    """Proposals under a delay limit, by one fleet search that keeps its columns and rows when the limit changes.

    `others` makes the proposals that restrict single places; they come after a lower delay limit. `planned` turns the
    search's outcome into a plan.
    """

    def __init__(
        self, problem: Problem, deadline: Deadline, limits: SearchLimits, planned: Planned, others: Proposals
    ) -> None:
        self.problem, self.deadline_s, self.limits = problem, deadline.p99_s, limits
        self.settings = deadline.settings.delay
        self.planned, self.others = planned, others
        self.pace = Pace(self.deadline_s, self.settings.tilt / self.deadline_s)
        self.network = Restriction(links=self.settings.links).network(problem)
        self.search: FleetSearch | None = None

    def branch(self, plan: Plan, slowness: float, restriction: Restriction) -> Iterable[Restriction]:
        """Restrictions that rule the plan out: first a delay limit below the plan's own delay and its present limit."""
        settings = self.settings
        if math.isinf(slowness) and math.isinf(restriction.delay_s):
            delay_s = self.deadline_s - settings.penalty / self.pace.theta - 2.0 * self.problem.hop_s
        else:
            delay_s = min(restriction.delay_s, self.pace.of_plan(self.problem, plan))
            delay_s *= min(settings.most_step, max(settings.least_step, slowness**-settings.power))
        if replace(restriction, delay_s=math.inf, links=1.0) == Restriction():
            yield Restriction(delay_s=delay_s, links=settings.links)
        yield from self.others.branch(plan, slowness, replace(restriction, delay_s=math.inf))

    def propose(self, restriction: Restriction, budget: float) -> Plan | None:
        """The cheapest plan found under a restriction and a budget in USD per hour; None if there is none."""
        if math.isinf(restriction.delay_s):
            return self.others.propose(restriction, budget)
        if self.search is None:
            pace = replace(self.pace, left_s=restriction.delay_s)
            self.search = FleetSearch(self.network, self.problem.accuracy_target, {}, self.limits, pace=pace)
        limits = replace(self.limits, budget=min(budget, self.limits.budget))
        outcome = self.search.under(restriction.delay_s, limits).run()
        return self.planned(self.network, outcome) if outcome.found is not None else None
