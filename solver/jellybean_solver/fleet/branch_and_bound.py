"""Branch and bound over selections. Each node is a relaxation in a box: some choices excluded, some counts limited.

A node is split on one operator (its cheaper choices, or its dearer ones) or on one worker count of integer_counts.py
(at most the rounded-down value, or at least the next integer). The branching variable is chosen by pseudo-costs, the
mean rise of the bound in earlier splits on it (Benichou et al., Mathematical Programming 1, 1971); where none is known,
by strong branching on a few candidates (Achterberg, Koch, Martin, Operations Research Letters 33, 2005). From the
cheapest open node the search dives, cheaper child first, to an integral point: one selection, integer counts. An
integral node stays open, as its plan may cost more than its bound. The search is deterministic.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.relaxation import Point
from jellybean_solver.fleet.worker_classes import Mask
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.outcome import Clock

WHOLE = 1e-6  # a value this close to an integer counts as integral
LEAST_RISE = 1e-9  # USD per hour: least rise of a bound in branching scores, so that their product is not 0
LOOKED, PATIENCE = 24, 6  # strong branching: most candidates, and how many in a row may bring no improvement
PLUNGED = 300  # most nodes on the way to a first integral point
# A dive ends when the bound has risen by more than this share of its first bound; the limit then grows by this factor.
LEAP, GROWTH = 0.01, 1.5

Relax = Callable[[Box], Point | None]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """`bound`: lower bound on the cost of every plan in the box, USD per hour. `number`: order of creation.

    `values`: the relaxed values of all choices, then of all integer counts.
    """

    bound: float
    number: int
    box: Box = field(compare=False)
    values: Floats = field(compare=False)


class Tree:
    """The nodes of a search. `met` is called with the box of every integral point.

    `owner`: choice -> index of its operator; `rank`: choice -> its position in a list of all choices, operator by
    operator, cheaper choices first. `relax`: one or two solvers; two solve the two children of a node concurrently,
    always the same one for the same side, so that the result is deterministic. Plans that cost `dear()` USD per hour
    or more are pruned for good.
    """

    def __init__(
        self,
        owner: Indices,
        rank: Indices,
        relax: tuple[Relax, ...],
        met: Callable[[Box], None],
        dear: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.owner, self._relax, self.met, self._dear = owner, relax, met, dear
        self._beside = ThreadPoolExecutor(1)
        self._cut = math.inf  # least value of `dear` by which a box was tightened
        self._order = np.argsort(rank)
        same = owner[:, None] == owner
        self._below = same & (rank <= rank[:, None])  # [c, d]: d is no dearer than c, same operator
        self._above = same & ~self._below
        self.open: list[Node] = []
        self.whole: list[Node] = []
        self._made = 0
        self._leap = LEAP
        self._rises = self._tries = np.zeros((2, len(owner)))

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.shutdown()

    def start(self, box: Box) -> None:
        """Solve the root. OutOfTimeError if time ends first; then there is no bound."""
        self._rises, self._tries = (np.zeros((2, len(self.owner) + len(box.most))) for _ in range(2))
        node = self._node(box, self._relax[0](box), -math.inf)
        if node is not None:
            self._keep(node)

    def bound(self) -> float:
        """Lower bound on the cost of all selections, USD per hour; inf if none is feasible."""
        return min([self._cut, *(nodes[0].bound for nodes in (self.open, self.whole) if nodes)])

    def least_whole(self) -> float:
        """The bound of the cheapest integral node, USD per hour; inf if there is none."""
        return self.whole[0].bound if self.whole else math.inf

    def explore(self, enough: Callable[[], float], clock: Clock) -> None:
        """Branch until no open node has a bound below `enough()` (USD per hour), or time is up."""
        while self.open and self.open[0].bound < enough() and clock.left() != 0.0:
            self._dive(heapq.heappop(self.open), enough, clock)

    def plunge(self, first: int) -> None:
        """Dive from the cheapest open node to an integral point, with backtracking.

        The variable nearest to an integer is rounded to it; the other direction is tried if that is infeasible. The
        first `first` counts are rounded before the choices, all other counts after them.
        """
        choices = len(self.owner)
        parts = slice(choices, choices + first), slice(0, choices), slice(choices + first, None)
        others: list[tuple[Box, float]] = []
        node: Node | None = self.open[0] if self.open else None
        with suppress(OutOfTimeError):
            for _ in range(PLUNGED):
                if node is not None and self._is_whole(node):
                    self.met(self._alone(node))
                    return
                if node is not None:
                    above = self._above_whole(node)
                    far = np.where(np.minimum(above, 1.0 - above) > WHOLE, np.minimum(above, 1.0 - above), math.inf)
                    part = next(part for part in parts if np.isfinite(far[part]).any())
                    index = part.start + int(np.argmin(far[part]))
                    sides = self._sides(node, index)
                    others += [(side, node.bound) for side in (sides if above[index] >= 0.5 else sides[::-1])]
                if not others:
                    return
                box, least = others.pop()
                node = self._node(box, self._relax[0](box), least)

    def part(self) -> Node | None:
        """Remove the cheapest integral node. Return it if its box allows a single selection, else split it: None.

        Also None if time ends during the split; the node then stays.
        """
        node = heapq.heappop(self.whole)
        allowed, made = node.box.allowed, self._made_of(node)
        several = np.bincount(self.owner, allowed)[self.owner] > 1
        if not several.any():
            return node
        rises = self._mean_rises()[0, : len(self.owner)]
        choice = int(np.argmax(np.where(several & made, rises, -1.0)))
        if not (allowed & self._above[choice]).any():  # the dearest choice: split below it instead
            choice = int(self._order[np.flatnonzero((allowed & self._below[choice] & ~made)[self._order])[-1]])
        try:
            sides = self._split(node, choice)
        except OutOfTimeError:
            heapq.heappush(self.whole, node)
            return None
        for side in sides:
            self._keep(side)
        return None

    def _dive(self, node: Node, enough: Callable[[], float], clock: Clock) -> None:
        start = node
        while not self._is_whole(node) and node.bound < enough() and clock.left() != 0.0:
            try:
                sides = self._branch(node, enough())
            except OutOfTimeError:
                break
            if not sides:
                return
            node = sides[0]
            for other in sides[1:]:
                self._keep(other)
            if node.bound > start.bound + self._leap * abs(start.bound) and not self._is_whole(node):
                self._leap *= GROWTH
                break
        self._keep(node)

    def _keep(self, node: Node) -> None:
        if self._is_whole(node):
            heapq.heappush(self.whole, node)
            self.met(self._alone(node))
        else:
            heapq.heappush(self.open, node)

    def _is_whole(self, node: Node) -> bool:
        """True if all choices and counts are integral, so that there is nothing to split on."""
        above = self._above_whole(node)
        return bool((np.minimum(above, 1.0 - above) <= WHOLE).all())

    def _alone(self, node: Node) -> Box:
        """The box that allows only the selection and the counts of an integral node."""
        counts = np.round(node.values[len(self.owner) :])
        return Box(self._made_of(node), counts, counts)

    def _made_of(self, node: Node) -> Mask:
        made: Mask = node.values[: len(self.owner)] > 0.5
        return made

    def _above_whole(self, node: Node) -> Floats:
        """Per choice the sum of its operator's values up to it (choices no dearer), per count its fractional part."""
        counts = node.values[len(self.owner) :]
        cheap = self._below @ node.values[: len(self.owner)]
        return np.concatenate([cheap, counts - np.floor(counts)])

    def _sides(self, node: Node, index: int) -> tuple[Box, Box]:
        """The two boxes of a split on variable `index`.

        For a choice: the dearer choices of its operator, and the others. For a count: at most its value rounded down,
        and at least the next integer.
        """
        box, choices = node.box, len(self.owner)
        if index < choices:
            dearer, rest = box.allowed & ~self._below[index], box.allowed & ~self._above[index]
            return replace(box, allowed=dearer), replace(box, allowed=rest)
        most, least = box.most.copy(), box.least.copy()
        most[index - choices] = math.floor(node.values[index])
        least[index - choices] = math.floor(node.values[index]) + 1.0
        return replace(box, most=most), replace(box, least=least)

    def _split(self, node: Node, index: int) -> list[Node]:
        """The feasible children of a split on variable `index`, cheaper first. Updates the pseudo-costs."""
        above = float(self._above_whole(node)[index])
        found = []
        sides = self._sides(node, index)
        points = self._relax_both(sides)
        for side, (box, point, left) in enumerate(zip(sides, points, (above, 1.0 - above), strict=True)):
            child = self._node(box, point, node.bound)
            if child is not None:
                found.append(child)
                if left > WHOLE:
                    self._rises[side, index] += (child.bound - node.bound) / left
                    self._tries[side, index] += 1.0
        return sorted(found)

    def _relax_both(self, sides: tuple[Box, Box]) -> tuple[Point | None, Point | None]:
        """Solve the relaxations of two boxes, concurrently if there are two solvers; None for an infeasible box."""
        first, *others = self._relax
        if not others:
            return first(sides[0]), first(sides[1])
        second = self._beside.submit(others[0], sides[1])
        try:
            return first(sides[0]), second.result()
        finally:
            wait((second,))

    def _node(self, box: Box, point: Point | None, least: float) -> Node | None:
        if point is None:
            return None
        self._made += 1
        dear = self._dear()
        if point.bound < dear < math.inf:
            box = point.left_below(dear)
            self._cut = self._cut if box.key == point.box.key else min(self._cut, dear)
        return Node(max(point.bound, least), self._made, box, np.concatenate([point.chosen, point.counted]))

    def _mean_rises(self) -> Floats:
        mean = max(self._rises.sum() / max(self._tries.sum(), 1.0), LEAST_RISE)
        return np.where(self._tries > 0, self._rises / np.maximum(self._tries, 1.0), mean)

    def _branch(self, node: Node, enough: float) -> list[Node]:
        """The children of the split with the best score, the product of the rises of their bounds.

        A split that leaves at most one child with a bound below `enough` is taken at once.
        """
        above = self._above_whole(node)
        down, up = self._mean_rises() * np.array([above, 1.0 - above])
        score = np.maximum(down, LEAST_RISE) * np.maximum(up, LEAST_RISE)
        score = np.where(np.minimum(above, 1.0 - above) > WHOLE, score, -1.0)
        best, most, waited, sides = None, -1.0, 0, None
        for index in np.argsort(-score, kind="stable")[:LOOKED].tolist():
            if score[index] < 0.0 or waited == PATIENCE:
                break
            if self._tries[:, index].min() > 0.0:
                if score[index] > most:
                    best, most, sides = index, float(score[index]), None
                continue
            waited += 1
            tried = self._split(node, index)
            rises = [min(side.bound, enough) - node.bound for side in tried if side.bound < enough]
            if len(rises) < 2:
                return tried
            gained = math.prod(max(rise, LEAST_RISE) for rise in rises)
            if gained > most:
                best, most, sides, waited = index, gained, tried, 0
        if best is None:
            raise SolverError("a node that is not whole has nothing to split on")
        return self._split(node, best) if sides is None else sides
