"""Prices of what workflows have in common, and how much of it a plan of one workflow uses.

For each common shared pool there are two: of a worker's time and of its memory, in USD per hour and worker. A common
exclusive pool has a surcharge on its workers' price, a common link one on its whole bandwidth. Where a budget binds, it
has a price too, which makes all cost dearer by the same factor: all prices, and what workflows are worth, are stated
over that factor instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.split import Split
from jellybean_solver.milp.highs_program import Floats, Indices


@dataclass(frozen=True)
class Prices:
    """USD per hour by common shared pool (`time`, `memory`), common exclusive pool (`count`) and common link.

    `worth`: factor on what workflows are worth, 1 / (1 + price of the budget).
    """

    time: Floats
    memory: Floats
    count: Floats
    links: Floats
    worth: float = 1.0

    @classmethod
    def listed(cls, split: Split) -> Prices:
        """What an own worker costs, and nothing for what is not scarce."""
        paid = [split.problem.unit_usd_per_h(pool) for pool in split.shared]
        return cls(np.array(paid), np.zeros(len(paid)), np.zeros(len(split.exclusive)), np.zeros(len(split.links)))

    def between(self, other: Prices, share: float) -> Prices:
        """`share` of these prices and the rest of others."""
        pairs = zip(self.parts, other.parts, strict=True)
        worth = share * self.worth + (1.0 - share) * other.worth
        time, memory, count, links = (share * one + (1.0 - share) * two for one, two in pairs)
        return Prices(time, memory, count, links, worth)

    @classmethod
    def highest(cls, split: Split, factor: float, usd_per_h: float) -> Prices:
        """`factor` over what is paid for a worker, or on average where that is nothing.

        A link's is `factor` over the even share of a cost of all plans, `usd_per_h`.
        """
        price = split.problem.unit_usd_per_h
        paid, alone = (np.array([price(pool) for pool in own]) for own in (split.shared, split.exclusive))
        known = [each for each in (*paid.tolist(), *alone.tolist()) if each > 0]
        usual = sum(known) / len(known) if known else 1.0
        time = factor * np.where(paid > 0, paid, usual)
        even = usd_per_h / max(len(split.links), 1)
        return cls(time, time, factor * np.where(alone > 0, alone, usual), np.full(len(split.links), factor * even))

    @classmethod
    def of_duals(cls, duals: Floats, rows: Sequence[Indices], budget: Indices) -> Prices:
        """The prices in a program's duals, by the `rows` of each kind and that of a budget, if there is one."""
        factor = 1.0 + float(duals[budget].sum())
        time, memory, count, links = (duals[own] / factor for own in rows)
        return cls(time, memory, count, links, 1.0 / factor)

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

    def bound(self, split: Split, value: float) -> float:
        """The lower bound on the cost of all plans, with what they leave out, of which `value` is the sum of the
        workflows' bounds at these prices. A budget's price earns what the plans cost less.
        """
        found = (value - self.rent(split)) / self.worth
        return found if self.worth == 1.0 else found - (1.0 / self.worth - 1.0) * split.budget
