"""Exact MILPs of single selections, cheapest bound first, while the exact MILP of all selections goes on."""

from __future__ import annotations

import math
from collections.abc import Callable

from jellybean_solver.fleet.branch_and_bound import Tree
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import Incumbent
from jellybean_solver.fleet.rounding.selection_rounding import SelectionRounding
from jellybean_solver.fleet.worker_classes import Mask
from jellybean_solver.milp.concurrent_solve import ConcurrentSolve
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.outcome import Selection


class SelectionClosing:
    """Closes the gap that relaxations leave at integral nodes.

    `exact_bounds`: lower bounds (USD per hour) of the selections solved, by their variants.
    """

    def __init__(self, rounding: SelectionRounding, milp: ConcurrentMilp, incumbent: Incumbent) -> None:
        self.rounding, self.milp, self.incumbent = rounding, milp, incumbent
        self.exact_bounds: dict[tuple[str, ...], float] = {}

    def close_cheapest(
        self, tree: Tree, selection_of: Callable[[Mask], Selection], is_closed: Callable[[], bool]
    ) -> float:
        """Split the cheapest integral node, or solve the selection if its box allows only one.

        Returns the lower bound of the selection solved in USD per hour, inf if none was. `selection_of`: variants of a
        mask of choices. `is_closed`: polled during the solve; True stops it.
        """
        self._start()
        node = tree.part()
        if node is None:
            return math.inf
        selection = selection_of(node.box.allowed)
        if not self.incumbent.is_accurate(selection):
            return math.inf
        key = tuple(selection[name] for name in self.incumbent.network.names)
        if self.exact_bounds.get(key, 0.0) < self.incumbent.goal():
            self.exact_bounds[key] = self._solve(selection, is_closed)
        return max(node.bound, self.exact_bounds[key])

    def _start(self) -> None:
        """Start the MILP of all selections; restart it once if the incumbent is much cheaper than its best value."""
        goal = self.incumbent.goal()
        stale = goal < self.milp.value * (1.0 - self.rounding.settings.restart_below)
        if not self.milp.runs or (self.milp.runs == 1 and stale):
            self.milp.start(goal, self.incumbent.gap)

    def _solve(self, selection: Selection, is_closed: Callable[[], bool]) -> float:
        """Solve the exact MILP of one selection for a cheaper plan. Returns its lower bound in USD per hour."""
        milp = self.rounding.exact_milp(selection)
        if milp is None:
            return math.inf
        limits = SolveLimits(0.5 * self.incumbent.gap, self.rounding.clock.left(), self.incumbent.goal())
        run = ConcurrentSolve(milp.program, limits, self.milp.wake)
        while run.answer is None and run.bound < self.incumbent.goal() and not is_closed():
            self.milp.wait()
            self._take(run, milp, selection)
        run.stop()
        self._take(run, milp, selection)
        return run.bound

    def _take(self, run: ConcurrentSolve, milp: ExactMilp, selection: Selection) -> None:
        for values in run.incumbents():
            self.incumbent.take(selection, milp.staff(values).assignment(), of_thread=True)
