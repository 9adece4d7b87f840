"""Prices of what workflows have in common, and how much of it a plan of one workflow uses.

For each common shared pool there are two: of a worker's time and of its memory, in USD per hour and worker. A common
exclusive pool has a surcharge on its workers' price, a common link one on its whole bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.split import Split
from jellybean_solver.milp.highs_program import Floats


@dataclass(frozen=True)
class Prices:
    """USD per hour by common shared pool (`time`, `memory`), common exclusive pool (`count`) and common link."""

    time: Floats
    memory: Floats
    count: Floats
    links: Floats

    @classmethod
    def listed(cls, split: Split) -> Prices:
        """What an own worker costs, and nothing for what is not scarce."""
        paid = [split.problem.unit_usd_per_h(pool) for pool in split.shared]
        return cls(np.array(paid), np.zeros(len(paid)), np.zeros(len(split.exclusive)), np.zeros(len(split.links)))

    def between(self, other: Prices, share: float) -> Prices:
        """`share` of these prices and the rest of others."""
        pairs = zip(self.parts, other.parts, strict=True)
        return Prices(*(share * one + (1.0 - share) * two for one, two in pairs))

    def capped(self, split: Split, most: float) -> Prices:
        """With shared workers at no more than `most` times what is paid for them."""
        paid = np.array([split.problem.unit_usd_per_h(pool) for pool in split.shared])
        highest = np.where(paid > 0, most * paid, math.inf)
        return Prices(np.minimum(self.time, highest), np.minimum(self.memory, highest), self.count, self.links)

    @property
    def parts(self) -> tuple[Floats, Floats, Floats, Floats]:
        return self.time, self.memory, self.count, self.links

    def rent(self, split: Split) -> float:
        """What the capacity of everything in common earns at most at these prices, beyond the price of workers.

        The sum of the workflows' costs at these prices less this rent is a lower bound on the cost of all plans
        (Lagrangian relaxation of what they have in common).
        """
        paid = np.array([split.problem.unit_usd_per_h(pool) for pool in split.shared])
        counts = np.array([float(pool.count) for pool in split.shared])
        above = np.maximum(self.time + self.memory - paid, 0.0)
        alone = np.array([float(pool.count) for pool in split.exclusive])
        return float(above @ counts + self.count @ alone + self.links.sum())
