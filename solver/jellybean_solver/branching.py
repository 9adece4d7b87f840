"""Branch and bound over selections, each node a relaxation in a box: some choices ruled out, some counts limited.

A node is split on one choice, made or ruled out, or on one count of workers (few.py), at most its whole part or more;
on which one is told by what splitting on it raised the bound by before (pseudo-costs: Benichou et al., Mathematical
Programming 1, 1971). From the cheapest open node the search dives, cheaper side first, to a whole point: one selection,
whole counts. A whole node is not done with: whole workers may cost more than its bound. The order of everything depends
on the problem alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.few import Box
from jellybean_solver.kinds import Mask
from jellybean_solver.program import Floats, Indices
from jellybean_solver.relaxation import Point
from jellybean_solver.selection import Clock

WHOLE = 1e-6  # a fraction this close to a whole number is whole
LEAST_RISE = 1e-9
PLUNGES = 2  # at first, to whole points
LEAP, GROWTH = 0.005, 1.2  # of its bound: a dive that rises by more is broken off, and the next one may rise by more

Relax = Callable[[Box], Point | None]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """`bound`: of every plan in the box. `values`: the relaxation's choices, then its counts."""

    bound: float
    number: int
    box: Box = field(compare=False)
    values: Floats = field(compare=False)


