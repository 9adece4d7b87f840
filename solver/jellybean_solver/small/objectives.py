"""What model selection may minimise: cost, minus the share of the rates that fits, minus accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jellybean_solver.demand.demand import Network
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.outcome import VALUE_TOLERANCE, Selection
from jellybean_solver.small.assignment import Assignment, RateScale, assign, largest_rate_scale, relax
from jellybean_solver.small.beam_search import Attempt
from jellybean_solver.small.tree_bounds import Multipliers, can_flow, congestion, lagrangian, prices

REMEMBERED = 6  # sets of duals; each costs one dynamic program per bound
CROWDED = 1e-7  # a fleet is too small only when it is needed more than 1 + this many times


class Fleet:
    """What relaxations have taught about the fleet; shared by the searches on one problem."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.multipliers: list[Multipliers] = [prices(network)]
        self.weights: list[Mapping[str, float]] = []
        self._relaxed: dict[tuple[str, ...], float] = {}

    def cost_bound(self, partial: Selection) -> float:
        """USD per hour that no completion falls below; inf when none fits."""
        demand = self.network.demand(partial)
        if any(congestion(self.network, demand, weights) > 1 + CROWDED for weights in self.weights):
            return math.inf
        return max(lagrangian(self.network, demand, multipliers) for multipliers in self.multipliers)

    def scale_bound(self, partial: Selection) -> float:
        """The share of the rates that no completion exceeds, at most 1; -inf when nothing can flow."""
        demand = self.network.demand(partial)
        if not can_flow(self.network, demand):
            return -math.inf
        worst = max((congestion(self.network, demand, weights) for weights in self.weights), default=0.0)
        return 1.0 if worst <= 1 else 1.0 / worst

    def relaxed_cost(self, selection: Selection) -> float:
        """The linear relaxation of a complete selection, remembered; its duals sharpen the other bounds."""
        key = tuple(selection[name] for name in self.network.names)
        if key not in self._relaxed:
            demand = self.network.demand(selection)
            relaxation = relax(self.network, demand)
            if relaxation.multipliers is not None:
                # The first, prices alone, is the one that knows no selection; it stays.
                self.multipliers[1:] = [*self.multipliers[1:], relaxation.multipliers][-REMEMBERED:]
            else:
                self.learn_weights(selection)
            self._relaxed[key] = relaxation.value
        return self._relaxed[key]

    def learn_weights(self, selection: Selection, budget: float = math.inf) -> float:
        """The share of the rates that the selection's relaxation fits; remembers which pools are scarce."""
        answer = largest_rate_scale(self.network, self.network.demand(selection), integer=False, budget=budget)
        if answer is None:
            return 0.0
        if any(weight > 0 for weight in answer.weights.values()):
            self.weights = [*self.weights, answer.weights][-REMEMBERED:]
        return answer.scale


class Cheapest:
    """Minimise USD per hour; from a `running` plan with the way there, and within a budget that is without it."""

    def __init__(self, fleet: Fleet, running: RunningPlan | None = None, budget: float = math.inf) -> None:
        self.fleet, self.running, self.budget = fleet, running, budget

    def bound(self, partial: Selection) -> float:
        return self._with_moves(self.fleet.cost_bound(partial), partial)

    def refine(self, selection: Selection) -> float:
        return self._with_moves(self.fleet.relaxed_cost(selection), selection)

    def _with_moves(self, cost: float, partial: Selection) -> float:
        if cost > self.budget * (1 + VALUE_TOLERANCE):
            return math.inf
        return cost if self.running is None else cost + self.running.least_usd_per_h(partial)

    def solve(self, selection: Selection, cutoff: float, time_limit_s: float | None) -> Attempt[Assignment]:
        network = self.fleet.network
        moves = self.running.moves(selection) if self.running is not None else None
        answer = assign(
            network,
            network.demand(selection),
            cutoff=cutoff,
            time_limit_s=time_limit_s,
            moves=moves,
            budget=self.budget,
        )
        value = answer.assignment.cost if answer.assignment is not None else None
        return Attempt(value, answer.bound, answer.assignment)


class Fastest:
    """Maximise the share of all rates that fits (at most 1), within a budget."""

    def __init__(self, fleet: Fleet, budget: float = math.inf) -> None:
        self.fleet, self.budget = fleet, budget

    def bound(self, partial: Selection) -> float:
        return -self.fleet.scale_bound(partial)

    def refine(self, selection: Selection) -> float:
        return -self.fleet.learn_weights(selection, self.budget)

    def solve(self, selection: Selection, cutoff: float, time_limit_s: float | None) -> Attempt[RateScale]:
        network = self.fleet.network
        answer = largest_rate_scale(
            network, network.demand(selection), integer=True, budget=self.budget, time_limit_s=time_limit_s
        )
        if answer is None:
            return Attempt(None, math.inf)
        return Attempt(-answer.scale, -answer.bound, answer)


class MostAccurate:
    """Maximise accuracy; with `fits` among the selections that the fleet carries within a budget."""

    def __init__(self, fleet: Fleet, *, fits: bool, budget: float = math.inf) -> None:
        self.fleet, self.fits, self.budget = fleet, fits, budget

    def bound(self, partial: Selection) -> float:
        network = self.fleet.network
        model = network.problem.accuracy
        complete = len(partial) == len(network.names)
        reach = model.value(partial) if complete else model.upper_bound(partial)
        if reach is None or (self.fits and self.fleet.cost_bound(partial) > self.budget):
            return math.inf
        return -reach

    def refine(self, selection: Selection) -> float:
        if self.fits and self.fleet.relaxed_cost(selection) > self.budget:
            return math.inf
        return self.bound(selection)

    def solve(self, selection: Selection, cutoff: float, time_limit_s: float | None) -> Attempt[Assignment]:
        value = self.fleet.network.problem.accuracy.value(selection)
        if value is None:
            return Attempt(None, math.inf)
        if not self.fits:
            return Attempt(-value, -value)
        network = self.fleet.network
        answer = assign(network, network.demand(selection), cutoff=self.budget, time_limit_s=time_limit_s)
        if answer.assignment is None:
            return Attempt(None, math.inf if math.isinf(answer.bound) else -value)
        return Attempt(-value, -value, answer.assignment)
