"""Branch and bound over selections, each node a relaxation with some choices ruled out.

A node is a mask of allowed choices. It is split on one choice: made, or ruled out; which one is told by what
splitting on it raised the bound by before (pseudo-costs: Benichou et al., Mathematical Programming 1, 1971). From the
cheapest open node the search dives, cheaper side first, to a whole point: one selection. A whole node is not done
with: whole workers may cost more than its bound. The order of everything depends on the problem alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.kinds import Mask
from jellybean_solver.program import Floats, Indices
from jellybean_solver.relaxation import Point
from jellybean_solver.selection import Clock

WHOLE = 1e-6  # a fraction this close to 0 or 1 is whole
LEAST_RISE = 1e-9

Relax = Callable[[Mask], Point | None]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """`bound`: of every selection that the mask allows. `chosen`: the relaxation's fractions."""

    bound: float
    number: int
    allowed: Mask = field(compare=False)
    chosen: Floats = field(compare=False)


class Tree:
    """The nodes of a search. `owner`: choice -> operator; `met` is told the mask of every whole point's selection."""

    def __init__(self, owner: Indices, relax: Relax, met: Callable[[Mask], None]) -> None:
        self.owner, self.relax, self.met = owner, relax, met
        self.open: list[Node] = []
        self.whole: list[Node] = []
        self._made = 0
        self._rises = np.zeros((2, len(owner)))
        self._tries = np.zeros((2, len(owner)))

    def start(self, allowed: Mask) -> None:
        """Open the root. OutOfTimeError, and then nothing is known."""
        node = self._node(allowed, -math.inf)
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
        several = np.bincount(self.owner, node.allowed)[self.owner] > 1
        if not several.any():
            return node
        rises = self._mean_rises()[0]
        choice = int(np.argmax(np.where(several & (node.chosen > 0.5), rises, -1.0)))
        try:
            sides = self._split(node, choice)
        except OutOfTimeError:
            heapq.heappush(self.whole, node)
            return None
        for side in sides:
            self._keep(side)
        return None

    def _dive(self, node: Node, enough: Callable[[], float], clock: Clock) -> None:
        while not self._is_whole(node) and node.bound < enough() and clock.left() != 0.0:
            try:
                sides = self._split(node, self._choice(node))
            except OutOfTimeError:
                break
            if not sides:
                return
            node = sides[0]
            for other in sides[1:]:
                self._keep(other)
        self._keep(node)

    def _keep(self, node: Node) -> None:
        if self._is_whole(node):
            heapq.heappush(self.whole, node)
            self.met(node.chosen > 0.5)
        else:
            heapq.heappush(self.open, node)

    def _is_whole(self, node: Node) -> bool:
        return bool((np.minimum(node.chosen, 1.0 - node.chosen) <= WHOLE).all())

    def _split(self, node: Node, choice: int) -> list[Node]:
        """The feasible sides, cheaper first."""
        without = node.allowed.copy()
        without[choice] = False
        made = node.allowed & ((self.owner != self.owner[choice]) | (np.arange(len(self.owner)) == choice))
        found = []
        for side, (mask, left) in enumerate(((without, node.chosen[choice]), (made, 1.0 - node.chosen[choice]))):
            child = self._node(mask, node.bound)
            if child is not None:
                found.append(child)
                if left > WHOLE:
                    self._rises[side, choice] += (child.bound - node.bound) / left
                    self._tries[side, choice] += 1.0
        return sorted(found)

    def _node(self, allowed: Mask, least: float) -> Node | None:
        point = self.relax(allowed)
        if point is None:
            return None
        self._made += 1
        return Node(max(point.bound, least), self._made, allowed, point.chosen)

    def _mean_rises(self) -> Floats:
        mean = max(self._rises.sum() / max(self._tries.sum(), 1.0), LEAST_RISE)
        return np.where(self._tries > 0, self._rises / np.maximum(self._tries, 1.0), mean)

    def _choice(self, node: Node) -> int:
        """The fractional choice whose two sides are expected to rise most."""
        down, up = self._mean_rises() * np.array([node.chosen, 1.0 - node.chosen])
        score = np.maximum(down, LEAST_RISE) * np.maximum(up, LEAST_RISE)
        return int(np.argmax(np.where(np.minimum(node.chosen, 1.0 - node.chosen) > WHOLE, score, -1.0)))
