"""Rows of one part of the data, and how a rank reads them: the seam between data sources and the training loop.

`MemoryRows` has all rows in memory, `LoadedRows` (loaded_rows.py) reads data sets and streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from jellybean.training.data.coverage import covering_rows, labelled_rows
from jellybean.training.data.digests import digest_of
from jellybean.training.data.randomness import epoch_order
from jellybean.training.data.rules import RowRules
from jellybean.training.data.sampler import Division
from jellybean.training.losses import SUM
from jellybean.training.samples import Samples


class MicrobatchIndex(NamedTuple):
    """A micro-batch of this replica in an epoch."""

    iteration: int
    microbatch: int


def _used_once(microbatch: int) -> int:
    """Each micro-batch is used once. A function of the module, so that it can be pickled."""
    return 1


@dataclass(frozen=True)
class ReadPlan:
    """One pass over the rows by one rank.

    `first`: the iteration to begin with. `uses(m)`: how often the rank's stages read micro-batch m of an iteration, its
    inputs or its target; afterwards it may be forgotten.
    """

    division: Division
    epoch: int = 0
    first: int = 0
    replica: int = 0
    uses: Callable[[int], int] = _used_once

    def without_uses(self) -> ReadPlan:
        """A copy with the default `uses`, which can be pickled: other processes that read rows keep none."""
        return replace(self, uses=_used_once)

    def part(self, index: MicrobatchIndex) -> range:
        """Positions of a micro-batch in the order of the epoch."""
        return self.division.part(index.iteration, self.number(index))

    def number(self, index: MicrobatchIndex) -> int:
        """Number of a micro-batch among those of all replicas."""
        return index.microbatch * self.division.replicas + self.replica

    def update(self, index: MicrobatchIndex) -> range:
        """Positions of all rows of the update to which a micro-batch belongs; its micro-batches follow each other."""
        numbers = self.division.update(index.microbatch)
        first, last = (self.division.part(index.iteration, number) for number in (numbers[0], numbers[-1]))
        return range(first.start, last.stop)


@dataclass(frozen=True)
class Reading:
    """The micro-batches that a rank reads in a pass, in order. `own_only`: without those of other replicas."""

    plan: ReadPlan
    own_only: bool

    def keys(self) -> Iterator[tuple[int, int]]:
        """(iteration, part) of each."""
        division, replica = self.plan.division, self.plan.replica
        parts = range(replica, division.parts, division.replicas) if self.own_only else range(division.parts)
        for iteration in range(self.plan.first, division.iterations):
            for number in parts:
                yield iteration, number

    def __iter__(self) -> Iterator[range]:
        """Positions of each in the order of the epoch."""
        return (self.plan.division.part(*key) for key in self.keys())


class RowDigest(NamedTuple):
    """Digest of the rows that a rank read in an epoch. Ranks of the same `readers` must have read the same."""

    readers: str
    digest: str


class MicrobatchReader(Protocol):
    """Gives the micro-batches of one pass to a rank."""

    def prepare(self) -> None:
        """Read up to the first micro-batch, which may take long where a pass begins in the middle of a stream."""

    def inputs(self, index: MicrobatchIndex, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The model's tensors with these indices; at least one."""

    def target(self, index: MicrobatchIndex, device: torch.device) -> Any:
        """Second argument of the loss."""

    def weight(self, index: MicrobatchIndex) -> float:
        """How much the rows of a micro-batch count in a mean loss."""

    def update_weight(self, index: MicrobatchIndex) -> float:
        """How much all rows of the micro-batch's update count, over all replicas; of a sum, how much its own do."""

    def digest(self) -> RowDigest | None:
        """Of the rows read so far; None if this rank reads none, or if its rows cannot change."""

    def close(self) -> None:
        """End the pass."""


class RowSource(Protocol):
    """The rows of one part of the data. The same on every rank."""

    @property
    def rows(self) -> int:
        """Number of rows of an epoch."""

    def example(self, size: int) -> Samples:
        """The first rows, at most `size`; where rows have different numbers of valid targets, some of each sort."""

    def sample(self, size: int) -> Samples:
        """At most `size` rows that cover what occurs; those with most valid targets come first."""

    def digest(self) -> str:
        """Digest of what can be known before training: equal on all ranks."""

    def ruled(self, rules: RowRules) -> RowSource:
        """The rows with targets and weights, checked; a row that breaks a rule is a TrainingError, now or when read."""

    def read(self, plan: ReadPlan) -> MicrobatchReader:
        """Begin a pass."""


@dataclass(frozen=True)
class MemoryRows:
    """Rows in memory. `part`: train or test, for messages. `seed`: of the order of an epoch; None: as they are.

    `sums`: the loss of an update is the sum of its micro-batches'.
    """

    samples: Samples
    part: str = "train"
    seed: int | None = None
    sums: bool = False

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.samples)

    def example(self, size: int) -> Samples:
        """The first rows, or some of each sort."""
        return self.samples.take(labelled_rows(self.samples, size))

    def sample(self, size: int) -> Samples:
        """Rows that cover what occurs."""
        return self.samples.take(covering_rows(self.samples, size))

    def digest(self) -> str:
        """Digest of all rows."""
        return digest_of(self.samples).hex()

    def ruled(self, rules: RowRules) -> MemoryRows:
        """The same rows with targets and weights; all are checked."""
        rules.check(self.samples, self.part)
        return replace(self, samples=rules.apply(self.samples), sums=rules.counts == SUM)

    def read(self, plan: ReadPlan) -> MemoryReader:
        """Begin a pass."""
        return MemoryReader(self, plan)

    def order(self, epoch: int) -> torch.Tensor | None:
        """Row numbers in the order of an epoch; None if that is their own."""
        return epoch_order(self.rows, self.seed, epoch) if self.seed is not None else None


@dataclass(frozen=True)
class MemoryReader:
    """Micro-batches of rows in memory (`MicrobatchReader`)."""

    source: MemoryRows
    plan: ReadPlan
    _weights: dict[range, float] = field(default_factory=dict)

    def prepare(self) -> None:
        """All rows are there."""

    def inputs(self, index: MicrobatchIndex, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The model's tensors with these indices: copies, which its forward may overwrite."""
        rows = self._rows(self.plan.part(index))
        parts = [self.source.samples.inputs.tensors[argument][rows] for argument in arguments]
        return tuple(part.clone() for part in parts) if isinstance(rows, slice) else tuple(parts)

    def target(self, index: MicrobatchIndex, device: torch.device) -> Any:
        """Second argument of the loss."""
        return self.source.samples.target(self._rows(self.plan.part(index)), device)

    def weight(self, index: MicrobatchIndex) -> float:
        """How much the rows of a micro-batch count."""
        return self.source.samples.weight(self._rows(self.plan.part(index)))

    def update_weight(self, index: MicrobatchIndex) -> float:
        """How much all rows of the micro-batch's update count."""
        if self.source.sums:
            return self.weight(index)
        positions = self.plan.update(index)
        if positions not in self._weights:
            self._weights.clear()  # updates follow each other
            self._weights[positions] = self.source.samples.weight(self._rows(positions))
        return self._weights[positions]

    def digest(self) -> RowDigest | None:
        """None: the rows are compared once, before training."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    @cached_property
    def _order(self) -> torch.Tensor | None:
        return self.source.order(self.plan.epoch)

    def _rows(self, positions: range) -> torch.Tensor | slice:
        own = slice(positions.start, positions.stop)
        return own if self._order is None else self._order[own]
