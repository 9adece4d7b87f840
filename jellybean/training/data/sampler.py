"""Divides the rows of an epoch, in the order of the epoch, into iterations, updates and micro-batches.

Pure arithmetic on positions, so that every rank knows the division without a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Division(Protocol):
    """Micro-batches of one pass over some rows.

    Micro-batch m of replica r is part m x replicas + r of its iteration.
    """

    @property
    def replicas(self) -> int:
        """Number of replicas that share the rows."""

    @property
    def iterations(self) -> int:
        """Iterations of the pass."""

    @property
    def parts(self) -> int:
        """Micro-batches per iteration, over all replicas."""

    def part(self, iteration: int, number: int) -> range:
        """Positions of a micro-batch in the order of the epoch."""

    def update(self, microbatch: int) -> range:
        """The parts of the update to which a micro-batch belongs, over all replicas."""


@dataclass(frozen=True)
class MicrobatchSampler:
    """Divides epochs of `samples` samples into iterations, and iterations into micro-batches.

    With a flush (`period` None), an iteration is one update of `batch` samples over all replicas, in `microbatches`
    micro-batches per replica; the last iteration of an epoch may be smaller. Without a flush, an epoch is a single
    iteration with one update per `period` micro-batches of `size` samples; left-over samples are skipped in that epoch.
    """

    samples: int
    batch: int
    microbatches: int
    replicas: int
    period: int | None = None  # None: schedules with a flush

    @property
    def iterations(self) -> int:
        """Iterations per epoch."""
        if self.period is not None:
            return 1
        least = self.microbatches * self.replicas
        whole, left = divmod(self.samples, self.batch)
        return whole + (left >= least)

    @property
    def size(self) -> int:
        """Samples per micro-batch, for schedules without a flush."""
        return self.batch // (self.microbatches * self.replicas)

    @property
    def run(self) -> int:
        """Micro-batches per iteration and replica."""
        if self.period is None:
            return self.microbatches
        return self.samples // (self.size * self.replicas) // self.period * self.period

    @property
    def left_out(self) -> int:
        """Samples at the end of an epoch, other ones in each, that make no update."""
        if self.period is not None:
            return self.samples - self.run * self.replicas * self.size
        return max(0, self.samples - self.iterations * self.batch)

    @property
    def updates(self) -> int:
        """Updates per epoch."""
        return self.iterations if self.period is None else self.run // self.period

    @property
    def parts(self) -> int:
        """Micro-batches per iteration, over all replicas."""
        return self.run * self.replicas

    def part(self, iteration: int, number: int) -> range:
        """Positions of a micro-batch in the order of the epoch."""
        if self.period is not None:
            return range(number * self.size, (number + 1) * self.size)
        first = iteration * self.batch
        size, larger = divmod(min(self.batch, self.samples - first), self.parts)
        begin = first + number * size + min(number, larger)
        return range(begin, begin + size + (number < larger))

    def sizes(self, iteration: int) -> list[int]:
        """Samples of each micro-batch of an iteration, over all replicas."""
        return [len(self.part(iteration, number)) for number in range(self.parts)]

    def update(self, microbatch: int) -> range:
        """The parts of the update to which a micro-batch belongs, over all replicas."""
        period = self.period or self.run
        first = microbatch // period * period * self.replicas
        return range(first, first + period * self.replicas)

    def rows(self, iteration: int) -> int:
        """Number of rows of an iteration, over all replicas."""
        return self.part(iteration, self.parts - 1).stop - self.part(iteration, 0).start


@dataclass(frozen=True)
class TestSampler:
    """Divides the test rows into micro-batches of `size` rows, which the replicas share."""

    __test__ = False  # the name begins as pytest's test classes do

    samples: int
    size: int
    replicas: int

    @property
    def iterations(self) -> int:
        """One: nothing is updated."""
        return 1

    @property
    def parts(self) -> int:
        """Micro-batches over all replicas."""
        return -(-self.samples // self.size)

    def part(self, iteration: int, number: int) -> range:
        """Positions of a micro-batch; the last may be smaller."""
        return range(number * self.size, min((number + 1) * self.size, self.samples))

    def update(self, microbatch: int) -> range:
        """All of them: a mean over the test rows has no updates."""
        return range(self.parts)
