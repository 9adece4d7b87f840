"""Worker classes: aggregates pools of a tier with identical capacities, whose prices may differ.

A fleet has many pools and few types of device. A cheapest plan uses the cheapest pools of a class first, so a program
may count workers per class instead of per pool without loss. Variables call the index of a class `kind`, as `class` is
a keyword.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from jellybean_solver.demand.demand import Demand, Network
from jellybean_solver.demand.memory import Memory, MemoryLimits, limits_of
from jellybean_solver.milp.highs_program import Floats, Indices
from jellybean_solver.model.problem import Pool, Sharing

LEAST_BYTES = 1e-9  # bytes: least memory limit used as a divisor, so that a limit of 0 does not divide by 0

Choice = tuple[str, str]  # operator, variant
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Pools of one tier with identical workers, cheapest first.

    Of a worker's two memories (`demand/memory.py`) the scarcer is called `memory`, here and in `WorkerClasses`.
    """

    pools: tuple[Pool, ...]
    usd_per_h: float  # price of a worker of the cheapest pool, summed over the tier's sites
    device_is_scarcer: bool = False

    @property
    def exclusive(self) -> bool:
        return self.pools[0].sharing is Sharing.EXCLUSIVE

    @property
    def memory_bytes(self) -> float | None:
        """Memory of one worker; None without a limit."""
        return self.limits.scarcer

    @property
    def limits(self) -> MemoryLimits:
        """Both memories of one worker."""
        return limits_of(self.pools[0], device_is_scarcer=self.device_is_scarcer)

    @property
    def count(self) -> int:
        return sum(pool.count for pool in self.pools)


@dataclass(frozen=True)
class WorkerClasses:
    """The worker classes of a fleet, and the load of each choice on them (rows: choices, columns: classes).

    `workers`: number of workers that all of the operator's requests keep busy; inf if it cannot run there. `tier`: per
    class the index of its tier. `memory_bytes`: of the model.
    """

    choices: tuple[Choice, ...]
    owner: Indices  # choice -> index of its operator
    kinds: tuple[WorkerClass, ...]
    tier: Indices
    workers: Floats
    memory_bytes: Floats
    other_bytes: Floats  # in the less scarce memory

    def memory(self, choice: int, kind: int) -> Memory:
        """What a choice's model takes of a worker of a class."""
        return Memory(float(self.memory_bytes[choice, kind]), float(self.other_bytes[choice, kind]))

    @cached_property
    def runs(self) -> Mask:
        return np.isfinite(self.workers)

    @cached_property
    def exclusive(self) -> Mask:
        return np.array([kind.exclusive for kind in self.kinds], bool)

    @cached_property
    def needed(self) -> Floats:
        """Least number of workers paid to serve all of the operator's requests; at least 1 on an exclusive class."""
        return np.where(self.exclusive, np.maximum(self.workers, 1.0), self.workers)

    @cached_property
    def stored(self) -> Floats:
        """Least memory, in workers, that the operator's models fill if it serves all requests on a shared class.

        Each worker that it keeps busy holds one model, at least one worker. 0 without a memory limit.
        """
        limits = [math.inf if kind.exclusive or kind.memory_bytes is None else kind.memory_bytes for kind in self.kinds]
        workers = np.where(self.runs, np.maximum(self.workers, 1.0), 0.0)
        return workers * self.memory_bytes / np.maximum(limits, LEAST_BYTES)

    @cached_property
    def counts(self) -> Floats:
        """Number of workers of each class."""
        return np.array([float(kind.count) for kind in self.kinds])

    @cached_property
    def price(self) -> Floats:
        """USD per hour of a class's cheapest worker."""
        return np.array([kind.usd_per_h for kind in self.kinds])


def worker_classes(
    network: Network, choices: Sequence[Choice], demands: Sequence[Demand], common: Collection[str] = ()
) -> WorkerClasses:
    """Group the network's pools into classes that are identical for all of these choices.

    `demands`: per choice, the demand of a selection that makes it. `common`: pools that are in no class with others.
    """
    at = {pool.name: index for index, pool in enumerate(network.pools)}
    workers = np.full((len(choices), len(at)), np.inf)
    memory, other = np.zeros_like(workers), np.zeros_like(workers)
    for row, ((name, _), demand) in enumerate(zip(choices, demands, strict=True)):
        busy, held = demand.workers[name], demand.memory[name]
        columns = [at[pool] for pool in busy]
        workers[row, columns] = list(busy.values())
        memory[row, columns] = [held[pool].scarcer for pool in busy]
        other[row, columns] = [held[pool].other for pool in busy]
    alike: dict[object, list[int]] = {}
    for index, pool in enumerate(network.pools):
        figures = tuple(table[:, index].tobytes() for table in (workers, memory, other))
        limits = pool.memory_bytes, pool.device_memory_bytes, network.device_is_scarcer[pool.name]
        key = pool.tier, pool.sharing, limits, figures, pool.name in common
        alike.setdefault(key, []).append(index)
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
        other[:, first],
    )


def _kind(network: Network, indices: Sequence[int]) -> WorkerClass:
    pools = tuple(sorted((network.pools[i] for i in indices), key=lambda pool: pool.price_usd_per_h))
    return WorkerClass(pools, network.usd_per_h[pools[0].name], network.device_is_scarcer[pools[0].name])
