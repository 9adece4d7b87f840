"""Which worker gets which part: each part once, whoever dies; nobody too far ahead; nobody waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from hypothesis import given
from hypothesis import strategies as st

from jellybean.training.parameter_server.parts import (
    AsynchronousParts,
    EpochParts,
    Part,
    SynchronousParts,
)

ITERATIONS = range(3, 10)
EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["ask", "ask", "send", "send", "die", "join"])), max_size=150
)


class Epoch:
    """Workers that do what events say, and at the end finish the epoch."""

    def __init__(self, parts: EpochParts, workers: int) -> None:
        self.parts, self.workers, self.live = parts, workers, set(range(workers))
        self.held: dict[int, Part] = {}
        self.completed: Counter[Part] = Counter()
        self.clocks: Counter[int] = Counter()  # parts complete since a worker is there
        self.leads: list[int] = []  # at each beginning: by how much the worker is ahead of the slowest
        for worker in range(workers):
            parts.join(worker)

    def step(self, worker: int, event: str) -> bool:
        """Returns whether anything happened."""
        worker %= self.workers
        if event == "join" and worker not in self.live:
            self.parts.join(worker)
            self.clocks[worker] = min((self.clocks[other] for other in self.live), default=0)
            self.live.add(worker)
        elif event == "die" and worker in self.live:
            self.parts.leave(worker)
            self.live.discard(worker)
            self.held.pop(worker, None)
        elif event == "ask" and worker in self.live and worker not in self.held:
            part = self.parts.next_part(worker)
            if part is None:
                return False
            assert part not in self.held.values()
            self.held[worker] = part
            self.leads.append(self.clocks[worker] - min(self.clocks[other] for other in self.live))
        elif event == "send" and worker in self.held:
            part = self.held.pop(worker)
            assert self.parts.complete(worker, part)
            assert not self.parts.complete(worker, part)  # what is sent twice counts once
            self.completed[part] += 1
            self.clocks[worker] += 1
        else:
            return False
        return True

    def finish(self) -> None:
        """The workers that are there go on until nothing is left; at least one is."""
        if not self.live:
            self.parts.join(0)
            self.live.add(0)
        while any(self.step(worker, event) for event in ("ask", "send") for worker in range(self.workers)):
            pass
        assert self.parts.done


@given(EVENTS, st.integers(1, 4))
def test_synchronous_parts_are_complete_once_and_in_order(events, workers):
    epoch = Epoch(SynchronousParts(workers, ITERATIONS), workers)
    for worker, event in events:
        epoch.step(worker, event)
        open_iterations = {part.iteration for part in epoch.held.values()}
        assert len(open_iterations) <= 1  # nobody is in the next one
        for iteration in open_iterations:
            assert all(epoch.completed[Part(before, n)] for before in range(3, iteration) for n in range(workers))
    epoch.finish()
    assert epoch.completed == Counter({Part(i, number): 1 for i in ITERATIONS for number in range(workers)})


@given(EVENTS, st.integers(1, 4), st.sampled_from([None, 0, 1, 3]))
def test_asynchronous_parts_are_complete_once_and_within_the_bound(events, workers, staleness):
    epoch = Epoch(AsynchronousParts(ITERATIONS, staleness), workers)
    for worker, event in events:
        epoch.step(worker, event)
    epoch.finish()
    assert epoch.completed == Counter({Part(iteration, 0): 1 for iteration in ITERATIONS})
    assert staleness is None or max(epoch.leads) <= staleness


def test_every_worker_has_its_own_part_of_an_update():
    parts = SynchronousParts(2, range(2), live=(0, 1))
    assert parts.next_part(1) == Part(0, 1)
    assert parts.complete(1, Part(0, 1))
    assert parts.next_part(1) is None  # the part of worker 0 is left to it
    assert parts.next_part(0) == Part(0, 0)


def test_another_worker_takes_the_part_of_a_dead_one():
    parts = SynchronousParts(2, range(1), live=(0, 1))
    assert parts.next_part(0) == Part(0, 0)
    parts.leave(0)
    assert parts.next_part(1) == Part(0, 1)
    assert parts.complete(1, Part(0, 1))
    assert parts.next_part(1) == Part(0, 0)
    parts.join(0)
    assert not parts.complete(0, Part(0, 0))  # it is the other's now
    assert parts.complete(1, Part(0, 0))
    assert parts.done


@pytest.mark.parametrize(("staleness", "lead"), [(None, 9), (0, 1), (2, 3), (8, 9)])
def test_how_far_a_worker_runs_ahead_of_one_that_stands_still(staleness, lead):
    """It begins a part while it has completed at most `staleness` more than the slowest; then it waits."""
    parts = AsynchronousParts(range(10), staleness, live=(0, 1))
    assert parts.next_part(0) == Part(0, 0)
    done = 0
    while (part := parts.next_part(1)) is not None:
        assert parts.complete(1, part)
        done += 1
    assert done == lead
    assert parts.complete(0, Part(0, 0))
    assert (parts.next_part(1) is None) == (lead == 9)


def test_a_worker_that_comes_back_holds_nobody_up():
    parts = AsynchronousParts(range(10), 0, live=(0, 1))
    for worker in (0, 1):
        part = parts.next_part(worker)
        assert part is not None
        assert parts.complete(worker, part)
    parts.leave(0)
    parts.join(0)
    assert parts.next_part(1) == Part(2, 0)
