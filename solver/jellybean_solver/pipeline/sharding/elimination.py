"""The least sum of costs of single choices and of pairs of choices, by eliminating one variable after another.

Bucket elimination (Dechter 1999): exact, and quick on graphs that are nearly chains, as models are. The next variable
is the one with the fewest neighbours; its cheapest choice is tabled for every choice of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jellybean_solver.milp.highs_program import Floats, Indices

MAX_TABLE = 2**20  # entries of a table; a graph that needs a larger one is left to an integer program


@dataclass(frozen=True)
class CostTable:
    """Costs of all choices of some variables: one axis per variable of `scope`."""

    scope: tuple[int, ...]
    costs: Floats

    def spread(self, scope: Sequence[int]) -> Floats:
        """The costs with one axis per variable of a larger scope, of length 1 where they do not depend on it."""
        order = sorted(range(len(self.scope)), key=lambda axis: scope.index(self.scope[axis]))
        shape = [self.costs.shape[self.scope.index(name)] if name in self.scope else 1 for name in scope]
        return self.costs.transpose(order).reshape(shape)


def least_choices(sizes: Mapping[int, int], tables: Sequence[CostTable]) -> dict[int, int] | None:
    """The choice of each variable that makes the sum of all tables least; None if a table would be too large.

    `sizes`: number of choices of each variable.
    """
    left, eliminated = list(tables), list[tuple[int, tuple[int, ...], Indices]]()
    neighbours = {name: {one for table in tables if name in table.scope for one in table.scope} for name in sizes}
    while neighbours:
        name = min(neighbours, key=lambda one: len(neighbours[one]))
        scope = (name, *sorted(neighbours.pop(name) - {name}))
        if math.prod(sizes[one] for one in scope) > MAX_TABLE:
            return None
        joined = np.zeros([sizes[one] for one in scope])
        for table in left:
            if name in table.scope:
                joined = joined + table.spread(scope)
        left = [table for table in left if name not in table.scope]
        left.append(CostTable(scope[1:], joined.min(axis=0)))
        eliminated.append((name, scope[1:], joined.argmin(axis=0)))
        for one in scope[1:]:
            neighbours[one] = (neighbours[one] | set(scope[1:])) - {name}
    chosen: dict[int, int] = {}
    for name, scope, best in reversed(eliminated):
        chosen[name] = int(best[tuple(chosen[one] for one in scope)])
    return chosen
