"""The two memories of a worker, the host's and its device's: which is scarcer, and what models take of each.

Both must hold the models of a worker. Programs, bounds and heuristics count only the scarcer memory of a pool, which is
a relaxation: their bounds stay valid. Packings, exact programs and scores count the other, too. Most pools have one
scarce memory: that of a GPU, or the host's if there is no other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jellybean_solver.model.problem import Pool, Problem
from jellybean_solver.model.workflow import Operator, Variant

_SPARE = 1e-9  # relative tolerance for rounding in sums of memory


def fits(needed_bytes: float, limit_bytes: float | None) -> bool:
    """True if models that need `needed_bytes` fit into `limit_bytes` (None: unlimited)."""
    return limit_bytes is None or needed_bytes <= limit_bytes * (1 + _SPARE)


class MemoryLimits(NamedTuple):
    """Bytes of a worker's scarcer memory and of the other; None: unlimited."""

    scarcer: float | None
    other: float | None = None


class Memory(NamedTuple):
    """Bytes that models take of a worker's scarcer memory and of the other."""

    scarcer: float
    other: float = 0.0

    def beside(self, more: Memory) -> Memory:
        """Both together."""
        return Memory(self.scarcer + more.scarcer, self.other + more.other)

    def least(self, other: Memory) -> Memory:
        """The smaller of each."""
        return Memory(min(self.scarcer, other.scarcer), min(self.other, other.other))

    def fits(self, limits: MemoryLimits) -> bool:
        """True if both memories suffice."""
        return fits(self.scarcer, limits.scarcer) and fits(self.other, limits.other)


NONE = Memory(0.0)


def together(parts: Iterable[Memory]) -> Memory:
    """The sum of several."""
    return functools.reduce(Memory.beside, parts, NONE)


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What the models of operators take of a worker of a pool, and what a worker has."""

    needs: Mapping[str, Memory]
    limits: MemoryLimits

    def takes(self, held: Iterable[str]) -> bool:
        """True if the models of these operators fit on one worker."""
        return together(self.needs[name] for name in held).fits(self.limits)


class StatedMemory(NamedTuple):
    """A memory of a pool's workers whose size is stated. `taken`: variant -> bytes that it takes of one worker's."""

    on_device: bool
    limit: float
    taken: Callable[[Variant], float]


def stated_memories(pool: Pool) -> Iterator[StatedMemory]:
    """The memories that limit what a worker of a pool can hold."""
    if pool.memory_bytes is not None:
        yield StatedMemory(
            on_device=False, limit=pool.memory_bytes, taken=lambda variant: variant.memory_bytes.get(pool.name, 0.0)
        )
    if pool.device_memory_bytes is not None:
        yield StatedMemory(
            on_device=True,
            limit=pool.device_memory_bytes,
            taken=lambda variant: variant.device_memory_bytes.get(pool.name, 0.0),
        )


def without_memory_limits(problem: Problem) -> Problem:
    """The problem with enough memory on every worker and its device."""
    pools = (replace(pool, memory_bytes=None, device_memory_bytes=None) for pool in problem.pools)
    return replace(problem, pools=tuple(pools))


def is_device_scarcer(pool: Pool, operators: Sequence[Operator]) -> bool:
    """True if all operators together, with their largest variants, fill more of a device's memory than of its host's.

    False for pools without a stated device memory; True if only that of the device is stated.
    """
    if pool.device_memory_bytes is None or pool.memory_bytes is None:
        return pool.device_memory_bytes is not None
    needed = [[memory_of(variant, pool, device_is_scarcer=False) for variant in one.variants] for one in operators]
    host = sum(max((memory.scarcer for memory in own), default=0.0) for own in needed)
    device = sum(max((memory.other for memory in own), default=0.0) for own in needed)
    return device * pool.memory_bytes > host * pool.device_memory_bytes


def limits_of(pool: Pool, *, device_is_scarcer: bool) -> MemoryLimits:
    """The memory of one worker of a pool."""
    if device_is_scarcer:
        return MemoryLimits(pool.device_memory_bytes, pool.memory_bytes)
    return MemoryLimits(pool.memory_bytes, pool.device_memory_bytes)


def memory_of(variant: Variant, pool: Pool, *, device_is_scarcer: bool) -> Memory:
    """What a variant takes of a worker of the pool."""
    host, device = variant.memory_bytes.get(pool.name, 0.0), variant.device_memory_bytes.get(pool.name, 0.0)
    return Memory(device, host) if device_is_scarcer else Memory(host, device)
