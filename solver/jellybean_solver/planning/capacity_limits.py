"""Limits other than the number of workers that keep the rates down: memory, whole workers per operator, the budget.

Each limit is dropped alone and the largest feasible rates are computed again: a limit is named if that raises them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.memory import without_memory_limits
from jellybean_solver.figures import usd_text
from jellybean_solver.fleet.rate_scale import RateScale
from jellybean_solver.model.problem import Problem, Sharing
from jellybean_solver.outcome import Outcome, Selection
from jellybean_solver.planning.memory_shortage import memory_may_bind, shortage_in_pool

RAISED = 1e-4  # relative: a limit without which the rates rise by less is not named

LargestScale = Callable[[Problem, float], Outcome[RateScale]]  # of a changed problem, within a budget in USD per hour


@dataclass(frozen=True, slots=True)
class BindingLimit:
    """A limit without which more fits. `scale`: the share of the rates that fits then; `words` say so, with figures."""

    name: str
    scale: float
    words: str


def binding_limits(network: Network, budget: float, scale: float, largest_scale: LargestScale) -> list[BindingLimit]:
    """The limits without which more than `scale` of the rates fits; none if workers alone are short.

    `budget`: in USD per hour, inf without one. A limit for which time does not suffice is left out.
    """
    outcomes = ((change, largest_scale(change.problem, change.budget)) for change in _changes(network, budget))
    return [
        BindingLimit(change.name, -outcome.value, change.words(outcome.selection, share_text(-outcome.value)))
        for change, outcome in outcomes
        if outcome.selection is not None and outcome.is_conclusive
        if -outcome.value > max(scale * (1 + RAISED), RAISED)
    ]


def share_text(scale: float) -> str:
    """A share of the rates as text: `all of the rates`, `0.5 of the rates`."""
    return "all of the rates" if scale > 1 - RAISED else f"{scale:.4g} of the rates"


@dataclass(frozen=True, slots=True)
class _Change:
    """The problem and the budget without one limit. `words`: the sentence for a selection and a share that fits."""

    name: str
    problem: Problem
    budget: float
    words: Callable[[Selection, str], str]


def _changes(network: Network, budget: float) -> Iterator[_Change]:
    problem = network.problem
    if limited := [pool for pool in network.pools if memory_may_bind(problem, pool)]:

        def memory(selection: Selection, share: str) -> str:
            needs = "; ".join(filter(None, (shortage_in_pool(problem, pool, selection) for pool in limited)))
            return f"with enough memory {share} would fit: {needs}"

        yield _Change("memory", without_memory_limits(problem), budget, memory)
    if exclusive := ", ".join(pool.name for pool in network.pools if pool.sharing is Sharing.EXCLUSIVE):
        shared = replace(problem, pools=tuple(replace(pool, sharing=Sharing.SHARED) for pool in problem.pools))
        whole = f"if exclusive pools ({exclusive}), which give each operator whole workers, were shared"
        yield _Change("sharing", shared, budget, lambda selection, share: f"{share} would fit {whole}")
    if math.isfinite(budget):
        above = f"without the budget of {usd_text(budget)} USD/h"
        yield _Change("budget", problem, math.inf, lambda selection, share: f"{above} {share} would fit")
