"""Branch and bound over selections, each node a relaxation in a box: some choices ruled out, some counts limited.

A node is split on one operator, its cheaper choices or its dearer ones, or on one count of workers
(integer_counts.py), at most its whole part or more. On which one is told by what splitting on it raised the bound by
before (pseudo-costs: Benichou et al., Mathematical Programming 1, 1971), and where that is not known by solving both
sides of the most promising few (Achterberg, Koch, Martin, Operations Research Letters 33, 2005). From the cheapest
open node the search dives, cheaper side first, to a whole point: one selection, whole counts. A whole node is not
done with: whole workers may cost more than its bound. The order of everything depends on the problem alone.
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

WHOLE = 1e-6  # a fraction this close to a whole number is whole
LEAST_RISE = 1e-9
LOOKED, PATIENCE = 24, 6  # splits looked at, and how many of them in a row may be no better
PLUNGED = 300  # nodes on the way to a first whole point
LEAP, GROWTH = 0.01, 1.5  # of its bound: a dive that rises by more is broken off, and the next one may rise by more

Relax = Callable[[Box], Point | None]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """`bound`: of every plan in the box. `values`: the relaxation's choices, then its counts."""

    bound: float
    number: int
    box: Box = field(compare=False)
    values: Floats = field(compare=False)


class Tree:
    """The nodes of a search. `met` is told the box of every whole point.

    `owner`: choice -> operator; `rank`: choice -> its place among all, operator by operator, cheaper ones first.
    With two ways to `relax`, the two sides of a split are solved at the same time, by one each, so that what these have
    learnt so far does not depend on which is done first. Plans that cost as much as `dear` are pruned for good.
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
        self._cut = math.inf  # the least that was too dear when something was ruled out for it
        self._order = np.argsort(rank)
        same = owner[:, None] == owner
        self._below = same & (rank <= rank[:, None])  # choice by those that are no dearer, itself too
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
        """Open the root. OutOfTimeError, and then nothing is known."""
        self._rises, self._tries = (np.zeros((2, len(self.owner) + len(box.most))) for _ in range(2))
        node = self._node(box, self._relax[0](box), -math.inf)
        if node is not None:
            self._keep(node)

    def bound(self) -> float:
        """No selection costs less (inf: there is none)."""
        return min([self._cut, *(nodes[0].bound for nodes in (self.open, self.whole) if nodes)])

    def least_whole(self) -> float:
        """The bound of the cheapest whole node."""
        return self.whole[0].bound if self.whole else math.inf

    def explore(self, enough: Callable[[], float], clock: Clock) -> None:
        """Until no open node lies below `enough`, or time is up."""
        while self.open and self.open[0].bound < enough() and clock.left() != 0.0:
            self._dive(heapq.heappop(self.open), enough, clock)

    def plunge(self, first: int) -> None:
        """From the cheapest node to a whole point soon: what is nearest to whole goes there, or else the other way.

        The `first` counts go before choices, other counts after them.
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
        """Take the cheapest whole node: if it allows its own selection only, return it, else split it."""
        node = heapq.heappop(self.whole)
        allowed, made = node.box.allowed, self._made_of(node)
        several = np.bincount(self.owner, allowed)[self.owner] > 1
        if not several.any():
            return node
        rises = self._mean_rises()[0, : len(self.owner)]
        choice = int(np.argmax(np.where(several & made, rises, -1.0)))
        if not (allowed & self._above[choice]).any():  # the dearest: apart from the next one below
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
        """Whether there is nothing to split on."""
        above = self._above_whole(node)
        return bool((np.minimum(above, 1.0 - above) <= WHOLE).all())

    def _alone(self, node: Node) -> Box:
        """A whole node's own selection and counts."""
        counts = np.round(node.values[len(self.owner) :])
        return Box(self._made_of(node), counts, counts)

    def _made_of(self, node: Node) -> Mask:
        made: Mask = node.values[: len(self.owner)] > 0.5
        return made

    def _above_whole(self, node: Node) -> Floats:
        """Per choice how much of its operator is no dearer, per count its fraction."""
        counts = node.values[len(self.owner) :]
        cheap = self._below @ node.values[: len(self.owner)]
        return np.concatenate([cheap, counts - np.floor(counts)])

    def _sides(self, node: Node, index: int) -> tuple[Box, Box]:
        """The choices that are dearer, or those that are not; at most the whole part of a count, or more."""
        box, choices = node.box, len(self.owner)
        if index < choices:
            dearer, rest = box.allowed & ~self._below[index], box.allowed & ~self._above[index]
            return replace(box, allowed=dearer), replace(box, allowed=rest)
        most, least = box.most.copy(), box.least.copy()
        most[index - choices] = math.floor(node.values[index])
        least[index - choices] = math.floor(node.values[index]) + 1.0
        return replace(box, most=most), replace(box, least=least)

    def _split(self, node: Node, index: int) -> list[Node]:
        """The feasible sides, cheaper first."""
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
        """At the same time, unless there is one way to relax only."""
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
        """The sides of the split that is expected to raise both most, or the first found to leave one side only."""
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
