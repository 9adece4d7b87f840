"""The messages of every schedule cannot deadlock under NCCL's rules, at any speed of hosts, streams and transfers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.processes.links import MAX_PENDING_MESSAGES  # noqa: E402
from jellybean_solver.pipeline import SCHEDULES, make_schedule  # noqa: E402
from tests.integration.training.nccl_model import Compute, Deadlock, Enqueue, NcclModel, Post, Transfer  # noqa: E402
from tests.integration.training.nccl_recorder import record  # noqa: E402

SPEEDS = range(4)  # random seeds


def _deadlocks(programs, seeds, limit: int = MAX_PENDING_MESSAGES) -> int:
    found = 0
    for seed in seeds:
        try:
            NcclModel(programs, limit, seed).run()
        except Deadlock:
            found += 1
    return found


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_of_every_schedule_arrive(name, devices):
    programs = record(make_schedule(name, devices, 2 * devices))
    steps = [step for threads in programs.values() for steps in threads for step in steps]
    transfers = [step for step in steps if isinstance(step, Enqueue) and isinstance(step.operation, Transfer)]
    assert len(transfers) >= 2 * sum(isinstance(step, Post) for step in steps) > 0
    for seed in SPEEDS:
        NcclModel(programs, MAX_PENDING_MESSAGES, seed).run()
    NcclModel(programs, 1, seed=0).run()  # a host that waits for every message


def test_one_communicator_for_both_directions_deadlocks():
    """What the links prevent, and that the model finds it."""
    schedule = make_schedule("1f1b", 4, 8)
    assert _deadlocks(record(schedule, by_direction=False), range(10)) > 0
    assert _deadlocks(record(schedule), range(10)) == 0


def test_two_ranks_that_send_first_deadlock():
    """The model's rules on the smallest case: ordered alike, a transfer is possible; crossed, it is not."""
    send, receive = (Enqueue("c", Transfer("c", 1, way)) for way in (True, False))
    back, take = (Enqueue("c", Transfer("c", 0, way)) for way in (True, False))
    NcclModel({0: [[send, receive]], 1: [[take, back]]}, 1, 0).run()
    with pytest.raises(Deadlock, match="rank 0's c: Transfer"):
        NcclModel({0: [[send, receive]], 1: [[back, take]]}, 1, 0).run()
    with pytest.raises(Deadlock):
        NcclModel({0: [[Enqueue("c", Compute()), send]], 1: [[]]}, 1, 0).run()
