"""A plan's routes as arrays, so that figures are computed for all routes at once.

A plan of several workflows has routes for each of them. Here they are combined to routes of all: each workflow's are
laid end to end over the same interval, which is cut wherever one of them ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.plan import Plan, Route
from jellybean_solver.model.workflow import Edge

Mask = npt.NDArray[np.bool_]
_DIGITS = 12  # of fractions of requests: ends that differ by less are one


class RouteTable:
    """`weight`: share of requests per route; `at`: operator -> per route the index of its worker."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        index = {worker.name: number for number, worker in enumerate(plan.workers)}
        parts: dict[frozenset[str], list[Route]] = {}  # by the operators that they cover
        for route in plan.routes:
            parts.setdefault(frozenset(route.workers), []).append(route)
        self.weight, picked = _combined([[route.weight for route in own] for own in parts.values()])
        at = {
            name: np.array([index[route.workers[name]] for route in own], np.int64)[each]
            for (names, own), each in zip(parts.items(), picked, strict=True)
            for name in names
        }
        self.at: Mapping[str, Indices] = {name: at[name] for name in plan.operator_by_name}

    @cached_property
    def tier(self) -> Mapping[str, Indices]:
        """Operator or source -> per route the index of its tier."""
        place = {tier: number for number, tier in enumerate(self.plan.tiers)}
        of_worker = np.array([place[worker.tier] for worker in self.plan.workers], np.int64)
        born = {s.name: np.full(len(self.weight), place[s.tier], np.int64) for s in self.plan.sources}
        return born | {name: of_worker[workers] for name, workers in self.at.items()}

    def crossings(self, edge: Edge) -> tuple[list[tuple[str, str]], Indices]:
        """Pairs of tiers between which routes carry an edge's data, and the index of the pair of each route."""
        tiers = self.plan.tiers
        pairs, each = np.unique(self.tier[edge.upstream] * len(tiers) + self.tier[edge.downstream], return_inverse=True)
        return [(tiers[pair // len(tiers)], tiers[pair % len(tiers)]) for pair in pairs.tolist()], each

    @cached_property
    def alike_below(self) -> tuple[Indices, ...]:
        """Per tier a label for each route; routes have equal labels if they differ only in higher tiers."""
        names = list(self.at)
        tier, at = np.array([self.tier[name] for name in names]), np.array([self.at[name] for name in names])
        return tuple(
            np.unique(np.where(tier <= place, at, -1 - tier), axis=1, return_inverse=True)[1].reshape(-1)
            for place in range(len(self.plan.tiers))
        )

    def squares(self, workers: Indices, alike: Indices) -> Floats:
        """Sum of squared route weights per worker; routes with equal numbers in `alike` count as one."""
        count = int(alike.max(initial=0)) + 1
        pairs, each = np.unique(workers * count + alike, return_inverse=True)
        together: Floats = np.bincount(each, self.weight).astype(float)
        return self.summed(pairs // count, together**2)

    def summed(self, workers: Indices, weights: Floats) -> Floats:
        """Sum of route weights per worker."""
        return np.bincount(workers, weights, len(self.plan.workers)).astype(float)

    @cached_property
    def share(self) -> Floats:
        """Per worker the total weight of the routes that visit it."""
        count = len(self.weight)
        pairs = np.unique(np.concatenate([workers * count + np.arange(count) for workers in self.at.values()]))
        workers, routes = np.divmod(pairs, count)
        return self.summed(workers, self.weight[routes])


def _combined(parts: Sequence[Sequence[float]]) -> tuple[Floats, Sequence[Indices]]:
    """Weights of the routes of all parts together, and per part which of its routes each of them follows.

    `parts`: per part the weights of its routes, which sum to 1.
    """
    if len(parts) == 1:
        return np.array(parts[0]), [np.arange(len(parts[0]))]
    ends = [np.round(np.cumsum(weights) / np.sum(weights), _DIGITS) for weights in parts]
    cuts = np.unique(np.concatenate(ends))
    weight = np.diff(cuts, prepend=0.0)
    return weight, [np.searchsorted(own, cuts - weight / 2.0) for own in ends]
