"""Links between devices whose work is done late: what arrives is what was sent, and memory outlives its use."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import StageTransport
from jellybean.training.processes.links import DeviceLink, StagedLink
from jellybean.training.processes.streams import HostStreams
from jellybean.training.processes.tensor_messages import MessageKey, TensorSpec
from tests.support.delayed_device import (
    DelayedCommunicator,
    DelayedDevice,
    DelayedStreams,
    MemoryViolation,
)
from tests.support.waiting import wait_until

SEEDS = range(20)
MESSAGES = 6
SPEC = TensorSpec((3,), torch.float32, torch.float32)


class _Mail:
    """Messages between hosts in this process, as gloo's: `wait` blocks the host."""

    def __init__(self, rank: int, queues: dict[tuple[int, int, int], queue.SimpleQueue[Any]]) -> None:
        self._rank, self._queues = rank, queues

    def send(self, tensor, peer, tag):
        self._queues[self._rank, peer, tag].put(tensor.clone())
        return _Wait(lambda: None)

    def receive(self, tensor, peer, tag):
        queue = self._queues[peer, self._rank, tag]

        def fill() -> None:
            found = queue.get(timeout=60)
            (tensor if found.dim() == 0 else tensor[: len(found)]).copy_(found)

        return _Wait(fill)


class _Wait:
    def __init__(self, do) -> None:
        self._do = do

    def wait(self, *timeout):
        self._do()


def _mail() -> list[_Mail]:
    queues = {(a, b, tag): queue.SimpleQueue() for a, b in ((0, 1), (1, 0)) for tag in (1, 2)}
    return [_Mail(rank, queues) for rank in (0, 1)]


def _links(kind: type, device: DelayedDevice, streams: type[DelayedStreams]):
    """The streams of two ranks and their links to each other."""
    sides = [streams(device, name) for name in ("rank 0", "rank 1")]
    if kind is StagedLink:
        mail = _mail()
        return sides, [StagedLink(1 - rank, mail[rank], sides[rank]) for rank in (0, 1)]
    ways = [DelayedCommunicator("0->1", *sides), DelayedCommunicator("1->0", *reversed(sides))]
    return sides, [kind(1 - rank, ways[rank], ways[1 - rank], sides[rank]) for rank in (0, 1)]


def _complete(in_flight: deque[Any]) -> None:
    complete, kept = in_flight.popleft()
    complete()
    del kept


def _exchange(kind: type, seed: int, streams: type[DelayedStreams] = DelayedStreams, keep: bool = True):
    """Messages from rank 0 to 1; `keep`: memory sent is kept until the link says that it may be released."""
    device = DelayedDevice(seed)
    (sender, receiver), links = _links(kind, device, streams)
    found: list[list[float]] = []
    in_flight: deque[Any] = deque()
    for number in range(MESSAGES):
        sent = [sender.computed(number)]
        in_flight.append((links[0].send(sent), sent if keep else None))
        del sent
        if kind is StagedLink:  # the receiving host waits for the sending one
            _complete(in_flight)
        arrival = links[1].receive([SPEC])
        (tensor,) = arrival.take()
        receiver.read(tensor, found)
        del arrival, tensor
        for _ in range(seed % 5):
            device.advance()
        if len(in_flight) > 2:
            _complete(in_flight)
    while device.advance():
        pass
    return found


@pytest.mark.parametrize("kind", [DeviceLink, StagedLink])
def test_what_arrives_is_what_was_sent(kind):
    for seed in SEEDS:
        assert _exchange(kind, seed) == [[number] * 3 for number in range(MESSAGES)]


def test_numbers_cross_too():
    """Integers cross as tensors without dimensions; empty tensors are not sent."""
    mail, streams = _mail(), HostStreams()
    links = [StagedLink(1 - rank, mail[rank], streams) for rank in (0, 1)]
    sent = [torch.tensor(7), torch.empty(0, 3)]
    links[0].send(sent)()
    parts = [TensorSpec(tuple(value.shape), value.dtype, value.dtype) for value in sent]
    arrived = links[1].receive([*parts, None]).take()
    assert [value if value is None else value.tolist() for value in arrived] == [7, [], None]


def test_compressed_tensors_arrive_in_their_type():
    mail, streams = _mail(), HostStreams()
    links = [StagedLink(1 - rank, mail[rank], streams) for rank in (0, 1)]
    links[0].send([torch.tensor([1.0, 2.5], dtype=torch.bfloat16)])()
    (arrived,) = links[1].receive([TensorSpec((2,), torch.float32, torch.bfloat16)]).take()
    assert torch.equal(arrived, torch.tensor([1.0, 2.5]))


