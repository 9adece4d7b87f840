"""Which worker gets which work item: each one once, whoever dies; nobody too far ahead; nobody waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from hypothesis import given
from hypothesis import strategies as st

from jellybean.training.parameter_server.work_items import (
    AsynchronousWork,
    EpochWork,
    SynchronousWork,
    WorkItem,
)

ITERATIONS = range(3, 10)
EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["ask", "ask", "send", "send", "die", "join"])), max_size=150
)


class Epoch:
    """Workers that do what events say, and at the end finish the epoch."""

    def __init__(self, work: EpochWork, workers: int) -> None:
        self.work, self.workers, self.live = work, workers, set(range(workers))
        self.held: dict[int, WorkItem] = {}
        self.completed: Counter[WorkItem] = Counter()
        self.clocks: Counter[int] = Counter()  # work items complete since a worker is there
        self.leads: list[int] = []  # at each beginning: by how much the worker is ahead of the slowest
        for worker in range(workers):
            work.join(worker)

    def step(self, worker: int, event: str) -> bool:
        """Returns whether anything happened."""
        worker %= self.workers
        if event == "join" and worker not in self.live:
            self.work.join(worker)
            self.clocks[worker] = min((self.clocks[other] for other in self.live), default=0)
            self.live.add(worker)
        elif event == "die" and worker in self.live:
            self.work.leave(worker)
            self.live.discard(worker)
            self.held.pop(worker, None)
        elif event == "ask" and worker in self.live and worker not in self.held:
            item = self.work.next_item(worker)
            if item is None:
                return False
            assert item not in self.held.values()
            self.held[worker] = item
            self.leads.append(self.clocks[worker] - min(self.clocks[other] for other in self.live))
        elif event == "send" and worker in self.held:
            item = self.held.pop(worker)
            assert self.work.complete(worker, item)
            assert not self.work.complete(worker, item)  # what is sent twice counts once
            self.completed[item] += 1
            self.clocks[worker] += 1
        else:
            return False
        return True

    def finish(self) -> None:
        """The workers that are there go on until nothing is left; at least one is."""
        if not self.live:
            self.work.join(0)
            self.live.add(0)
        while any(self.step(worker, event) for event in ("ask", "send") for worker in range(self.workers)):
            pass
        assert self.work.done


@given(EVENTS, st.integers(1, 4))
def test_synchronous_items_are_complete_once_and_in_order(events, workers):
    epoch = Epoch(SynchronousWork(workers, ITERATIONS), workers)
    for worker, event in events:
        epoch.step(worker, event)
        open_iterations = {item.iteration for item in epoch.held.values()}
        assert len(open_iterations) <= 1  # nobody is in the next one
        for iteration in open_iterations:
            assert all(epoch.completed[WorkItem(before, n)] for before in range(3, iteration) for n in range(workers))
    epoch.finish()
    assert epoch.completed == Counter({WorkItem(i, number): 1 for i in ITERATIONS for number in range(workers)})


@given(EVENTS, st.integers(1, 4), st.sampled_from([None, 0, 1, 3]))
def test_asynchronous_items_are_complete_once_and_within_the_bound(events, workers, staleness):
    epoch = Epoch(AsynchronousWork(ITERATIONS, staleness), workers)
    for worker, event in events:
        epoch.step(worker, event)
    epoch.finish()
    assert epoch.completed == Counter({WorkItem(iteration, 0): 1 for iteration in ITERATIONS})
    assert staleness is None or max(epoch.leads) <= staleness


def test_every_worker_has_its_own_item_of_an_update():
    work = SynchronousWork(2, range(2), live=(0, 1))
    assert work.next_item(1) == WorkItem(0, 1)
    assert work.complete(1, WorkItem(0, 1))
    assert work.next_item(1) is None  # the work item of worker 0 is left to it
    assert work.next_item(0) == WorkItem(0, 0)


def test_another_worker_takes_the_item_of_a_dead_one():
    work = SynchronousWork(2, range(1), live=(0, 1))
    assert work.next_item(0) == WorkItem(0, 0)
    work.leave(0)
    assert work.next_item(1) == WorkItem(0, 1)
    assert work.complete(1, WorkItem(0, 1))
    assert work.next_item(1) == WorkItem(0, 0)
    work.join(0)
    assert not work.complete(0, WorkItem(0, 0))  # it is the other's now
    assert work.complete(1, WorkItem(0, 0))
    assert work.done


@pytest.mark.parametrize(("staleness", "lead"), [(None, 9), (0, 1), (2, 3), (8, 9)])
def test_how_far_a_worker_runs_ahead_of_one_that_stands_still(staleness, lead):
    """It begins a work item while it has completed at most `staleness` more than the slowest; then it waits."""
    work = AsynchronousWork(range(10), staleness, live=(0, 1))
    assert work.next_item(0) == WorkItem(0, 0)
    done = 0
    while (item := work.next_item(1)) is not None:
        assert work.complete(1, item)
        done += 1
    assert done == lead
    assert work.complete(0, WorkItem(0, 0))
    assert (work.next_item(1) is None) == (lead == 9)


def test_a_worker_that_comes_back_holds_nobody_up():
    work = AsynchronousWork(range(10), 0, live=(0, 1))
    for worker in (0, 1):
        item = work.next_item(worker)
        assert item is not None
        assert work.complete(worker, item)
    work.leave(0)
    work.join(0)
    assert work.next_item(1) == WorkItem(2, 0)
