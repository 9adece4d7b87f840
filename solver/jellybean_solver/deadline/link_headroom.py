"""Plans of a fleet that keep a p99 latency with room on its links: on a full link requests wait for ever.

The cheapest plan fills the links that it is short of, and little room there costs little where requests are many. So
nodes of the fleet search are bounded without room, and workers are made whole with it: with more of it whenever a plan
is late and fills its links to what it may.
"""

from __future__ import annotations

import math
from dataclasses import replace

from jellybean_solver.deadline.fleet_deadline import Planned
from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.flows import link_uses
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Clock, Outcome, Selection, Termination
from jellybean_solver.small.assignment import Assignment
from jellybean_solver.small.routes import build_plan

WAITS = 12.0  # mean waits for the bursts on a link, in a deadline: little enough to begin with
MOST_FREE = 0.5  # to begin with
STEPS = 2  # times that more is left free for one selection
POWER, LEAST, MOST = 1.5, 1.25, 3.0  # of how much too long a p99 was: what is left free on links grows by this
PROVING = 400  # relaxations, for a bound in the end
FILLED = 0.95  # of what may be used of a link


class RoomyLinks:
    """`best`: the cheapest plan found in time; `bound`: on the cost of all plans, in time or not."""

    def __init__(self, problem: Problem, deadline_s: float, gap: float, clock: Clock, planned: Planned) -> None:
        self.problem, self.deadline_s, self.gap, self.clock, self.planned = problem, deadline_s, gap, clock, planned
        self.headroom = self.first = first_free(problem, deadline_s)
        self.more, self.steps = 1.0, 0
        self.in_time: tuple[Network, Outcome[Assignment]] | None = None
        self.best: Plan | None = None
        self.search: FleetSearch | None = None
        self.fastest_s, self.bound, self.tried = math.inf, 0.0, 0

    @property
    def is_near(self) -> bool:
        """Whether the best plan is as near the bound as was asked."""
        return self.best is not None and self._cost(self.best) * (1.0 - self.gap) <= self.bound * (1.0 + 1e-9)

    def run(self) -> Plan | None:
        """One search. The cheapest plan, where it is late for other queues than those on links."""
        budget_usd_per_h = self.problem.slo.budget_usd_per_h or math.inf
        network, target = Network(self.problem), self.problem.accuracy_target
        self.search = FleetSearch(network, target, {}, SearchLimits(self.gap, self.clock, budget_usd_per_h), judge=self)
        outcome = self.search.run()
        self.bound, self.tried = outcome.bound, outcome.tried
        if self.in_time is not None:
            self.best = self.planned(*self.in_time)
        plan = self.planned(network, outcome) if outcome.found is not None and not self.is_near else None
        if plan is None:
            return None
        proof = Certificate.of(self._cost(plan), self.bound, plan.certificate.termination)
        return replace(plan, certificate=proof)

    def prove(self, plan: Plan) -> float:
        """A bound near enough to a plan that other searches found, as far as a few more relaxations go."""
        enough = self._cost(plan) * (1.0 - self.gap)
        if self.search is not None and self.bound < enough and self.clock.left() != 0.0:
            self.bound = max(self.bound, self.search.prove(enough, PROVING))
        return self.bound

    def accepts(self, network: Network, selection: Selection, found: Assignment) -> bool:
        """As `DeadlineJudge` has it; what is late whatever is left free of links is taken all the same."""
        plan = build_plan(network, selection, found, Certificate.of(found.cost, 0.0, Termination.GAP))
        known = latency(plan)
        self.fastest_s = min(self.fastest_s, known.slowest_s)
        if known.meets(self.deadline_s):
            self.in_time = network, Outcome(found.cost, found, selection, 0.0, 1, Termination.GAP)
            self.first = self.headroom
            return True
        fullest = max((use.use for use in link_uses(plan) if use.use is not None), default=0.0)
        if fullest < FILLED * (1.0 - self.headroom) or self.steps == STEPS:
            return True
        slower = known.slowest_s / self.deadline_s
        self.more = self.headroom * min(MOST, max(LEAST, slower**POWER))
        return False

    @property
    def has_plan(self) -> bool:
        """As `DeadlineJudge` has it."""
        return self.in_time is not None

    def reset(self) -> None:
        """As `DeadlineJudge` has it."""
        self.headroom, self.more, self.steps = self.first, 1.0, 0

    def raise_headroom(self) -> bool:
        """As `DeadlineJudge` has it."""
        more = self.steps < STEPS and self.more < 1.0
        if more:
            self.headroom, self.more, self.steps = self.more, 1.0, self.steps + 1
        return more

    @staticmethod
    def _cost(plan: Plan) -> float:
        return plan.cost.total_usd_per_h


def first_free(problem: Problem, deadline_s: float) -> float:
    """What is left of a link for the mean wait of a burst to be a small part of a deadline.

    A burst of requests at a rate r waits rho / r / 2 / (1 - rho) seconds (queues.py). Of several streams the fastest
    counts: a slow one would close links to all.
    """
    rate_per_s = max((source.rate_per_s for source in problem.sources), default=0.0)
    return min(MOST_FREE, 1.0 / (1.0 + 2.0 * rate_per_s * deadline_s / WAITS))
