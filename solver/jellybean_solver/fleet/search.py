"""The cheapest plan of a fleet with too many selections to enumerate: branch and bound with an exact MILP beside it.

Each node is a relaxation of the joint LP in a box (relaxation.py), whose bound holds for the problem; at integral
selections workers are rounded (rounding/). The tree is searched in passes. The first assumes that the optimum costs
little more than the root's bound and prunes accordingly, the next assume more, the last nothing: a tight cutoff prunes
much, and a good incumbent is found late without it. The gap that remains after the last pass is closed by exact MILPs
of single selections, cheapest first, and by the exact MILP of all selections (exact_milp.py) in a second thread; they
exchange incumbents and bounds. On problems of middle size that MILP also runs from the first plan on, with all
heuristics of HiGHS; its later run has a good cutoff and leaves out the slow ones. The search ends at the requested gap,
or when time is up.

Without a time limit and without the MILP the plan is deterministic. A selection that a MILP in a thread has found is
solved once more by itself; which of several selections within the gap is found depends on which search was first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import SolverError
from jellybean_solver.fleet.ancestor_closure import where_possible
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.incumbent import DeadlineJudge, Incumbent
from jellybean_solver.fleet.joint_lp import RelaxedLp
from jellybean_solver.fleet.relaxation import Relaxation
from jellybean_solver.fleet.rounding.selection_rounding import SelectionRounding
from jellybean_solver.fleet.settings import DEFAULT_SETTINGS, SearchLimits, SearchSettings
from jellybean_solver.fleet.tree_search import TreeSearch
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.outcome import (
    VALUE_TOLERANCE,
    Outcome,
    Selection,
    Termination,
    is_gap_closed,
    termination_of,
)
from jellybean_solver.small.assignment import Assignment


class FleetSearch:
    """One search for the cheapest plan that reaches the accuracy `target`.

    `fixed`: operator -> variant, where given. `pace`: a deadline on the linearised delay. `judge`: accepts or rejects
    plans by their p99 latency. None: no deadline.
    """

    def __init__(
        self,
        network: Network,
        target: float | None,
        fixed: Selection,
        limits: SearchLimits,
        *,
        pace: Pace | None = None,
        judge: DeadlineJudge | None = None,
        settings: SearchSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.target, self.fixed, self.pace = target, fixed, pace
        self.limit, self.budget = limits.clock, limits.budget
        self.clock = self.limit.earlier(settings.grace_s, settings.grace_share)
        self.judge, self.settings = judge, settings
        self.joint_lp = where_possible(RelaxedLp(network, target, fixed, pace), target, fixed, pace)
        self.network = self.joint_lp.network
        self.gap = limits.gap

    @cached_property
    def relaxations(self) -> tuple[Relaxation, ...]:
        """Warm-started relaxations: two, for two threads."""
        return tuple(Relaxation(self.joint_lp, self.clock) for _ in range(2))

    @cached_property
    def rounding(self) -> SelectionRounding:
        """The rounding of relaxed points; it solves on the first relaxation."""
        return SelectionRounding(self.relaxations[0], self.judge, self.gap, self.limit, self.settings)

    def under(self, left_s: float, limits: SearchLimits) -> FleetSearch:
        """Set a new deadline (`left_s`: delay_linearisation.py) and new limits, and return this search."""
        if self.pace is None:
            raise SolverError("a search without a pace has no deadline")
        self.pace, self.budget, self.limit = replace(self.pace, left_s=left_s), limits.budget, limits.clock
        self.clock = self.limit.earlier(self.settings.grace_s, self.settings.grace_share)
        self.joint_lp.pace = self.pace
        if self.joint_lp.possible:
            for relaxation in self.relaxations:
                relaxation.answer_within(left_s, self.clock)
            self.rounding.clock = self.limit
        return self

    def prove(self, most: float, relaxations: int) -> float:
        """A lower bound on the cost of all plans (USD per hour, at most `most`) from so many solved relaxations."""
        incumbent = Incumbent(self.network, self.target, self.budget, self.gap, self.judge)
        return self._tree_search(incumbent).prove(most, relaxations) if self.joint_lp.possible else most

    def run(self) -> Outcome[Assignment]:
        """Search until the gap is reached or time is up."""
        if not self.joint_lp.possible:
            return Outcome(math.inf, None, None, math.inf, 0, Termination.OPTIMAL)
        incumbent = Incumbent(self.network, self.target, self.budget, self.gap, self.judge)
        search = self._tree_search(incumbent)
        try:
            bound = search.run()
        finally:
            search.milp.close()
        bound = max(bound, search.milp.bound)
        if incumbent.of_thread and bound >= incumbent.goal():
            self._reproduce(incumbent)
        late = search.out_of_time or self.clock.left() == 0.0
        return self._outcome(incumbent, bound, len(search.visited), late)

    def _tree_search(self, incumbent: Incumbent) -> TreeSearch:
        milp = ConcurrentMilp(self.network, self.target, self.fixed, self.clock)
        is_paced = self.pace is not None
        return TreeSearch(self.relaxations, self.rounding, incumbent, milp, self.clock, is_paced=is_paced)

    def _reproduce(self, incumbent: Incumbent) -> None:
        """Solve the incumbent's selection again by itself, so that its plan does not depend on thread timing."""
        if incumbent.assignment is None or self.limit.left() == 0.0:
            return
        milp = self.rounding.exact_milp(incumbent.selection)
        if milp is None:
            return
        most, nodes = incumbent.cost * (1.0 + VALUE_TOLERANCE), self.settings.reproducing_nodes
        answer = milp.program.solve(SolveLimits(0.0, self.limit.left(), most, nodes, enough=most))
        found = None if answer.values is None else milp.staff(answer.values).assignment()
        if found is not None and found.cost <= most:
            incumbent.assignment = found

    def _outcome(self, incumbent: Incumbent, bound: float, tried: int, late: bool) -> Outcome[Assignment]:
        value, bound = incumbent.cost, max(0.0, bound)
        if incumbent.assignment is None:
            bound = math.inf if bound > self.budget else bound
            ended = termination_of(math.inf, bound, out_of_time=late)
            return Outcome(math.inf, None, None, bound, tried, ended)
        bound = value if is_gap_closed(value, bound) else bound
        ended = termination_of(value, bound, gap=self.gap, out_of_time=late)
        return Outcome(value, incumbent.assignment, incumbent.selection, bound, tried, ended)
