"""Branch and bound over selections in passes, with rounding and the exact MILP beside it.

The search is deterministic except for what the concurrent MILP finds, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.branch_and_bound import Tree
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.incumbent import Incumbent
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.relaxation import Point, Relaxation
from jellybean_solver.fleet.rounding.selection_rounding import SelectionRounding
from jellybean_solver.fleet.selection_closing import SelectionClosing
from jellybean_solver.outcome import VALUE_TOLERANCE, Clock
from jellybean_solver.small.assignment import Assignment


class TreeSearch:
    """One search.

    `relaxations`: warm-started; two solve both children of a node concurrently.
    `milp`: exact MILP that starts when only integral nodes are left at the bound.
    `is_paced`: True if there is a deadline on the linearised delay. `most_relaxations`: after so many, such a search
    ends with the plans it has.
    """

    def __init__(
        self,
        relaxations: tuple[Relaxation, ...],
        rounding: SelectionRounding,
        incumbent: Incumbent,
        milp: ConcurrentMilp,
        clock: Clock,
        *,
        is_paced: bool,
    ) -> None:
        self.relaxations, self.relaxation, self.rounding = relaxations, relaxations[0], rounding
        self.incumbent, self.milp, self.clock = incumbent, milp, clock
        self.settings, self.judge, self.is_paced = rounding.settings, incumbent.judge, is_paced
        self.joint_lp = self.relaxation.joint_lp
        self.most_relaxations = self.solved + self.settings.relaxations_per_deadline
        self.guess = math.inf  # USD per hour: this pass prunes plans that cost as much or more
        self.least_relaxed = math.inf  # least relaxed cost of the selections visited
        self.closed = math.inf  # least bound of the selections that were solved exactly
        self.visited: set[bytes] = set()
        self.waiting: list[tuple[int, Box, Point]] = []  # selections visited and not yet rounded, with their counts
        self.rounded: set[tuple[bytes, float]] = set()  # selections, and the bound that they were rounded from
        self.first: tuple[Box, Assignment] | None = None  # the first plan, while no plan has met the deadline
        self.out_of_time = False

    def run(self) -> float:
        """Search until the gap is reached or time is up. Returns a lower bound on all plans, USD per hour."""
        bound = 0.0
        if not self.is_paced:
            self._find_first()
        for share in self.settings.guesses if not self.is_paced else (math.inf,):
            bound = max(bound, self._pass(share))
            if bound >= self.incumbent.goal() or self._is_closed() or self._is_last() or self.clock.left() == 0.0:
                break
        self._repair_first()
        return max(bound, self.milp.bound)

    def prove(self, most: float, relaxations: int) -> float:
        """A lower bound on the cost of all plans (USD per hour, at most `most`) from so many solved relaxations."""
        self.guess, last = most, self.solved + relaxations
        with self._tree() as tree:
            try:
                tree.start(self.relaxation.everything())
            except OutOfTimeError:
                return 0.0

            def enough() -> float:
                return -math.inf if self.solved >= last else min(most, tree.least_whole())

            tree.explore(enough, self.clock)
            return min(most, tree.bound())

    @property
    def solved(self) -> int:
        """How many relaxations were solved so far."""
        return sum(relaxation.solved for relaxation in self.relaxations)

    # -- passes

    def _pass(self, share: float) -> float:
        """Search a new tree with a guessed cutoff: the root's bound times (1 + `share`).

        Returns a lower bound on all plans in USD per hour: at most the guess, which is the bound if no plan is cheaper.
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
        """Explore until the gap is reached or time is up. Returns a lower bound on the plans cheaper than the guess."""
        if math.isinf(self.guess) and self.incumbent.assignment is None:
            self._plunge(tree)
        for depth in self.settings.depths:
            near = 1.0 - depth * max(self.incumbent.gap, self.settings.coarse_gap)
            self._explore(tree, lambda near=near: min(near * self.least_relaxed, self._tired()))  # type: ignore[misc]
            self._round_best(tree)
        if self.is_paced:
            return tree.bound()
        closing = SelectionClosing(self.rounding, self.milp, self.incumbent)
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
        relax = tuple(relaxation.solve for relaxation in self.relaxations)
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
        """Find a first plan without a guessed cutoff, as the passes may take all of the time to refute low guesses."""
        with self._tree() as tree, suppress(OutOfTimeError):
            tree.start(self.relaxation.everything())
            tree.plunge(self.joint_lp.integer_counts.pools)
            for _, box, point in self.waiting:
                found = self.rounding.near(point, tree.bound())
                taken = self.incumbent.take(self.joint_lp.selection(box.allowed), found, judged=self.judge is None)
                if taken and found is not None:
                    self.first = box, found
        self.least_relaxed = math.inf

    def _repair_first(self) -> None:
        """If no plan met the deadline, round the first plan's selection again, leaving ever more free on all links."""
        if self.judge is None or self.first is None or self.judge.has_plan:
            return
        (box, found), self.first = self.first, None
        selection, before = self.joint_lp.selection(box.allowed), (self.incumbent.assignment, self.incumbent.selection)
        self.judge.reset()
        accepted = self.judge.accepts(self.joint_lp.network, selection, found)
        while not accepted and self.judge.raise_headroom():
            self.incumbent.assignment = None
            point = self.rounding.relax(box)
            accepted = point is None or self.incumbent.take(selection, self.rounding.near(point, 0.0))
        if not self.judge.has_plan:  # keep the cheapest plan: other searches start from it
            self.incumbent.assignment, self.incumbent.selection = before

    # -- rounding

    def _round_best(self, tree: Tree) -> None:
        """Round the visited selections with the lowest bounds, until the incumbent is within the gap."""
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
        """Round a point; while its plan misses the deadline because of links, again with more headroom on them."""
        selection = self.joint_lp.selection(box.allowed)
        now: Point | None = point
        while now is not None and (now is point or now.bound < self._enough()):
            if self.incumbent.take(selection, self.rounding.near(now, bound)):
                break
            now = self.rounding.relax(box) if self.judge is not None and self.judge.raise_headroom() else None
        if self.judge is not None:
            self.judge.reset()

    # -- callbacks of the tree

    def _visit(self, box: Box) -> None:
        """Queue an integral selection, with its integer counts, for rounding."""
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
        """-inf if a search under a deadline has used up its relaxations and visited some selection, else inf."""
        tired = self.is_paced and self.solved >= self.most_relaxations
        return -math.inf if tired and self.visited else math.inf

    def _enough(self) -> float:
        """USD per hour: nodes with this bound or a higher one need not be explored."""
        if self._is_closed():
            return -math.inf
        return min(self.incumbent.goal(), self.closed, self.guess * (1.0 - VALUE_TOLERANCE))

    def _prune_above(self) -> float:
        """USD per hour: plans that cost as much may be pruned for good.

        Above `_enough` whatever the gap: else what was pruned would keep the tree's bound below it, with nothing left
        to explore.
        """
        return min(self.incumbent.cheaper(self.settings.pruned_share), self.guess)

    def _is_closed(self) -> bool:
        """True if the concurrent MILP has proven the incumbent optimal to the gap; takes the plans that it found."""
        for selection, found in self.milp.found():
            self.incumbent.take(selection, found, of_thread=True)
        return self.milp.bound >= self.incumbent.goal()

    def _is_last(self) -> bool:
        """True if the guess does not prune plans cheaper than the incumbent, so that this pass is the last."""
        return math.isinf(self.guess) or self.incumbent.cost <= self.guess
