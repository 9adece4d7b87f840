"""Plans of a fleet with headroom on its links: on a saturated link the queue grows without end.

The cheapest plan saturates its scarcest links, and in a large fleet a little headroom there costs little. The fleet
search bounds its nodes without headroom and leaves headroom in rounding. The headroom is raised whenever a plan misses
its deadline and uses all the bandwidth that the headroom allows.
"""

from __future__ import annotations

from dataclasses import replace

from jellybean_solver.deadline.fleet_proposals import Planned
from jellybean_solver.deadline.search import Deadline
from jellybean_solver.deadline.settings import HeadroomSettings
from jellybean_solver.deadline.slowest_path import busiest_link
from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.search import FleetSearch
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.latency.estimate import latency
from jellybean_solver.model.plan import Certificate, Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import Outcome, Selection, Termination
from jellybean_solver.small.assignment import Assignment
from jellybean_solver.small.routes import build_plan


class HeadroomSearch:
    """One fleet search with headroom on links; it is the search's `DeadlineJudge`.

    `best`: the cheapest plan whose estimated p99 meets the deadline. `bound`: lower bound on the cost of all plans,
    even late ones, in USD per hour.
    """

    def __init__(self, problem: Problem, deadline: Deadline, limits: SearchLimits, planned: Planned) -> None:
        self.problem, self.deadline_s, self.planned = problem, deadline.p99_s, planned
        self.settings = deadline.settings.headroom
        self.headroom = self.first = first_headroom(problem, deadline.p99_s, self.settings)
        self.next_headroom, self.steps = 1.0, 0
        self.in_time: tuple[Network, Outcome[Assignment]] | None = None
        self.best: Plan | None = None
        self.bound, self.tried = 0.0, 0
        clock = limits.clock.earlier(self.settings.last_plan_s, self.settings.last_plan_share)
        within = replace(limits, clock=clock)
        self.search = FleetSearch(Network(problem), problem.accuracy_target, {}, within, judge=self)

    def run(self) -> Plan | None:
        """Run the search; sets `best`, `bound` and `tried`. Returns the plan it accepted, in time or not; None if none.

        A late plan is accepted if more headroom on links would not help it.
        """
        outcome = self.search.run()
        self.bound, self.tried = outcome.bound, outcome.tried
        first = self.planned(self.search.network, outcome) if outcome.found is not None else None
        if self.in_time is not None:
            network, best = self.in_time
            is_first = best.found is outcome.found
            self.best = first if is_first else self.planned(network, best)
        return first

    def prove(self, enough: float) -> float:
        """Tighten `bound` by solving more relaxations, until it reaches `enough` (USD per hour). Returns it."""
        if self.bound < enough and self.search.clock.left() != 0.0:
            self.bound = max(self.bound, self.search.prove(enough, self.settings.relaxations))
        return self.bound

    def accepts(self, network: Network, selection: Selection, found: Assignment) -> bool:
        """See `DeadlineJudge`. A late plan is accepted if its links have slack, or after the last raise of headroom."""
        plan = build_plan(network, selection, found, Certificate.of(found.cost, 0.0, Termination.GAP))
        known = latency(plan)
        if known.meets(self.deadline_s):
            self.in_time = network, Outcome(found.cost, found, selection, 0.0, 1, Termination.GAP)
            self.first = self.headroom
            return True
        settings = self.settings
        if busiest_link(plan) < settings.filled * (1.0 - self.headroom) or self.steps == settings.raises:
            return True
        slower = known.slowest_s / self.deadline_s
        growth = min(settings.most_growth, max(settings.least_growth, slower**settings.power))
        self.next_headroom = self.headroom * growth
        return False

    @property
    def has_plan(self) -> bool:
        """See `DeadlineJudge`."""
        return self.in_time is not None

    def reset(self) -> None:
        """See `DeadlineJudge`."""
        self.headroom, self.next_headroom, self.steps = self.first, 1.0, 0

    def raise_headroom(self) -> bool:
        """See `DeadlineJudge`."""
        is_raised = self.steps < self.settings.raises and self.next_headroom < 1.0
        if is_raised:
            self.headroom, self.next_headroom, self.steps = self.next_headroom, 1.0, self.steps + 1
        return is_raised


def first_headroom(problem: Problem, deadline_s: float, settings: HeadroomSettings) -> float:
    """Fraction of a link's bandwidth to leave free so that the mean wait of a burst is a small part of a deadline.

    At utilisation rho, a burst of requests at rate r waits rho / (2 r (1 - rho)) seconds (queues.py). With several
    streams, r is the highest rate: a low one would leave no usable bandwidth.
    """
    rate_per_s = max((source.rate_per_s for source in problem.sources), default=0.0)
    return min(settings.most, 1.0 / (1.0 + 2.0 * rate_per_s * deadline_s / settings.waits))
