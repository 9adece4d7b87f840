"""Pools that are alike to the operators, as one class of worker whose price rises with the number that is paid.

A fleet has many pools and few types of device: pools of one type in one tier differ in price at most. The cheapest of
them go first, so nothing is lost when a program counts workers per class instead of per pool. Variables call the index
of a worker class `kind`, as `class` is a keyword.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from jellybean_solver.demand.demand import Demand, Network
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.problem import Pool, Sharing

LEAST_BYTES = 1e-9  # of a limit, to divide by

Choice = tuple[str, str]  # operator, variant
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Pools with the same workers, cheapest first."""

    pools: tuple[Pool, ...]
    usd_per_h: float  # of the cheapest, in every site

    @property
    def exclusive(self) -> bool:
        return self.pools[0].sharing is Sharing.EXCLUSIVE

    @property
    def memory_bytes(self) -> float | None:
        """Of one worker; None: no limit."""
        return self.pools[0].memory_bytes

    @property
    def count(self) -> int:
        return sum(pool.count for pool in self.pools)


@dataclass(frozen=True)
class WorkerClasses:
    """The fleet by classes, and what each choice of a variant asks of them: one row a choice, one column a class.

    `workers`: that all of the operator's requests keep busy (inf: cannot run there). `tier`: index in the problem's.
    """

    choices: tuple[Choice, ...]
    owner: Indices  # choice -> index of its operator
    kinds: tuple[WorkerClass, ...]
    tier: Indices
    workers: Floats
    memory_bytes: Floats

    @cached_property
    def runs(self) -> Mask:
        return np.isfinite(self.workers)

    @cached_property
    def exclusive(self) -> Mask:
        return np.array([kind.exclusive for kind in self.kinds], bool)

    @cached_property
    def needed(self) -> Floats:
        """Workers paid for all of the operator's requests, at least: an exclusive worker serves nothing else."""
        return np.where(self.exclusive, np.maximum(self.workers, 1.0), self.workers)

    @cached_property
    def stored(self) -> Floats:
        """Workers' memory that all of the operator's requests fill, at least: who serves some holds a model."""
        limits = [math.inf if kind.exclusive or kind.memory_bytes is None else kind.memory_bytes for kind in self.kinds]
        workers = np.where(self.runs, np.maximum(self.workers, 1.0), 0.0)
        return workers * self.memory_bytes / np.maximum(limits, LEAST_BYTES)

    @cached_property
    def counts(self) -> Floats:
        """Workers that exist of each class."""
        return np.array([float(kind.count) for kind in self.kinds])

    @cached_property
    def price(self) -> Floats:
        """USD per hour of a class's cheapest worker."""
        return np.array([kind.usd_per_h for kind in self.kinds])


def worker_classes(network: Network, choices: Sequence[Choice], demands: Sequence[Demand]) -> WorkerClasses:
    """The network's pools by class, alike for all of these choices, of which each has its demand."""
    at = {pool.name: index for index, pool in enumerate(network.pools)}
    workers = np.full((len(choices), len(at)), np.inf)
    memory = np.zeros_like(workers)
    for row, ((name, _), demand) in enumerate(zip(choices, demands, strict=True)):
        busy, held = demand.workers[name], demand.memory[name]
        columns = [at[pool] for pool in busy]
        workers[row, columns] = list(busy.values())
        memory[row, columns] = [held[pool] for pool in busy]
    alike: dict[object, list[int]] = {}
    for index, pool in enumerate(network.pools):
        figures = workers[:, index].tobytes(), memory[:, index].tobytes()
        alike.setdefault((pool.tier, pool.sharing, pool.memory_bytes, figures), []).append(index)
    first = [indices[0] for indices in alike.values()]
    place = {name: index for index, name in enumerate(network.names)}
    tiers = {tier: index for index, tier in enumerate(network.problem.tiers)}
    return WorkerClasses(
        tuple(choices),
        np.array([place[name] for name, _ in choices], np.int64),
        tuple(_kind(network, indices) for indices in alike.values()),
        np.array([tiers[network.pools[i].tier] for i in first], np.int64),
        workers[:, first],
        memory[:, first],
    )


def _kind(network: Network, indices: Sequence[int]) -> WorkerClass:
    pools = tuple(sorted((network.pools[i] for i in indices), key=lambda pool: pool.price_usd_per_h))
    return WorkerClass(pools, network.usd_per_h[pools[0].name])
