"""The messages of every schedule cannot deadlock under NCCL's rules, at any speed of hosts, streams and transfers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.processes.devices import _HARDWARE_QUEUES
from jellybean.training.processes.links import MAX_PENDING_MESSAGES
from jellybean_solver.pipeline import SCHEDULES, make_schedule, replicated_schedule
from tests.integration.training.nccl.model import (
    Collective,
    Compute,
    DeadlockError,
    Enqueue,
    Machine,
    NcclModel,
    Post,
    Transfer,
)
from tests.integration.training.nccl.recorder import record

SPEEDS = range(2)  # random seeds
MACHINE = Machine(MAX_PENDING_MESSAGES, _HARDWARE_QUEUES)


def _deadlocks(programs, machine: Machine) -> int:
    """Of six executions at other speeds."""
    found = 0
    for seed in range(6):
        try:
            NcclModel(programs, machine, seed).run()
        except DeadlockError:
            found += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_of_every_schedule_arrive(name, devices):
    programs = record(make_schedule(name, devices, 2 * devices))
    steps = [step for threads in programs.values() for steps in threads for step in steps]
    transfers = [step for step in steps if isinstance(step, Enqueue) and isinstance(step.operation, Transfer)]
    assert len(transfers) >= 2 * sum(isinstance(step, Post) for step in steps) > 0
    for seed in SPEEDS:
        NcclModel(programs, MACHINE, seed).run()
    NcclModel(programs, Machine(1, _HARDWARE_QUEUES), seed=0).run()  # a host that waits for every message


@pytest.mark.parametrize("replicas", [(2, 1), (3, 1), (2, 2), (1, 2, 1)], ids=str)
@pytest.mark.parametrize("name", ["1f1b", "pipedream"])
def test_messages_between_replicated_stages_arrive(name, replicas):
    programs = record(replicated_schedule(name, replicas, 12))
    for seed in SPEEDS:
        NcclModel(programs, MACHINE, seed).run()


@pytest.mark.slow
def test_one_communicator_for_both_directions_deadlocks():
    """What the links prevent, and that the model finds it."""
    schedule = make_schedule("1f1b", 4, 8)
    assert _deadlocks(record(schedule, by_direction=False), MACHINE) > 0
    assert _deadlocks(record(schedule), MACHINE) == 0


@pytest.mark.slow
def test_what_the_links_assume_of_the_machine():
    """A device executes a transfer of every direction at once, and its streams share no hardware queue."""
    programs = record(make_schedule("1f1b", 4, 8))
    streams = max(len({s.stream for own in programs[rank] for s in own if isinstance(s, Enqueue)}) for rank in programs)
    directions = 2 * 2  # of two neighbours
    assert streams <= _HARDWARE_QUEUES
    assert _deadlocks(programs, Machine(MAX_PENDING_MESSAGES, _HARDWARE_QUEUES, directions)) == 0
    assert _deadlocks(programs, Machine(MAX_PENDING_MESSAGES, _HARDWARE_QUEUES, 1)) > 0
    assert _deadlocks(programs, Machine(MAX_PENDING_MESSAGES, 8)) > 0  # CUDA's default


def test_two_ranks_that_send_first_deadlock():
    """The model's rules on the smallest case: ordered alike, a transfer is possible; crossed, it is not."""
    send, receive = (Enqueue("c", Transfer("c", 1, way)) for way in (True, False))
    back, take = (Enqueue("c", Transfer("c", 0, way)) for way in (True, False))
    NcclModel({0: [[send, receive]], 1: [[take, back]]}, MACHINE, 0).run()
    with pytest.raises(DeadlockError, match="rank 0's c: Transfer"):
        NcclModel({0: [[send, receive]], 1: [[back, take]]}, MACHINE, 0).run()
    with pytest.raises(DeadlockError):
        NcclModel({0: [[Enqueue("c", Compute()), send]], 1: [[]]}, MACHINE, 0).run()


def test_collectives_must_be_in_the_same_order():
    """Of one communicator; by two, the order does not matter."""

    def steps(*names: str, communicator: str = "c"):
        return [[Enqueue(communicator or name, Collective(communicator or name, (0, 1), name)) for name in names]]

    NcclModel({0: steps("a", "b"), 1: steps("a", "b")}, MACHINE, 0).run()
    with pytest.raises(DeadlockError):
        NcclModel({0: steps("a", "b"), 1: steps("b", "a")}, MACHINE, 0).run()
    NcclModel({0: steps("a", "b", communicator=""), 1: steps("b", "a", communicator="")}, MACHINE, 0).run()
