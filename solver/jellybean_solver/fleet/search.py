"""The cheapest plan of a fleet too large to walk through selection by selection: branch and bound on selections.

Each node is a linear relaxation (relaxation.py), whose bound holds for the problem; at whole selections workers are
made whole (whole.py, rounding.py) and seated. First the search goes on as if a plan a little dearer than the root were
known, then a dearer one, then none: among relaxations, until no selection can be much better than the best one met.
What is then still open is taken cheapest first. Where single selections look better only as long as workers come in
fractions, as they do in small fleets, a few are solved exactly (exact.py), and then all that is left at once. The order
of everything depends on the problem alone: only a time limit that strikes can change the plan from one run to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from jellybean_solver.demand.demand import Network
from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.ancestor_closure import where_possible
from jellybean_solver.fleet.branch_and_bound import Tree
from jellybean_solver.fleet.concurrent_milp import ConcurrentMilp
from jellybean_solver.fleet.delay_linearisation import Pace
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.exclusive_rounding import rounded
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.joint_lp import Skeleton
from jellybean_solver.fleet.relaxation import Point, Relaxation
from jellybean_solver.fleet.shared_rounding import whole_near
from jellybean_solver.fleet.worker_classes import Mask
from jellybean_solver.milp.concurrent_solve import ConcurrentSolve
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.outcome import (
    VALUE_TOLERANCE,
    Clock,
    Outcome,
    Selection,
    Termination,
    is_gap_closed,
    termination_of,
)
from jellybean_solver.small.assignment import Assignment

CLOSE = (0.6, 0.3, 0.1)  # of the gap: how close to the best relaxed selection the search goes, step by step
GUESSES = (0.012, 0.03, math.inf)  # what the cheapest plan may cost more than the relaxation, in turn
ANY = 0.01  # what making workers whole may lose for a first plan
CUT = 0.9  # of the gap, below the plan: what costs as much is left out
SPARE = 0.99  # of the gap: a plan that near the bound will do
FINE = 0.2  # of the gap: what making workers whole may lose beside the best way
NEAR, MORE_KINDS, FINE_KINDS = 0.3, 1, 2  # of the gap, and kinds, that making shared workers whole looks at
ROOM = (0.0, 0.2, 1.0)  # workers of a kind left out per operator on it, for memory to need more than time does
MOST_ROUNDED = 5  # selections whose workers are made whole before the search goes on
GRACE_S = 1.0  # for a plan of what was found when time ended
MOST_PACED = 250  # relaxations solved under one deadline
MIDDLE = 2_000  # pairs of a choice and a worker class, up to which HiGHS gets a core for the joint MILP from the start
COARSE = 1e-3  # relative; heuristics go no finer, however small the gap asked for
ROUNDING_NODES = 30  # of the exact MILP of one selection, for a plan that is good enough to go on
MOST_NODES = 1_000  # of the program that makes a plan reproducible
STALE = 1e-2  # relative: by what the best plan must be cheaper than the joint MILP knows for it to start again


class Timely(Protocol):
    """Says of plans found whether they are in time, and how much of every link is to be left free for that."""

    free: float

    @property
    def has_one(self) -> bool:
        """Whether a plan was in time."""

    def keeps(self, network: Network, selection: Selection, found: Assignment) -> bool:
        """Whether the plan is in time."""

    def begins(self) -> None:
        """What comes next is another selection."""

    def asks_for_more(self) -> bool:
        """Whether the last plan was not, and `free` has grown for it."""


class FleetSearch:
    """One search for the cheapest plan that reaches `target`, to a relative gap, within a budget.

    `fixed`: operators whose variant is given. Plans that are not `timely` are not taken.
    """

    def __init__(
        self,
        network: Network,
        target: float | None,
        fixed: Selection,
        gap: float,
        clock: Clock,
        budget: float,
        pace: Pace | None = None,
        timely: Timely | None = None,
    ) -> None:
        self.target, self.clock, self.budget, self.fixed, self.pace = target, clock, budget, fixed, pace
        self.timely = timely
        self.skeleton = where_possible(Skeleton(network, target, fixed, pace), target, fixed, pace)
        self.network = self.skeleton.network
        self.is_middle = self.skeleton.possible and int(self.skeleton.open.sum()) <= MIDDLE and pace is None
        self.gap = 0.0 if self.is_middle and timely is None and gap <= COARSE else gap
        self.coarse = max(self.gap, COARSE)  # for heuristics
        self.milp = ConcurrentMilp(self.network, target, fixed, clock, self._is_accurate)
        self._begin()

    @cached_property
    def relaxations(self) -> tuple[Relaxation, Relaxation]:
        """Warm from one solve to the next; two, to solve both sides of a split at the same time."""
        return Relaxation(self.skeleton, self.clock), Relaxation(self.skeleton, self.clock)

    @property
    def relaxation(self) -> Relaxation:
        """The first of them."""
        return self.relaxations[0]

    @property
    def _relaxed_so_often(self) -> int:
        return sum(relaxation.solved for relaxation in self.relaxations)

    def _begin(self) -> None:
        self.enough_solved = MOST_PACED
        self.best: Assignment | None = None
        self.best_point: Point | None = None  # that it was rounded from
        self.guess = math.inf  # USD per hour: plans that cost as much are not looked for now
        self.best_selection: Selection | None = None
        self.relaxed = math.inf  # the least relaxed cost of the selections met
        self.settled = math.inf  # the least bound of the selections that were solved exactly
        self.met: set[bytes] = set()
        self.late = False
        self.waiting: list[tuple[int, Box, Point]] = []  # selections met, with counts of few workers, and not yet tried
        self.tried: set[tuple[bytes, float]] = set()  # selections whose workers were made whole, and from which bound
        self.known: dict[tuple[str, ...], float] = {}  # variants by operator, of selections solved exactly -> bound
        self.some: tuple[Box, Assignment] | None = None  # the first plan, while it is not known to be in time

    def under(self, left_s: float, budget: float, clock: Clock) -> FleetSearch:
        """The same under another deadline and budget; what the relaxation has learnt of columns and rows stays."""
        if self.pace is None:
            raise SolverError("a search without a pace has no deadline")
        self.pace, self.budget, self.clock = replace(self.pace, left_s=left_s), budget, clock
        if self.skeleton.possible:
            for relaxation in self.relaxations:
                relaxation.answer_within(left_s, clock)
        self._begin()
        self.enough_solved += self._relaxed_so_often
        return self

    def proven(self, most: float, relaxations: int) -> float:
        """What no plan falls below, as far as that is below `most`: by so many relaxations alone."""
        if not self.skeleton.possible:
            return most
        self._begin()
        self.guess, solved = most, self._relaxed_so_often
        with self._tree() as tree:
            try:
                tree.start(self.relaxation.everything())
            except OutOfTimeError:
                return 0.0
            tired = partial(self._tired, solved + relaxations)
            tree.explore(lambda: -math.inf if tired() else min(most, tree.least_whole()), self.clock)
            return min(most, tree.bound())

    def _tired(self, most: int) -> bool:
        return self._relaxed_so_often >= most

    def relax(self) -> Outcome[Assignment]:
        """The bound of the joint LP, and the selection that its optimum is nearest to; no plan."""
        nothing: Outcome[Assignment] = Outcome(math.inf, None, None, math.inf, 1, Termination.OPTIMAL)
        if not self.skeleton.possible:
            return nothing
        try:
            point = self.relaxation.solve(self.relaxation.everything())
        except OutOfTimeError:
            return replace(nothing, bound=0.0, termination=Termination.TIME_LIMIT)
        if point is None or point.bound > self.budget:
            return nothing
        order = np.argsort(point.chosen, kind="stable")
        selection: Selection = dict(self.skeleton.kinds.choices[choice] for choice in order.tolist())
        return replace(nothing, selection=selection, bound=point.bound, termination=Termination.GAP)

    def run(self) -> Outcome[Assignment]:
        """Until the gap is reached or time is up."""
        if not self.skeleton.possible:
            return self._outcome(math.inf)
        if self.is_middle and self.timely is None:
            self.milp.start(self.budget, self.gap)
        try:
            bound = self._run()
        finally:
            self.milp.close()
        if self.milp.runs and self.best is not None and bound >= self._goal():
            self._reproduce()
        return self._outcome(bound)

    def _reproduce(self) -> None:
        """Solve the best selection once more by itself, so that the plan does not depend on which search was first."""
        if self.best is None or self.best_selection is None or self.clock.left() == 0.0:
            return
        milp = ExactMilp(Skeleton(self.network, None, self.best_selection, self.pace))
        most = self.best.cost * (1.0 + VALUE_TOLERANCE)
        answer = milp.program.solve(gap=self.gap, time_limit_s=self.clock.left(), most_nodes=MOST_NODES, cutoff=most)
        if answer.values is not None:
            found = milp.staff(answer.values).assignment()
            if found is not None and found.cost <= most:
                self.best = found

    def _run(self) -> float:
        bound = 0.0
        if self.pace is None:
            self._any()
        for share in GUESSES if self.pace is None else (math.inf,):
            bound = max(bound, self._pass(share))
            if bound >= self._goal() or self._is_done() or self._is_last() or self.clock.left() == 0.0:
                break
        self._see_to_first()
        return max(bound, self.milp.bound)

    def _is_done(self) -> bool:
        """Whether the joint MILP has left nothing to be found; what it has found is taken."""
        for selection, found in self.milp.found():
            self._take(selection, found)
        return self.milp.bound >= self._goal()

    def _is_last(self) -> bool:
        """Whether no guess rules out what is better than the best plan."""
        return math.isinf(self.guess) or (self.best is not None and self.best.cost <= self.guess)

    def _pass(self, share: float) -> float:
        """A tree of its own, as if a plan were known that costs this share more than the relaxation; a bound on all.

        A plan rules out much of a tree, and a good one takes long to find without. Where there is none that cheap, the
        guess is a bound.
        """
        self.met, self.waiting, self.settled = set(), [], math.inf
        self.guess, self.late = math.inf, False
        with self._tree() as tree:
            try:
                if math.isfinite(share):
                    root = self.relaxation.solve(self.relaxation.everything())
                    if root is None:
                        return math.inf
                    self.guess = root.bound * (1.0 + share)
                tree.start(self.relaxation.everything())
            except OutOfTimeError:
                self.late = True
                return 0.0
            return self._walked(tree)

    def _tree(self) -> Tree:
        relax = self.relaxations[0].solve, self.relaxations[1].solve
        return Tree(self.skeleton.kinds.owner, self._rank(), relax, self._meet, self._dear)

    def _first(self, tree: Tree) -> None:
        """Any plan: the first one rules out much."""
        if tree.least_whole() > tree.bound():
            tree.plunge(self.skeleton.few.pools)
            self._make_whole(tree)
        while self.best is None and tree.open and self.clock.left() != 0.0:
            tree.explore(lambda: -math.inf if self.waiting else min(self._enough(), self._most()), self.clock)
            if not self.waiting:
                break
            self._make_whole(tree)

    def _any(self) -> None:
        """Some plan, soon: guesses may be wrong, or take all of the time to tell."""
        with self._tree() as tree, suppress(OutOfTimeError):
            tree.start(self.relaxation.everything())
            tree.plunge(self.skeleton.few.pools)
            for _, box, point in self.waiting:
                found = self._rounded(box, point, tree.bound(), ANY)
                if self._take(self._selection(box.allowed), found, judged=self.timely is None) and found is not None:
                    self.some = box, found
        self.relaxed = math.inf

    def _explore(self, tree: Tree, close: float) -> None:
        near = 1.0 - close * self.coarse
        tree.explore(lambda: min(self._enough(), near * self.relaxed, self._most()), self.clock)
        self._make_whole(tree)

    def _see_to_first(self) -> None:
        """Where no plan was in time, the first one, with as much room as it takes."""
        if self.timely is None or self.some is None or self.timely.has_one:
            return
        (box, found), self.some = self.some, None
        selection, before = self._selection(box.allowed), (self.best, self.best_selection)
        self.timely.begins()
        met = self.timely.keeps(self.network, selection, found)
        while not met and self.timely.asks_for_more():
            self.best = None
            point = self._point(box)
            met = point is None or self._take(selection, self._rounded(box, point, 0.0))
        if not self.timely.has_one:  # the cheapest plan stays what others begin from, and bounds stay below it
            self.best, self.best_selection = before

    def _walked(self, tree: Tree) -> float:
        """Until the gap is reached or time is up; a bound on all plans."""
        if math.isinf(self.guess) and self.best is None:
            self._first(tree)
        for close in CLOSE:
            self._explore(tree, close)
        if self.pace is not None:
            return tree.bound()
        self._polish(tree)
        while tree.bound() < self._enough() and self.clock.left() != 0.0:
            if tree.least_whole() > tree.bound():
                tree.explore(lambda: min(self._enough(), tree.least_whole()), self.clock)
            elif not self._is_last():
                break
            else:
                self._close_gap(tree)
            self._make_whole(tree)
        return min(tree.bound(), self.settled)

    def _rank(self) -> Indices:
        """Choices operator by operator, cheaper ones first."""
        kinds, known = self.skeleton.kinds, self.skeleton.open
        workers = np.where(known, kinds.needed, 0.0)
        cost = np.where(known, workers * kinds.price, math.inf).min(axis=1, initial=math.inf)
        rank = np.empty(len(cost), np.int64)
        rank[np.lexsort((cost, kinds.owner))] = np.arange(len(cost))
        return rank

    def _most(self) -> float:
        """Under a deadline selections are many and close: the first that are met must do."""
        tired = self.pace is not None and self._relaxed_so_often >= self.enough_solved
        return -math.inf if tired and self.met else math.inf

    def _enough(self) -> float:
        """What costs as much need not be looked at."""
        if self._is_done():
            return -math.inf
        return min(self._goal(), self.settled, self.guess * (1.0 - VALUE_TOLERANCE))

    def _goal(self) -> float:
        """A bound that is enough to end the search."""
        if self.best is None:
            return self.budget
        return min(self.best.cost * (1.0 - max(self.gap, 0.5 * VALUE_TOLERANCE)), self.budget)

    def _dear(self) -> float:
        """What a node may leave out for good: a little above what is enough, for what rounding does to bounds."""
        best = math.inf if self.best is None else self.best.cost * (1.0 - CUT * max(self.gap, VALUE_TOLERANCE))
        return min(best, self.guess)

    def _selection(self, mask: Mask) -> Selection:
        return dict(choice for choice, made in zip(self.skeleton.kinds.choices, mask.tolist(), strict=True) if made)

    def _key(self, selection: Selection) -> tuple[str, ...]:
        return tuple(selection[name] for name in self.network.names)

    def _is_accurate(self, selection: Selection) -> bool:
        """By the measured figure, which may lie below what the rows take it for."""
        if self.target is None:
            return True
        accuracy = self.network.problem.accuracy.value(selection)
        return accuracy is not None and accuracy >= self.target - VALUE_TOLERANCE * max(1.0, abs(self.target))

    def _meet(self, box: Box) -> None:
        """A selection that a relaxation came up with, and its counts of few workers."""
        if box.key in self.met:
            return
        self.met.add(box.key)
        if not self._is_accurate(self._selection(box.allowed)):
            return
        point = self._point(box)
        if point is not None:
            self.relaxed = min(self.relaxed, point.bound)
            self.waiting.append((len(self.met), box, point))

    def _point(self, box: Box) -> Point | None:
        try:
            with self._roomy():
                return self.relaxation.solve(box)
        except OutOfTimeError:
            return None

    @contextmanager
    def _roomy(self) -> Iterator[None]:
        """With what plans in time leave free of links: workers are made whole there, nodes are bounded elsewhere."""
        if self.timely is None:
            yield
            return
        self.relaxation.links_within(1.0 - self.timely.free)
        try:
            yield
        finally:
            self.relaxation.links_within(1.0)

    def _make_whole(self, tree: Tree) -> None:
        """Round the workers of the best selections met, until one is good enough."""
        self.waiting.sort(key=lambda entry: (entry[2].bound, entry[0]))
        for _, box, point in self.waiting[:MOST_ROUNDED]:
            if point.bound >= self._enough() or self._enough() <= tree.bound():
                break
            key = box.allowed.tobytes(), float(f"{point.bound:.6g}")
            if key in self.tried:
                continue
            self.tried.add(key)
            self._try(box, point, tree.bound())
        self.waiting.clear()

    def _try(self, box: Box, point: Point, bound: float) -> None:
        """Workers made whole at a point, with ever more room as long as that is what a plan is late for."""
        selection = self._selection(box.allowed)
        now: Point | None = point
        while now is not None and (now is point or now.bound < self._enough()):
            if self._take(selection, self._rounded(box, now, bound)):
                self.best_point = now
                break
            now = self._point(box) if self.timely is not None and self.timely.asks_for_more() else None
        if self.timely is not None:
            self.timely.begins()

    def _polish(self, tree: Tree) -> None:
        """Round the best point's workers with more care, where the plan is not good enough."""
        if self.best_point is None or self.skeleton.kinds.exclusive.any() or tree.bound() >= self._enough():
            return
        if self.clock.left() != 0.0:
            with self._roomy():
                found = whole_near(
                    self.skeleton,
                    self.best_point,
                    self.relaxation.most,
                    gap=FINE * self.coarse,
                    enough=tree.bound() / (1.0 - SPARE * self.coarse),
                    limit_s=self._limit_s,
                    more=FINE_KINDS,
                )
            self._take(self.best_selection or {}, found)

    def _rounded(self, box: Box, point: Point, bound: float, least_gap: float = 0.0) -> Assignment | None:
        """Whole workers and seats for a selection's point; where models do not fit, with ever more workers left out.

        `bound`: on all plans; one that is near it by the gap will do.
        """
        if self.is_middle and self.timely is None:
            return self._rounded_exactly(self._selection(box.allowed))
        with self._roomy():
            if not self.skeleton.kinds.exclusive.any():
                found = whole_near(
                    self.skeleton,
                    point,
                    self.relaxation.most,
                    gap=max(least_gap, NEAR * self.coarse),
                    enough=bound / (1.0 - SPARE * self.coarse),
                    limit_s=self._limit_s,
                    more=MORE_KINDS,
                    quick=True,
                )
                if found is not None:
                    return found
            for share in ROOM:
                most = self.relaxation.less_room(point, share)
                near = point if share == 0.0 else self._within(box, most)
                if near is None:
                    return None
                gap, limit_s = FINE * self.coarse, self._limit_s()
                found = rounded(self.skeleton, near, most, gap=gap, time_limit_s=limit_s)
                if found is not None:
                    return found
            return None

    def _rounded_exactly(self, selection: Selection) -> Assignment | None:
        """The best plan of a selection that a few nodes of its exact MILP find."""
        skeleton = Skeleton(self.network, None, selection, self.pace)
        if not skeleton.possible:
            return None
        milp, cutoff = ExactMilp(skeleton), self._goal()
        answer = milp.program.solve(
            gap=FINE * self.coarse, time_limit_s=self.clock.left(), most_nodes=ROUNDING_NODES, cutoff=cutoff
        )
        key = self._key(selection)
        self.known[key] = max(self.known.get(key, 0.0), answer.bound)
        return None if answer.values is None else milp.staff(answer.values).assignment()

    def _within(self, box: Box, most: Floats) -> Point | None:
        try:
            return self.relaxation.solve_within(box, most)
        except OutOfTimeError:
            return None

    def _limit_s(self) -> float | None:
        left = self.clock.left()
        return None if left is None else left + GRACE_S

    def _take(self, selection: Selection, found: Assignment | None, *, judged: bool = True) -> bool:
        """Whether it is the best so far."""
        if found is None or found.cost > min(self.budget, math.inf if self.best is None else self.best.cost):
            return False
        if judged and self.timely is not None and not self.timely.keeps(self.network, selection, found):
            return False
        self.best, self.best_selection = found, selection
        return True

    def _close_gap(self, tree: Tree) -> None:
        """Solve the cheapest whole node's selection exactly, or split it, while the joint MILP goes on."""
        if not self.milp.runs or (self.milp.runs == 1 and self._goal() < self.milp.value * (1.0 - STALE)):
            self.milp.start(self._goal(), self.gap)
        node = tree.part()
        if node is None or not self._is_accurate(self._selection(node.box.allowed)):
            return
        selection = self._selection(node.box.allowed)
        key = self._key(selection)
        if self.known.get(key, 0.0) < self._goal():
            self.known[key] = self._solve(selection)
        self.settled = min(self.settled, max(node.bound, self.known[key]))

    def _solve(self, selection: Selection) -> float:
        """The best plan of one selection that is cheaper than the best known; a bound on all that it leaves open."""
        cutoff = self._goal()
        skeleton = Skeleton(self.network, None, selection, self.pace)
        if not skeleton.possible:
            return math.inf
        milp = ExactMilp(skeleton)
        run = ConcurrentSolve(
            milp.program, gap=0.5 * self.gap, time_limit_s=self.clock.left(), cutoff=cutoff, done=self.milp.wake
        )
        run.start()
        while run.answer is None and not self._is_done():
            self.milp.wait()
        run.stop()
        for values in run.incumbents():
            self._take(selection, milp.staff(values).assignment())
        return run.bound

    def _outcome(self, bound: float) -> Outcome[Assignment]:
        late = self.late or self.clock.left() == 0.0
        bound = max(0.0, bound)
        if self.best is None:
            bound = math.inf if bound > self.budget else bound
            return Outcome(
                math.inf, None, None, bound, len(self.met), termination_of(math.inf, bound, out_of_time=late)
            )
        value = self.best.cost
        bound = min(bound, value)
        bound = value if is_gap_closed(value, bound) else bound
        ended = termination_of(value, bound, gap=self.gap, out_of_time=late)
        return Outcome(value, self.best, self.best_selection, bound, len(self.met), ended)