class Tree:
    """The nodes of a search. `owner`: choice -> operator; `met` is told the box of every whole point.

    Counts are split on before choices, so many of them, the `first` ones, before all others, and dives start below:
    one more worker in every site may cost a tenth of a plan.
    """

    def __init__(self, owner: Indices, first: int, relax: Relax, met: Callable[[Box], None]) -> None:
        self.owner, self.relax, self.met = owner, relax, met
        self._first = slice(len(owner), len(owner) + first)
        self.open: list[Node] = []
        self.whole: list[Node] = []
        self._made = 0
        self._leap, self._plunges = LEAP, 0
        self._rises = self._tries = np.zeros((2, len(owner)))

    def start(self, box: Box) -> None:
        """Open the root. OutOfTimeError, and then nothing is known."""
        self._rises, self._tries = (np.zeros((2, len(self.owner) + len(box.most))) for _ in range(2))
        node = self._node(box, -math.inf)
        if node is not None:
            self._keep(node)

    def bound(self) -> float:
        """No selection costs less (inf: there is none)."""
        return min((nodes[0].bound for nodes in (self.open, self.whole) if nodes), default=math.inf)

    def least_whole(self) -> float:
        """The bound of the cheapest whole node."""
        return self.whole[0].bound if self.whole else math.inf

    def explore(self, enough: Callable[[], float], clock: Clock) -> None:
        """Until no open node lies below `enough`, or time is up."""
        while self.open and self.open[0].bound < enough() and clock.left() != 0.0:
            self._dive(heapq.heappop(self.open), enough, clock)

    def part(self) -> Node | None:
        """Take the cheapest whole node: if it allows its own selection only, return it, else split it."""
        node = heapq.heappop(self.whole)
        several = np.bincount(self.owner, node.box.allowed)[self.owner] > 1
        if not several.any():
            return node
        rises = self._mean_rises()[0, : len(self.owner)]
        choice = int(np.argmax(np.where(several & (node.values[: len(self.owner)] > 0.5), rises, -1.0)))
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
        if self._plunges < PLUNGES and self._has_whole_counts(node):
            self._plunges += 1
            with suppress(OutOfTimeError):
                self._plunge(node)
        while not self._is_whole(node) and node.bound < enough() and clock.left() != 0.0:
            index = self._choice(node)
            try:
                sides = self._split(node, index)
            except OutOfTimeError:
                break
            if not sides:
                return
            if node is start and index >= len(self.owner):
                for side in sides:
                    self._keep(side)
                return
            node = sides[0]
            for other in sides[1:]:
                self._keep(other)
            if node.bound > start.bound + self._leap * abs(start.bound) and not self._is_whole(node):
                self._leap *= GROWTH
                break
        self._keep(node)

    def _plunge(self, node: Node) -> None:
        """A whole point soon: from whole counts, kept, make the choice that is nearest to made, one after the other."""
        counts = np.round(node.values[len(self.owner) :])
        point: Node | None = replace(node, box=replace(node.box, least=counts, most=counts))
        while point is not None and not self._is_whole(point):
            chosen = point.values[: len(self.owner)]
            index = int(np.argmax(np.where(chosen < 1.0 - WHOLE, chosen, 0.0)))
            without, made = self._sides(point, index)
            point = self._node(made, point.bound) or self._node(without, point.bound)
        if point is not None:
            self.met(self._alone(point))

    def _keep(self, node: Node) -> None:
        if self._is_whole(node):
            heapq.heappush(self.whole, node)
            self.met(self._alone(node))
        else:
            heapq.heappush(self.open, node)

    def _has_whole_counts(self, node: Node) -> bool:
        counts = node.values[len(self.owner) :]
        return bool((np.abs(counts - np.round(counts)) <= WHOLE).all())

    def _is_whole(self, node: Node) -> bool:
        return bool((np.abs(node.values - np.round(node.values)) <= WHOLE).all())

    def _alone(self, node: Node) -> Box:
        """A whole node's own selection and counts."""
        counts = np.round(node.values[len(self.owner) :])
        return Box(self._made_of(node), counts, counts)

    def _made_of(self, node: Node) -> Mask:
        made: Mask = node.values[: len(self.owner)] > 0.5
        return made

    def _sides(self, node: Node, index: int) -> tuple[Box, Box]:
        """Without a choice and with it, or at most the whole part of a count and more."""
        box, choices = node.box, len(self.owner)
        if index < choices:
            without = box.allowed.copy()
            without[index] = False
            made = box.allowed & ((self.owner != self.owner[index]) | (np.arange(choices) == index))
            return replace(box, allowed=without), replace(box, allowed=made)
        most, least = box.most.copy(), box.least.copy()
        most[index - choices] = math.floor(node.values[index])
        least[index - choices] = math.floor(node.values[index]) + 1.0
        return replace(box, most=most), replace(box, least=least)

    def _split(self, node: Node, index: int) -> list[Node]:
        """The feasible sides, cheaper first."""
        above = node.values[index] - (math.floor(node.values[index]) if index >= len(self.owner) else 0.0)
        found = []
        for side, (box, left) in enumerate(zip(self._sides(node, index), (above, 1.0 - above), strict=True)):
            child = self._node(box, node.bound)
            if child is not None:
                found.append(child)
                if left > WHOLE:
                    self._rises[side, index] += (child.bound - node.bound) / left
                    self._tries[side, index] += 1.0
        return sorted(found)

    def _node(self, box: Box, least: float) -> Node | None:
        point = self.relax(box)
        if point is None:
            return None
        self._made += 1
        return Node(max(point.bound, least), self._made, box, np.concatenate([point.chosen, point.counted]))

    def _mean_rises(self) -> Floats:
        mean = max(self._rises.sum() / max(self._tries.sum(), 1.0), LEAST_RISE)
        return np.where(self._tries > 0, self._rises / np.maximum(self._tries, 1.0), mean)

    def _choice(self, node: Node) -> int:
        """The fractional choice or count whose two sides are expected to rise most."""
        above = node.values - np.floor(node.values)
        down, up = self._mean_rises() * np.array([above, 1.0 - above])
        score = np.maximum(down, LEAST_RISE) * np.maximum(up, LEAST_RISE)
        score = np.where(np.minimum(above, 1.0 - above) > WHOLE, score, -1.0)
        for part in (self._first, slice(len(self.owner), None)):
            if score[part].max(initial=-1.0) >= 0.0:
                return len(self.owner) + int(np.argmax(score[part]))
        return int(np.argmax(score))
