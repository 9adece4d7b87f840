"""A plan of one workflow by itself: what it pays for its own workers, and what it uses of the common ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.decomposition.prices import Prices
from jellybean_solver.decomposition.split import Split
from jellybean_solver.demand.tree_decomposition import Bag
from jellybean_solver.fleet.packing.bin_packing import Load
from jellybean_solver.joint.flow_rows import BagTiers
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.outcome import Selection
from jellybean_solver.small.assignment import Group


@dataclass(frozen=True)
class Use:
    """Nonnegative amounts of a few of many common things: their indices and the amounts."""

    index: Indices
    amount: Floats

    @classmethod
    def of(cls, amounts: Floats) -> Use:
        """The nonzero ones of an amount for each."""
        index = np.flatnonzero(amounts)
        return cls(index, amounts[index])

    def worth(self, prices: Floats) -> float:
        """Their sum at a price for each."""
        return float(self.amount @ prices[self.index])


@dataclass(frozen=True)
class LocalPlan:
    """`usd_per_h`: own workers, workers of common exclusive pools, and traffic; not the common shared workers.

    `time`, `memory`: workers of common shared pools that it keeps busy, and whose memory it fills; `count`: workers of
    common exclusive pools; `links`: share of each common link's bandwidth. `loads`: the operators on common shared
    pools. `groups`: all other workers. `fractions`: per bag of the workflow, tiers -> fraction of requests. `busy`:
    (operator, pool) -> workers that all of its requests keep busy there.
    """

    part: int
    selection: Selection
    usd_per_h: float
    time: Use
    memory: Use
    count: Use
    links: Use
    loads: Mapping[str, tuple[Load, ...]]
    groups: tuple[Group, ...]
    bags: tuple[Bag, ...]
    fractions: tuple[Mapping[BagTiers, float], ...]
    busy: Mapping[tuple[str, str], float]

    def cost_at(self, prices: Prices) -> float:
        """USD per hour if it pays these prices for what is common."""
        uses = (self.time, self.memory, self.count, self.links)
        return self.usd_per_h + sum(use.worth(own) for use, own in zip(uses, prices.parts, strict=True))


def slope(split: Split, plans: Sequence[LocalPlan], prices: Prices, weight: float) -> Prices:
    """By how much the bound rises with each price: what these plans use, less the capacity that is rented there.

    The plans are the cheapest at these prices; each stands for `weight` of them.
    """
    used = [np.zeros(len(own)) for own in prices.parts]
    for plan in plans:
        for total, use in zip(used, (plan.time, plan.memory, plan.count, plan.links), strict=True):
            total[use.index] += weight * use.amount
    paid = np.array([split.problem.unit_usd_per_h(pool) for pool in split.shared])
    counts = np.array([float(pool.count) for pool in split.shared])
    rented = np.where(prices.time + prices.memory > paid, counts, 0.0)
    alone = np.array([float(pool.count) for pool in split.exclusive])
    return Prices(used[0] - rented, used[1] - rented, used[2] - alone, used[3] - 1.0)
