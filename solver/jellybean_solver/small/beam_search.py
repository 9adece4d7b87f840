"""Model selection: a complete beam search over variants, proven by bounds.

Partial selections are extended in reverse topological order, as in JellyBean (VLDB 2023). Each has a lower bound on the
cost of its completions, and is dropped if none of them can reach the accuracy target. At each level the beam keeps the
cheapest partial selections; the others are not discarded but wait in a heap with their bounds. Complete selections are
solved in the order of their bounds, and the search ends when the next bound is not below the incumbent's cost. So a
narrow beam costs time, but the optimum is found.

A search that takes longer may run beside a `Companion`, another search for the same optimum in its own thread: each
takes over the incumbents of the other, and the lower bound of either can end both.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from jellybean_solver.demand.demand import Network
from jellybean_solver.demand.settings import DEFAULT_ASSIGNMENT, AssignmentSettings
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.outcome import ACCURACY_SLACK, VALUE_TOLERANCE, Clock, Outcome, Selection, termination_of
from jellybean_solver.small.assignment import Assignment, Attempt, assign, relax
from jellybean_solver.small.tree_bounds import lagrangian, prices


class Companion(Protocol):
    """Another search for the same optimum. `bound`: lower bound in USD per hour; `finished`: True if it has ended."""

    bound: float
    finished: bool

    def start(self, cutoff: float, gap: float) -> None:
        """Start to search for plans that cost less than `cutoff` (USD per hour), to the relative gap `gap`."""

    def found(self) -> Iterator[tuple[Selection, Assignment]]:
        """Incumbents found since the last call; with a running plan their costs are lower bounds."""
        ...

    def wait(self) -> None:
        """Block until there is a new result, or for a short time."""

    def close(self) -> None:
        """End the search."""


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """Effort of the search, which does not change its answer. `width`: partial selections kept per level."""

    width: int = 16
    programs_alone: int = 6  # LPs and MILPs solved before the companion starts; most small problems need no more


@dataclass(frozen=True, slots=True, order=True)
class _Open:
    """A selection on the heap: lowest bound first, then highest accuracy bound, then the order of the variants."""

    bound: float
    loss: float  # minus the upper bound on accuracy
    ranks: tuple[int, ...]
    refined: bool
    chosen: Selection = field(compare=False)


class BeamSearch:
    """One search for the cheapest selection, in USD per hour. `target`: required accuracy.

    With a `running` plan the cost includes migration from it, which does not count in `budget`. `companion`: not yet
    started; this search starts it when useful, and closes it at its own end.
    """

    def __init__(
        self,
        network: Network,
        target: float | None = None,
        clock: Clock = Clock(),
        *,
        running: RunningPlan | None = None,
        budget: float = math.inf,
        companion: Companion | None = None,
        settings: BeamSettings = BeamSettings(),
        assignment: AssignmentSettings = DEFAULT_ASSIGNMENT,
    ) -> None:
        self.network, self.target, self.clock, self.companion = network, target, clock, companion
        self.running, self.budget, self.settings, self.assignment = running, budget, settings, assignment
        self.multipliers = [prices(network)]  # then those of the last relaxation
        self.order = tuple(reversed(self.network.names))
        self.heap: list[_Open] = []
        self.best = Attempt(None, math.inf)
        self.best_selection: Selection | None = None
        self.unsolved = math.inf  # smallest lower bound of selections whose solve hit the time limit
        self.tried = self.programs = 0  # selections solved; relaxations and assignments solved
        self.is_accompanied = self.is_companions = False  # the companion is running; the incumbent is the companion's

    def run(self) -> Outcome[Assignment]:
        """Search until the answer is proven or time is up."""
        try:
            timed_out = self._search()
        finally:
            if self.companion is not None:
                self.companion.close()
        self._reproduce()
        waiting = self.heap[0].bound if self.heap and self.heap[0].bound < self.cutoff else math.inf
        value = self.best.value
        companion_bound = -math.inf if self.companion is None else self.companion.bound
        bound = min(value, max(min(waiting, self.unsolved), companion_bound))
        ended = termination_of(value, bound, out_of_time=timed_out or self.clock.left() == 0.0)
        return Outcome(value, self.best.assignment, self.best_selection, bound, self.tried, ended)

    def _search(self) -> bool:
        """Run the main loop; True if it ended by the time limit."""
        root = self._open((), {})
        if root is not None:
            heapq.heappush(self.heap, root)
        while True:
            is_open = bool(self.heap) and self.heap[0].bound < self.cutoff
            if not is_open and (self.companion is None or self.unsolved >= self.cutoff):
                return False
            if self.clock.left() == 0.0:
                return True
            if self.companion is not None and self._ends_with(self.companion, is_open):
                return False
            if is_open:
                self._step(heapq.heappop(self.heap))

    def _step(self, entry: _Open) -> None:
        """Process the open selection of lowest bound: improve its bound, extend it, or solve it."""
        if not entry.refined:  # duals of later relaxations may give a better bound than when it was pushed
            entry = replace(entry, bound=max(entry.bound, self._bound(entry.chosen)))
        if self.heap and self.heap[0] < entry:
            self._push(entry)
        elif len(entry.ranks) < len(self.order):
            self._dive(entry)
        elif not entry.refined:
            self._push(replace(entry, bound=max(entry.bound, self._refined_bound(entry.chosen)), refined=True))
        else:
            self._solve(entry)

    def _ends_with(self, companion: Companion, is_open: bool) -> bool:
        """True if the companion's lower bound ends the search.

        Starts the companion when it is due. If no selection is open (`is_open`), waits for the companion.
        """
        if not self.is_accompanied:
            if is_open and self.programs < self.settings.programs_alone:
                return False
            self.is_accompanied = True
            companion.start(self.cutoff, 0.0)
        if not is_open:
            companion.wait()
        for selection, assignment in companion.found():
            if self.running is None and assignment.cost < self.cutoff:
                self.best, self.best_selection = Attempt(assignment, -math.inf), selection
                self.is_companions = True
        return companion.bound >= self.cutoff or (companion.finished and not is_open)

    def _reproduce(self) -> None:
        """Solve the companion's selection again, so that the plan does not depend on which search found it."""
        if self.is_companions and self.best_selection is not None and self.clock.left() != 0.0:
            most = self.best.value + VALUE_TOLERANCE * max(1.0, abs(self.best.value))
            attempt = self._assign(self.best_selection, most)
            self.best = self.best if attempt.assignment is None else attempt

    @property
    def cutoff(self) -> float:
        """USD per hour; selections with a lower bound at or above it are pruned."""
        value = self.best.value
        margin = 0.5 * VALUE_TOLERANCE * max(1.0, abs(value))  # half: a bound at the cutoff closes the gap
        return value - margin if math.isfinite(value) else value

    def _dive(self, start: _Open) -> None:
        """One pass of the beam from a partial selection to complete ones; those beyond the width go to the heap."""
        beam = [start]
        while beam and len(beam[0].ranks) < len(self.order):
            grown = sorted(child for entry in beam for child in self._children(entry))
            beam = grown[: self.settings.width]
            for entry in grown[self.settings.width :]:
                self._push(entry)
        for entry in beam:
            self._push(entry)

    def _children(self, entry: _Open) -> Iterator[_Open]:
        name = self.order[len(entry.ranks)]
        for rank, variant in enumerate(self.network.runnable[name]):
            child = self._open((*entry.ranks, rank), {**entry.chosen, name: variant})
            if child is not None and child.bound < self.cutoff:
                yield child

    def _open(self, ranks: tuple[int, ...], chosen: Selection) -> _Open | None:
        model = self.network.problem.accuracy
        reach = model.upper_bound(chosen)
        if self.target is not None:
            if len(ranks) == len(self.order):
                reach = model.value(chosen)
            if reach is None or reach < self.target - ACCURACY_SLACK:
                return None
        bound = self._bound(chosen)
        if bound == math.inf:
            return None
        return _Open(bound, -reach if reach is not None else math.inf, ranks, False, chosen)

    def _push(self, entry: _Open) -> None:
        if entry.bound < self.cutoff:
            heapq.heappush(self.heap, entry)

    def _solve(self, entry: _Open) -> None:
        self.tried += 1
        self.programs += 1
        attempt = self._assign(entry.chosen, self.cutoff)
        if attempt.value < self.cutoff:
            self.best, self.best_selection, self.is_companions = attempt, entry.chosen, False
        self.unsolved = min(self.unsolved, max(entry.bound, attempt.bound))

    def _bound(self, partial: Selection) -> float:
        """A quick lower bound on the objective of all completions; inf if none is feasible within the budget."""
        demand = self.network.demand(partial)
        return self._with_moves(max(lagrangian(self.network, demand, own) for own in self.multipliers), partial)

    def _refined_bound(self, selection: Selection) -> float:
        """The LP lower bound for a complete selection; its duals improve later bounds."""
        self.programs += 1
        relaxation = relax(self.network, self.network.demand(selection))
        if relaxation.multipliers is not None:
            self.multipliers[1:] = [relaxation.multipliers]
        return self._with_moves(relaxation.value, selection)

    def _with_moves(self, cost: float, partial: Selection) -> float:
        if cost > self.budget * (1 + VALUE_TOLERANCE):
            return math.inf
        return cost if self.running is None else cost + self.running.least_usd_per_h(partial)

    def _assign(self, selection: Selection, cutoff: float) -> Attempt:
        """Solve the exact assignment of a selection; assignments with an objective above `cutoff` are not searched."""
        return assign(
            self.network,
            self.network.demand(selection),
            cutoff=cutoff,
            time_limit_s=self.clock.left(),
            moves=None if self.running is None else self.running.moves(selection),
            budget=self.budget,
            settings=self.assignment,
        )
