"""The objective of model selection: lower bounds on the cost of selections, and their exact solves."""

from __future__ import annotations

import math

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.outcome import VALUE_TOLERANCE, Selection
from jellybean_solver.small.assignment import Attempt, assign, relax
from jellybean_solver.small.tree_bounds import Multipliers, lagrangian, prices

REMEMBERED = 6  # most sets of duals kept for bounds; each costs one dynamic program per bound


class Fleet:
    """Lower bounds from the duals of all relaxations solved so far; shared by the searches on one problem."""

    def __init__(self, network: Network, settings: AssignmentSettings = DEFAULT_ASSIGNMENT) -> None:
        self.network, self.settings = network, settings
        self.multipliers: list[Multipliers] = [prices(network)]
        self._relaxed: dict[tuple[str, ...], float] = {}

    def cost_bound(self, partial: Selection) -> float:
        """Lower bound in USD per hour on the cost of all completions; inf if none can be placed."""
        demand = self.network.demand(partial)
        return max(lagrangian(self.network, demand, multipliers) for multipliers in self.multipliers)

    def relaxed_cost(self, selection: Selection) -> float:
        """USD per hour of the linear relaxation of a complete selection (cached); its duals improve later bounds."""
        key = tuple(selection[name] for name in self.network.names)
        if key not in self._relaxed:
            demand = self.network.demand(selection)
            relaxation = relax(self.network, demand)
            if relaxation.multipliers is not None:
                # The first multipliers are plain prices, which come from no selection; they are always kept.
                self.multipliers[1:] = [*self.multipliers[1:], relaxation.multipliers][-REMEMBERED:]
            self._relaxed[key] = relaxation.value
        return self._relaxed[key]


class Cheapest:
    """Objective in USD per hour; with a `running` plan it includes migration, which does not count in `budget`."""

    def __init__(self, fleet: Fleet, running: RunningPlan | None = None, budget: float = math.inf) -> None:
        self.fleet, self.running, self.budget = fleet, running, budget

    def bound(self, partial: Selection) -> float:
        """A quick lower bound on the objective of all completions; inf if none is feasible within the budget."""
        return self._with_moves(self.fleet.cost_bound(partial), partial)

    def refine(self, selection: Selection) -> float:
        """The LP lower bound for a complete selection; improves later results of `bound`."""
        return self._with_moves(self.fleet.relaxed_cost(selection), selection)

    def _with_moves(self, cost: float, partial: Selection) -> float:
        if cost > self.budget * (1 + VALUE_TOLERANCE):
            return math.inf
        return cost if self.running is None else cost + self.running.least_usd_per_h(partial)

    def solve(self, selection: Selection, cutoff: float, time_limit_s: float | None) -> Attempt:
        """Solve the exact assignment of a selection; assignments with an objective above `cutoff` are not searched."""
        network = self.fleet.network
        return assign(
            network,
            network.demand(selection),
            cutoff=cutoff,
            time_limit_s=time_limit_s,
            moves=self.running.moves(selection) if self.running is not None else None,
            budget=self.budget,
            settings=self.fleet.settings,
        )
