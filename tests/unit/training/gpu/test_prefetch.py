"""Micro-batches are copied to a device ahead of the computation, which gets them behind an event."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")


import torch.distributed as dist

from jellybean.training.data.prefetch import PrefetchedFeed, Read, feed_reads
from jellybean.training.processes.streams import HostStreams
from tests.support.delayed_device import DelayedDevice, DelayedStreams, MemoryViolation
from tests.support.training_inputs import first_update, set_up_cpu_run, training_document

READS = [Read(m, arguments) for m in range(5) for arguments in ((0, 1), None)]


class _Feed:
    """Micro-batch m has the inputs m and 10 m, and the target {labels: -m}."""

    def __init__(self) -> None:
        self.read: list[Read] = []

    def inputs(self, microbatch, arguments):
        self.read.append(Read(microbatch, arguments))
        return tuple(torch.full((2,), float(microbatch * (1, 10)[index])) for index in arguments)

    def target(self, microbatch):
        self.read.append(Read(microbatch, None))
        return {"labels": torch.full((2,), float(-microbatch))}

    def factor(self, microbatch):
        return 0.5 * microbatch

    def seed(self, microbatch, stage):
        return 10 * microbatch + stage


def _run(seed: int, streams_type: type[DelayedStreams] = DelayedStreams) -> list[list[float]]:
    streams, found = streams_type(DelayedDevice(seed), "rank 0"), []
    feed = PrefetchedFeed(_Feed(), READS, streams)
    for read in READS:
        if read.arguments is None:
            streams.read(feed.target(read.microbatch)["labels"], found)
        else:
            for value in feed.inputs(read.microbatch, read.arguments):
                streams.read(value, found)
            del value
        for _ in range(seed % 4):
            streams.device.advance()
    while streams.device.advance():
        pass
    return found


EXPECTED = [[float(value)] * 2 for m in range(5) for value in (m, 10 * m, -m)]


def test_the_computation_gets_what_the_feed_gives():
    assert all(_run(seed) == EXPECTED for seed in range(20))


class _NeverWaits(DelayedStreams):
    def wait(self, event, stream=None):
        return None


class _ForgetsUsers(DelayedStreams):
    def used_by_computation(self, tensor):
        return None


def test_the_rules_are_needed():
    """Guards the test above: values come too late, or memory is reused too early."""
    assert any(_run(seed, _NeverWaits) != EXPECTED for seed in range(20))
    with pytest.raises(MemoryViolation):
        for seed in range(20):
            _run(seed, _ForgetsUsers)


def _losses(schedule: str, *, ahead: bool) -> dict[int, float]:
    """Of an update of a run on one process, which has all stages."""
    document = training_document(
        0.1,
        model="tests.integration.training.models.evaluation_case:two_modes",
        data="tests.integration.training.models.evaluation_case:rows_of_three_classes",
        batch=16,
        microbatches=4,
        schedule=schedule,
    )
    run = set_up_cpu_run(document, 0)
    feed = first_update(run)
    prefetched = PrefetchedFeed(feed, feed_reads(run.schedule, 0, run.held), HostStreams())
    log = run.interpreter.run(prefetched if ahead else feed)
    run.transport.close()
    assert len(log.losses) == 4
    return {number: float(loss) for number, loss in log.losses.items()}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v"])
def test_the_announced_reads_are_the_interpreters(schedule):
    """In order: another read than the announced one would be an error."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert _losses(schedule, ahead=True) == _losses(schedule, ahead=False)
    finally:
        dist.destroy_process_group()


class _Named(DelayedStreams):
    """Records the streams on which memory is allocated."""

    def __init__(self, device, name):
        super().__init__(device, name)
        self.used = []

    def empty(self, shape, dtype):
        self.used.append(self.stream)
        return super().empty(shape, dtype)


def test_every_iteration_copies_on_the_same_stream():
    """torch's allocator reuses memory on the stream that allocated it."""
    streams = _Named(DelayedDevice(0), "rank 0")
    for _ in range(3):
        PrefetchedFeed(_Feed(), READS, streams)
    assert len(streams.used) == 9
    assert set(streams.used) == {streams.inputs}


def test_reads_are_begun_ahead_and_once():
    inner = _Feed()
    feed = PrefetchedFeed(inner, READS, DelayedStreams(DelayedDevice(0), "rank 0"))
    assert inner.read == READS[:2]
    feed.inputs(0, (0, 1))
    assert inner.read == READS[:3]
    with pytest.raises(AssertionError, match="is read where Read"):
        feed.inputs(1, (0, 1))
    assert (feed.factor(3), feed.seed(3, 1)) == (1.5, 31)
