"""Plans that keep a p99 latency, one selection after the other from the cheapest up: for problems with few of them.

Among plans of about the same cost latencies differ widely by selection, which programs that know no queues do not see.
So the cheapest assignment of each selection is looked at, with all of the caps on utilisation and with ever less of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jellybean_solver.deadline.capacity_margin import Room, with_headroom
from jellybean_solver.demand.demand import Network
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock, Outcome, Selection, Termination
from jellybean_solver.small.assignment import Assignment
from jellybean_solver.small.beam_search import Attempt, BeamSearch
from jellybean_solver.small.objectives import Cheapest, Fleet

SHARES = (1.0, 0.75, 0.5, 0.3)  # of the cap on utilisation
LINKS = 0.9  # of the bandwidths, where utilisation is less than its cap
TRIES = 25  # selections looked at with each share

Look = Callable[[Network, Outcome[Assignment], Room], bool]  # whether it keeps the deadline


class _InTime:
    """USD per hour of assignments that keep the deadline; of each selection only its cheapest is looked at."""

    def __init__(self, fleet: Fleet, room: Room, value: Callable[[], float], look: Look) -> None:
        budget = fleet.network.problem.slo.budget_usd_per_h
        self.cheapest = Cheapest(fleet, budget=math.inf if budget is None else budget)
        self.fleet, self.room, self.value, self.look, self.left = fleet, room, value, look, TRIES

    def bound(self, partial: Selection) -> float:
        return self._open(self.cheapest.bound(partial))

    def refine(self, selection: Selection) -> float:
        return self._open(self.cheapest.refine(selection))

    def _open(self, cost: float) -> float:
        return cost if self.left and cost < self.value() * (1 - VALUE_TOLERANCE) else math.inf

    def solve(self, selection: Selection, cutoff: float, time_limit_s: float | None) -> Attempt[Assignment]:
        self.left -= 1
        found = self.cheapest.solve(selection, min(cutoff, self.value() * (1 - VALUE_TOLERANCE)), time_limit_s)
        if found.value is None or found.found is None:
            return found
        outcome = Outcome(found.value, found.found, selection, found.bound, 1, Termination.GAP)
        in_time = self.look(self.fleet.network, outcome, self.room)
        return found if in_time else Attempt(None, math.inf)


def look_at_selections(problem: Problem, value: Callable[[], float], look: Look, clock: Clock) -> None:
    """Give `look` one assignment after the other, none dearer than `value` is by then."""
    for share in SHARES:
        if clock.left() == 0.0:
            return
        room = Room() if share == 1.0 else Room({pool.name: share for pool in problem.pools}, LINKS)
        objective = _InTime(Fleet(Network(with_headroom(problem, room))), room, value, look)
        search: BeamSearch[Assignment] = BeamSearch(
            objective.fleet.network, objective, target=problem.accuracy_target, clock=clock
        )
        search.run()