class _NeverWaits(DelayedStreams):
    """No stream waits for another."""

    def wait(self, event, stream=None):
        return None


class _ComputesAtOnce(DelayedStreams):
    """The computation does not wait for arrivals."""

    def wait(self, event, stream=None):
        if stream is not None:
            super().wait(event, stream)


class _ForgetsUsers(DelayedStreams):
    """Memory of an arrival is reused as soon as the host releases it."""

    def used_by_computation(self, tensor):
        return None


@pytest.mark.parametrize("kind", [DeviceLink, StagedLink])
@pytest.mark.parametrize("broken", [_NeverWaits, _ComputesAtOnce])
def test_reading_before_the_event_is_found(kind, broken):
    """Guards the test above: with one rule broken, some order of the work gives other values."""
    wrong = 0
    for seed in SEEDS:
        try:
            wrong += _exchange(kind, seed, broken) != [[number] * 3 for number in range(MESSAGES)]
        except MemoryViolation:
            wrong += 1
    assert wrong > 0


@pytest.mark.parametrize("kind", [DeviceLink, StagedLink])
def test_reusing_received_memory_too_early_is_found(kind):
    with pytest.raises(MemoryViolation, match="rank 1 computation touches memory that was released"):
        for seed in SEEDS:
            _exchange(kind, seed, _ForgetsUsers)


def test_releasing_sent_memory_too_early_is_found():
    with pytest.raises(MemoryViolation, match="send 0->1 touches memory that was released"):
        for seed in SEEDS:
            _exchange(DeviceLink, seed, keep=False)


class _ReleasesAtOnce(DeviceLink):
    """Claims that what it sends may be released at once, as when a Work's `wait` were taken for its end."""

    def send(self, tensors):
        super().send(tensors)
        return lambda: None


def _transport_exchange(kind: type, seed: int) -> list[list[float]]:
    device = DelayedDevice(seed)
    (sender, receiver), links = _links(kind, device, DelayedStreams)
    mail, found = _mail(), []
    transports = [StageTransport([1 - r], mail[r], links={1 - r: links[r]}, patience_s=60.0) for r in (0, 1)]
    for transport in transports:
        transport.start()
    for number in range(3 * MESSAGES):
        key = MessageKey(number, 0, 0, 0, 0)
        transports[0].send(1, key, (sender.computed(number),))
        (tensor,) = transports[1].take(key)
        receiver.read(tensor, found)
        del tensor
    for transport in transports:  # as `close` of the other rank, which waits for this one's goodbye
        transport._outboxes[1 if transport is transports[0] else 0].put(None)
    for transport in transports:
        for thread in transport._threads:
            thread.join(60.0)
        transport._raise_failure()
    while device.advance():
        pass
    return found


@pytest.mark.parametrize("kind", [DeviceLink, StagedLink])
def test_the_transport_keeps_memory_until_transfers_end(kind):
    for seed in SEEDS[:5]:
        assert _transport_exchange(kind, seed) == [[number] * 3 for number in range(3 * MESSAGES)]


def test_a_transport_that_releases_memory_early_is_found():
    with pytest.raises(MemoryViolation):
        for seed in SEEDS:
            _transport_exchange(_ReleasesAtOnce, seed)


class _SlowLink:
    """Message n is complete only when `lag` more were attempted; counts messages in flight."""

    def __init__(self, max_pending: int | None, lag: int) -> None:
        self.max_pending, self._lag = max_pending, lag
        self._changed = threading.Condition()
        self._attempted = self._complete = self.sent = self.most = 0

    def attempt(self, count: int = 1) -> None:
        with self._changed:
            self._attempted += count
            self._changed.notify_all()

    def send(self, tensors):
        with self._changed:
            number, self.sent = self.sent, self.sent + 1
            self.most = max(self.most, self.sent - self._complete)
        return lambda: self._finish(number)

    def _finish(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._attempted > number + self._lag, 60.0)
            self._complete += 1


@pytest.mark.parametrize(("max_pending", "most"), [(1, 1), (2, 2), (None, 4)])
def test_sending_waits_for_messages_in_flight(max_pending, most):
    """As many as the link allows; with no limit, as many as are sent before the first is complete."""
    link, mail = _SlowLink(max_pending, lag=max_pending or 4), _mail()
    transport = StageTransport([1], mail[0], links={1: link}, patience_s=60.0)
    transport.start()
    for number in range(20):
        link.attempt()
        transport.send(1, MessageKey(number, 0, 0, 0, 0), (torch.ones(2),))
    link.attempt(100)
    wait_until(lambda: link.sent == 20)
    assert link.most == most if max_pending else link.most >= most
    transport._raise_failure()
