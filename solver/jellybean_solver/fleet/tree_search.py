"""Branch and bound over selections in passes, with rounding and the exact MILP beside it.

The order of everything depends on the problem alone, but for what the concurrent MILP finds, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.branch_and_bound import Tree
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.incumbent import Incumbent
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.relaxation import Point, Relaxation
from jellybean_solver.fleet.rounding.selection_rounding import SelectionRounding
from jellybean_solver.fleet.selection_closing import SelectionClosing
from jellybean_solver.fleet.settings import SearchSettings
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock
from jellybean_solver.small.assignment import Assignment


@dataclass(frozen=True, slots=True)
class SearchParts:
    """What a tree search works with.

    `relaxations`: each warm from one solve to the next; two solve both sides of a split at the same time.
    `milp` starts where nothing but whole workers can raise the bound, `early`, on problems of middle size,
    after the first plan.
    `is_paced`: under a deadline on the delay.
    """

    relaxations: tuple[Relaxation, ...]
    rounding: SelectionRounding
    incumbent: Incumbent
    milp: ConcurrentMilp
    early: ConcurrentMilp | None
    clock: Clock
    settings: SearchSettings
    is_paced: bool

    @property
    def relaxations_solved(self) -> int:
        """How many relaxations were solved so far."""
        return sum(relaxation.solved for relaxation in self.relaxations)


class TreeSearch:
    """One search. `most_relaxations`: after so many, a search under a deadline takes what it has."""

    def __init__(self, parts: SearchParts) -> None:
        self.parts, self.incumbent, self.milp, self.early = parts, parts.incumbent, parts.milp, parts.early
        self.milps = (parts.milp,) if parts.early is None else (parts.milp, parts.early)
        self.clock, self.settings, self.judge = parts.clock, parts.settings, parts.incumbent.judge
        self.relaxation, self.rounding = parts.relaxations[0], parts.rounding
        self.joint_lp = self.relaxation.joint_lp
        self.most_relaxations = parts.relaxations_solved + parts.settings.relaxations_per_deadline
        self.guess = math.inf  # USD per hour: plans that cost as much are not searched for in this pass
        self.least_relaxed = math.inf  # least relaxed cost of the selections visited
        self.closed = math.inf  # least bound of the selections that were solved exactly
        self.visited: set[bytes] = set()
        self.waiting: list[tuple[int, Box, Point]] = []  # selections visited and not yet rounded, with their counts
        self.rounded: set[tuple[bytes, float]] = set()  # selections, and the bound that they were rounded from
        self.first: tuple[Box, Assignment] | None = None  # the first plan, while no plan has met the deadline
        self.out_of_time = False

    def run(self) -> float:
        """Search until the gap is reached or time is up; a lower bound on the cost of all plans."""
        bound = 0.0
        if not self.parts.is_paced:
            self._find_first()
        is_loose = self.incumbent.gap > self.settings.coarse_gap and self.incumbent.assignment is not None
        if (
            self.early is not None and not is_loose
        ):  # the tree reaches a wide gap alone, with the same plan on every run
            self.early.start(self.incumbent.goal(), self.incumbent.gap)
        for share in self.settings.guesses if not self.parts.is_paced else (math.inf,):
            bound = max(bound, self._pass(share))
            if bound >= self.incumbent.goal() or self._is_closed() or self._is_last() or self.clock.left() == 0.0:
                break
        self._repair_first()
        return max(bound, self.milp_bound)

    def prove(self, most: float, relaxations: int) -> float:
        """A lower bound on the cost of all plans, up to `most`, by so many relaxations alone."""
        self.guess, last = most, self.parts.relaxations_solved + relaxations
        with self._tree() as tree:
            try:
                tree.start(self.relaxation.everything())
            except OutOfTimeError:
                return 0.0

            def enough() -> float:
                return -math.inf if self.parts.relaxations_solved >= last else min(most, tree.least_whole())

            tree.explore(enough, self.clock)
            return min(most, tree.bound())

    # -- passes

    def _pass(self, share: float) -> float:
        """Search a tree of its own as if a plan were known that costs this share more than the root; a lower bound.

        Where there is no plan that cheap, the guess is the bound.
        """
        self.visited, self.waiting, self.closed = set(), [], math.inf
        self.guess, self.out_of_time = math.inf, False
        with self._tree() as tree:
            try:
                if math.isfinite(share):
                    root = self.relaxation.solve(self.relaxation.everything())
                    if root is None:
                        return math.inf
                    self.guess = root.bound * (1.0 + share)
                tree.start(self.relaxation.everything())
            except OutOfTimeError:
                self.out_of_time = True
                return 0.0
            return self._search(tree)

    def _search(self, tree: Tree) -> float:
        """Explore until the gap is reached or time is up; a lower bound on all plans below the guess."""
        if math.isinf(self.guess) and self.incumbent.assignment is None:
            self._plunge(tree)
        for depth in self.settings.depths:
            near = 1.0 - depth * max(self.incumbent.gap, self.settings.coarse_gap)
            self._explore(tree, lambda near=near: min(near * self.least_relaxed, self._tired()))  # type: ignore[misc]
            self._round_best(tree)
        if self.parts.is_paced:
            return tree.bound()
        self._polish(tree)
        closing = SelectionClosing(self.rounding, self.milp, self.early, self.incumbent)
        while tree.bound() < self._enough() and self.clock.left() != 0.0:
            if tree.least_whole() > tree.bound():
                self._explore(tree, tree.least_whole)
            elif not self._is_last():
                break
            else:
                self.closed = min(self.closed, closing.close_cheapest(tree, self.joint_lp.selection, self._is_closed))
            self._round_best(tree)
        return min(tree.bound(), self.closed)

    def _tree(self) -> Tree:
        relax = tuple(relaxation.solve for relaxation in self.parts.relaxations)
        return Tree(self.joint_lp.kinds.owner, self.joint_lp.cheaper_first(), relax, self._visit, self._prune_above)

    def _explore(self, tree: Tree, limit: Callable[[], float]) -> None:
        tree.explore(lambda: min(self._enough(), limit()), self.clock)

    def _plunge(self, tree: Tree) -> None:
        """Dive to a first plan."""
        if tree.least_whole() > tree.bound():
            tree.plunge(self.joint_lp.integer_counts.pools)
            self._round_best(tree)
        while self.incumbent.assignment is None and tree.open and self.clock.left() != 0.0:
            self._explore(tree, lambda: -math.inf if self.waiting else self._tired())
            if not self.waiting:
                break
            self._round_best(tree)

    def _find_first(self) -> None:
        """Find some plan soon: guesses may be too low, or take all of the time to tell."""
        with self._tree() as tree, suppress(OutOfTimeError):
            tree.start(self.relaxation.everything())
            tree.plunge(self.joint_lp.integer_counts.pools)
            for _, box, point in self.waiting:
                found = self.rounding.near(box, point, tree.bound(), gap=self.settings.first_rounding)
                taken = self.incumbent.take(self.joint_lp.selection(box.allowed), found, judged=self.judge is None)
                if taken and found is not None:
                    self.first = box, found
        self.least_relaxed = math.inf

    def _repair_first(self) -> None:
        """Where no plan met the deadline, round the first one's selection again with as much headroom as it needs."""
        if self.judge is None or self.first is None or self.judge.has_plan:
            return
        (box, found), self.first = self.first, None
        selection, before = self.joint_lp.selection(box.allowed), (self.incumbent.assignment, self.incumbent.selection)
        self.judge.reset()
        accepted = self.judge.accepts(self.joint_lp.network, selection, found)
        while not accepted and self.judge.raise_headroom():
            self.incumbent.assignment = None
            point = self.rounding.relax(box)
            accepted = point is None or self.incumbent.take(selection, self.rounding.near(box, point, 0.0))
        if not self.judge.has_plan:  # the cheapest plan stays the one that other searches begin from
            self.incumbent.assignment, self.incumbent.selection = before

    # -- rounding

    def _round_best(self, tree: Tree) -> None:
        """Round the best selections visited, until one is good enough."""
        self.waiting.sort(key=lambda entry: (entry[2].bound, entry[0]))
        for _, box, point in self.waiting[: self.settings.roundings]:
            if point.bound >= self._enough() or self._enough() <= tree.bound():
                break
            key = box.allowed.tobytes(), float(f"{point.bound:.6g}")
            if key not in self.rounded:
                self.rounded.add(key)
                self._round_in_time(box, point, tree.bound())
        self.waiting.clear()

    def _round_in_time(self, box: Box, point: Point, bound: float) -> None:
        """Round a point, with ever more headroom on links as long as that is why the plan misses its deadline."""
        selection = self.joint_lp.selection(box.allowed)
        now: Point | None = point
        while now is not None and (now is point or now.bound < self._enough()):
            if self.incumbent.take(selection, self.rounding.near(box, now, bound)):
                self.incumbent.point = now
                break
            now = self.rounding.relax(box) if self.judge is not None and self.judge.raise_headroom() else None
        if self.judge is not None:
            self.judge.reset()

    def _polish(self, tree: Tree) -> None:
        """Round the incumbent's point once more with more effort, if it is not good enough."""
        point = self.incumbent.point
        if point is None or self.joint_lp.kinds.exclusive.any() or self.clock.left() == 0.0:
            return
        if tree.bound() < self._enough():
            self.incumbent.take(self.incumbent.selection, self.rounding.finely(point, tree.bound()))

    # -- what the tree asks

    def _visit(self, box: Box) -> None:
        """Note a whole selection of the tree, and its counts of few workers."""
        if box.key in self.visited:
            return
        self.visited.add(box.key)
        if not self.incumbent.is_accurate(self.joint_lp.selection(box.allowed)):
            return
        point = self.rounding.relax(box)
        if point is not None:
            self.least_relaxed = min(self.least_relaxed, point.bound)
            self.waiting.append((len(self.visited), box, point))

    def _tired(self) -> float:
        """-inf to stop where a deadline makes selections many and close, and some were visited."""
        tired = self.parts.is_paced and self.parts.relaxations_solved >= self.most_relaxations
        return -math.inf if tired and self.visited else math.inf

    def _enough(self) -> float:
        """Nodes with this bound need not be explored."""
        if self._is_closed():
            return -math.inf
        return min(self.incumbent.goal(), self.closed, self.guess * (1.0 - VALUE_TOLERANCE))

    def _prune_above(self) -> float:
        """Nodes may prune for good what costs as much: a little above `_enough`, for what rounding does to bounds."""
        share = self.settings.pruned_share * max(self.incumbent.gap, VALUE_TOLERANCE)
        return min(self.incumbent.cost * (1.0 - share), self.guess)

    def _is_closed(self) -> bool:
        """True if the concurrent MILP has proven the incumbent; takes what it has found."""
        for milp in self.milps:
            for selection, found in milp.found():
                self.incumbent.take(selection, found)
        return self.milp_bound >= self.incumbent.goal()

    @property
    def milp_bound(self) -> float:
        """The lower bound that the exact MILPs have proven."""
        return max(milp.bound for milp in self.milps)

    def _is_last(self) -> bool:
        """True if no guess prunes what is better than the incumbent."""
        return math.isinf(self.guess) or self.incumbent.cost <= self.guess
