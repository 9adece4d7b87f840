"""Which worker computes which work item of an epoch, and who waits: a pure state machine, without clock and sockets.

A work item is what a worker computes at once: the gradient of some rows. Each is completed exactly once, whichever
workers die or come back. A worker has at most one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class WorkItem(NamedTuple):
    """Rows of an epoch: those of replica `number` in an iteration."""

    iteration: int
    number: int


class EpochWork(Protocol):
    """The work items of some iterations of an epoch, and the workers that are there."""

    @property
    def done(self) -> bool:
        """True if all work items are complete."""

    def join(self, worker: int) -> None:
        """A worker is there, for the first time or again."""

    def leave(self, worker: int) -> None:
        """A worker is gone; another may take its work item."""

    def next_item(self, worker: int) -> WorkItem | None:
        """Give a worker its next work item; None: it must wait until something changes, or all is done."""

    def complete(self, worker: int, item: WorkItem) -> bool:
        """A worker sends a work item's gradient; False if it is not this worker's any more: it must not count."""


class SynchronousWork:
    """Bulk synchronous parallel (BSP; Valiant 1990): an iteration has one work item for each worker, and the next one
    begins when all are complete. A work item whose worker is gone goes to any other.
    """

    def __init__(self, workers: int, iterations: range, live: Iterable[int] = ()) -> None:
        self._workers, self._iteration, self._end = workers, iterations.start, iterations.stop
        self._live = set(live)
        self._open = set(range(workers))
        self._holders: dict[int, int] = {}  # number -> worker

    @property
    def done(self) -> bool:
        """True if all iterations are complete."""
        return self._iteration >= self._end

    def join(self, worker: int) -> None:
        """A worker is there; it takes its own work items from now on."""
        self._live.add(worker)

    def leave(self, worker: int) -> None:
        """A worker is gone; the work item that it had is free."""
        self._live.discard(worker)
        self._holders = {number: holder for number, holder in self._holders.items() if holder != worker}

    def next_item(self, worker: int) -> WorkItem | None:
        """The worker's own work item of the iteration, or one whose worker is gone."""
        if self.done or worker in self._holders.values():
            return None
        free = sorted(self._open - self._holders.keys())
        number = worker if worker in free else next((other for other in free if other not in self._live), None)
        if number is None:
            return None
        self._holders[number] = worker
        return WorkItem(self._iteration, number)

    def complete(self, worker: int, item: WorkItem) -> bool:
        """Complete a work item; with the last one of its iteration the next iteration begins."""
        if item.iteration != self._iteration or self._holders.get(item.number) != worker:
            return False
        del self._holders[item.number]
        self._open.discard(item.number)
        if not self._open:
            self._iteration += 1
            self._open = set(range(self._workers))
        return True


class AsynchronousWork:
    """Asynchronous parallel (ASP): an iteration is one work item, and the next free one goes to whoever asks.

    `staleness` s, stale synchronous parallel (Ho et al. 2013, "More effective distributed ML via a stale synchronous
    parallel parameter server"): a worker begins no work item while it has completed more than s more than the slowest
    one that is there, so at most s + 1 more are complete. With 0 all keep the pace of BSP; None: no bound. A worker
    that comes back counts as the slowest.
    """

    def __init__(self, iterations: range, staleness: int | None = None, live: Iterable[int] = ()) -> None:
        self._next, self._end, self._staleness = iterations.start, iterations.stop, staleness
        self._returned: list[int] = []  # iterations whose worker is gone
        self._clocks = dict.fromkeys(live, 0)  # worker -> complete work items
        self._held: dict[int, int] = {}  # worker -> iteration

    @property
    def done(self) -> bool:
        """True if all iterations are complete."""
        return self._next >= self._end and not self._returned and not self._held

    def join(self, worker: int) -> None:
        """A worker is there; its clock is that of the slowest, so that it neither waits nor lets others wait."""
        self._clocks.setdefault(worker, min(self._clocks.values(), default=0))

    def leave(self, worker: int) -> None:
        """A worker is gone: nobody waits for it, and its work item goes to another."""
        self._clocks.pop(worker, None)
        iteration = self._held.pop(worker, None)
        if iteration is not None:
            self._returned.append(iteration)

    def next_item(self, worker: int) -> WorkItem | None:
        """The next free work item, unless the worker is too far ahead."""
        if worker in self._held or not (self._returned or self._next < self._end):
            return None
        if self._staleness is not None and self._clocks[worker] - min(self._clocks.values()) > self._staleness:
            return None
        if self._returned:
            iteration = self._returned.pop(0)
        else:
            iteration, self._next = self._next, self._next + 1
        self._held[worker] = iteration
        return WorkItem(iteration, 0)

    def complete(self, worker: int, item: WorkItem) -> bool:
        """Complete a work item; the worker's clock advances."""
        if self._held.get(worker) != item.iteration:
            return False
        del self._held[worker]
        self._clocks[worker] += 1
        return True
