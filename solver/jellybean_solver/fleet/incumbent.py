"""The incumbent of a search, and the conditions that a plan must meet to replace it."""

from __future__ import annotations

import math
from typing import Protocol

from jellybean_solver.demand.demand import Network
from jellybean_solver.model.problem import Problem
from jellybean_solver.outcome import ACCURACY_SLACK, VALUE_TOLERANCE, Selection
from jellybean_solver.small.assignment import Assignment


class DeadlineJudge(Protocol):
    """Decides whether plans meet a p99 latency, and how much bandwidth to leave free so that they do.

    `headroom`: share of every link's bandwidth that rounding leaves unused.
    """

    headroom: float

    @property
    def has_plan(self) -> bool:
        """True if a plan met the deadline."""

    def accepts(self, network: Network, selection: Selection, found: Assignment) -> bool:
        """True if the plan meets the deadline, or if more headroom on links would not make it meet it."""

    def reset(self) -> None:
        """Reset the per-selection state."""

    def raise_headroom(self) -> bool:
        """True if the last plan missed its deadline and `headroom` was raised."""


def is_accurate_enough(problem: Problem, target: float | None, selection: Selection) -> bool:
    """True if the measured accuracy reaches the target; accuracy rows may overestimate it (accuracy_rows.py)."""
    accuracy = None if target is None else problem.accuracy.value(selection)
    return target is None or (accuracy is not None and accuracy >= target - ACCURACY_SLACK)


class Incumbent:
    """The cheapest accepted plan within a budget (USD per hour).

    `target`: accuracy in percent, None if none is required; `gap`: the relative gap at which the search may end;
    `judge`: checks the deadline, None if there is none.
    `of_thread`: the plan is of a MILP in a thread, so that another run may find another one of its selection.
    """

    def __init__(
        self, network: Network, target: float | None, budget: float, gap: float, judge: DeadlineJudge | None
    ) -> None:
        self.network, self.target, self.budget, self.gap, self.judge = network, target, budget, gap, judge
        self.assignment: Assignment | None = None
        self.selection: Selection = {}
        self.of_thread = False

    @property
    def cost(self) -> float:
        """USD per hour; inf without a plan."""
        return math.inf if self.assignment is None else self.assignment.cost

    def goal(self) -> float:
        """The lower bound that ends the search: within the gap of the incumbent, or above the budget."""
        return self.budget if self.assignment is None else min(self.cheaper(1.0), self.budget)

    def cheaper(self, share: float) -> float:
        """USD per hour: the incumbent's cost less this share of the gap at which the search may end."""
        return self.cost * (1.0 - share * max(self.gap, 0.5 * VALUE_TOLERANCE))

    def is_accurate(self, selection: Selection) -> bool:
        """True if the measured accuracy reaches the target."""
        return is_accurate_enough(self.network.problem, self.target, selection)

    def take(
        self, selection: Selection, found: Assignment | None, *, judged: bool = True, of_thread: bool = False
    ) -> bool:
        """Make a plan the incumbent if it costs no more and is accepted. Returns whether it became the incumbent.

        `judged`: whether the deadline is checked too.
        """
        if found is None or found.cost > min(self.budget, self.cost):
            return False
        if judged and self.judge is not None and not self.judge.accepts(self.network, selection, found):
            return False
        self.assignment, self.selection, self.of_thread = found, selection, of_thread
        return True
