"""Pipes of two connections, and all pipes of a process: bytes, half-closes, losses, limits and the end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from jellybean_agent.relay.connector import LOCAL, ConnectError, PausedSink, Pipes
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.pipe import Pipe
from jellybean_agent.relay.traffic import FROM_WORKER, TO_WORKER, Traffic
from tests.support.http2_client import settle
from tests.unit.agent.relay.pipe_connections import LIMITS, Connection, in_simulated_time

pytestmark = pytest.mark.usefixtures("connection_socket")


class Joined:
    """A pipe of two connections."""

    def __init__(self, early: bytes = b"", first: Connection | None = None, second: Connection | None = None) -> None:
        self.first, self.second = first or Connection(), second or Connection()
        self.counts = [0, 0]
        self.ends: list[Pipe] = []
        counters = (self._counter(0), self._counter(1))
        self.pipe = Pipe(self.first.endpoint, self.second.endpoint, counters, self.ends.append, 120.0, early)

    def _counter(self, side: int) -> Callable[[int], None]:
        def count(size: int) -> None:
            self.counts[side] += size

        return count


def test_bytes_pass_both_ways_and_are_counted() -> None:
    async def test() -> None:
        joined = Joined(early=b"early ")
        joined.first.receive(b"forth")
        joined.second.receive(b"back")
        assert (joined.second.take(), joined.first.take()) == (b"early forth", b"back")
        assert joined.counts == [11, 4]

    in_simulated_time(test)


def test_a_pipe_reads_what_was_paused_and_holds_back_the_writer_of_a_slow_reader() -> None:
    async def test() -> None:
        first, second = Connection(), Connection(PausedSink())
        first.endpoint.pause_reading()
        assert (first.transport.is_reading, second.transport.is_reading) == (False, False)
        joined = Joined(first=first, second=second)
        assert first.transport.is_reading and second.transport.is_reading
        second.transport.is_blocked = True
        joined.first.receive(bytes(2**18))
        assert first.transport.is_reading
        joined.first.receive(b"x")
        assert (first.transport.is_reading, second.transport.is_reading) == (False, True)
        second.transport.unblock()
        assert first.transport.is_reading
        assert len(second.take()) == 2**18 + 1

    in_simulated_time(test)


def test_a_half_close_passes_and_both_end_the_pipe_once() -> None:
    async def test() -> None:
        joined = Joined()
        joined.first.transport.end()
        assert (joined.second.transport.has_ended, joined.first.transport.has_ended) == (True, False)
        joined.second.receive(b"answer")
        assert joined.first.take() == b"answer"
        joined.second.transport.end()
        assert joined.first.transport.is_closing() and joined.second.transport.is_closing()
        assert joined.ends == []
        await settle()
        assert joined.ends == [joined.pipe]
        joined.pipe.half_lost()
        assert joined.ends == [joined.pipe]
        await asyncio.sleep(300.0)
        assert not joined.first.transport.is_aborted

    in_simulated_time(test)


@pytest.mark.parametrize("side", [0, 1])
def test_a_lost_connection_resets_the_other(side: int) -> None:
    async def test() -> None:
        joined = Joined()
        ends = [joined.first, joined.second]
        ends[side].transport.lose(ConnectionResetError("reset"))
        assert ends[1 - side].transport.is_aborted
        assert joined.ends == [], "not before both are over"
        await settle()
        assert joined.ends == [joined.pipe]

    in_simulated_time(test)


def test_the_reset_of_a_pipe_ends_both() -> None:
    async def test() -> None:
        joined = Joined()
        joined.pipe.reset("the process ends")
        assert joined.first.transport.is_aborted and joined.second.transport.is_aborted
        await settle()
        assert joined.ends == [joined.pipe]

    in_simulated_time(test)


@pytest.mark.parametrize("side", [0, 1])
def test_what_happened_before_the_pipe_is_passed_on(side: int) -> None:
    async def test() -> None:
        ends = [Connection(), Connection()]
        ends[side].transport.end()
        joined = Joined(first=ends[0], second=ends[1])
        assert ends[1 - side].transport.has_ended
        gone = [Connection(), Connection()]
        gone[side].transport.lose()
        joined = Joined(first=gone[0], second=gone[1])
        assert gone[1 - side].transport.is_aborted
        await settle()
        assert joined.ends == [joined.pipe]

    in_simulated_time(test)


def test_a_half_closed_pipe_is_reset_once_nothing_moves() -> None:
    async def test() -> None:
        joined, busy, open_one = Joined(), Joined(), Joined()
        for pipe in (joined, busy, open_one):
            pipe.first.receive(b"before")
        joined.first.transport.end()
        busy.second.transport.end()
        await asyncio.sleep(119.0)
        assert not joined.second.transport.is_aborted
        busy.first.receive(b"x")
        await asyncio.sleep(2.0)
        assert joined.first.transport.is_aborted and joined.second.transport.is_aborted
        assert not busy.second.transport.is_aborted
        await asyncio.sleep(120.0)
        assert busy.second.transport.is_aborted
        assert not open_one.first.transport.is_aborted, "without an end it stays"

    in_simulated_time(test)


def test_room_for_pipes_is_by_worker_and_direction_and_given_back() -> None:
    async def test() -> None:
        pipes = Pipes(Traffic(), LIMITS)
        first, _ = pipes.reserve("a", TO_WORKER), pipes.reserve("a", TO_WORKER)
        with pytest.raises(ConnectError, match="worker a has 2 connections") as refused:
            pipes.reserve("a", TO_WORKER)
        assert refused.value.label == "too_many_connections"
        pipes.reserve("a", FROM_WORKER)
        pipes.reserve("b", TO_WORKER)
        first.close()
        pipes.reserve("a", TO_WORKER)
        with pytest.raises(ConnectError):
            pipes.reserve("a", TO_WORKER)

    in_simulated_time(test)


def test_a_pipe_is_counted_at_both_workers_and_its_room_ends_with_it() -> None:
    async def test() -> None:
        traffic = Traffic()
        pipes = Pipes(traffic, RelayLimits(pipes=1))
        first, second = Connection(), Connection()
        room = pipes.reserve("b", TO_WORKER)
        ends = [("a", FROM_WORKER), ("b", TO_WORKER)]
        pipes.join(first.endpoint, second.endpoint, ends, room, b"xy")
        assert len(pipes) == 1
        first.receive(b"abc")
        second.receive(b"z")
        assert traffic.open == traffic.connections == {("a", FROM_WORKER): 1, ("b", TO_WORKER): 1}
        assert traffic.bytes == {
            ("a", TO_WORKER): 5,
            ("a", FROM_WORKER): 1,
            ("b", FROM_WORKER): 5,
            ("b", TO_WORKER): 1,
        }
        with pytest.raises(ConnectError):
            pipes.reserve("b", TO_WORKER)
        first.transport.lose()
        await settle()
        assert len(pipes) == 0
        assert traffic.open.total() == 0
        assert traffic.connections.total() == 2
        pipes.reserve("b", TO_WORKER)

    in_simulated_time(test)


def test_tasks_that_make_pipes_are_kept_while_they_run_and_forgotten_then() -> None:
    async def test() -> None:
        pipes = Pipes(Traffic(), LIMITS)
        go_on = asyncio.Event()

        async def connect() -> None:
            await go_on.wait()

        task = weakref.ref(pipes.start(connect()))
        gc.collect()
        assert task() is not None
        go_on.set()
        await settle()
        gc.collect()
        assert task() is None

    in_simulated_time(test)


def test_the_end_cancels_what_connects_and_waits_for_pipes_before_it_resets_them() -> None:
    async def test() -> None:
        pipes = Pipes(Traffic(), LIMITS)
        cancelled: list[bool] = []

        async def connect() -> None:
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        pipes.start(connect())
        await settle()
        ends = [(Connection(), Connection()) for _ in range(3)]
        for first, second in ends:
            pipes.join(first.endpoint, second.endpoint, [("a", TO_WORKER)], pipes.reserve(str(id(first)), TO_WORKER))
        stopping = asyncio.create_task(pipes.stop(30.0))
        await asyncio.sleep(29.0)
        assert cancelled == [True]
        assert not any(first.transport.is_aborted for first, _ in ends)
        ends[0][0].transport.lose()
        await asyncio.sleep(1.1)
        assert await stopping == 2
        assert all(second.transport.is_aborted for _, second in ends)
        assert len(pipes) == 0

    in_simulated_time(test)


def test_the_end_comes_at_once_without_pipes_or_when_the_last_has_ended() -> None:
    async def test() -> None:
        pipes = Pipes(Traffic(), LIMITS)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await pipes.stop(30.0) == 0
        assert loop.time() - began_s < 1.0
        first, second = Connection(), Connection()
        pipes.join(first.endpoint, second.endpoint, [("a", TO_WORKER)], pipes.reserve("a", TO_WORKER))
        stopping = asyncio.create_task(pipes.stop(30.0))
        await asyncio.sleep(5.0)
        first.transport.lose()
        assert await stopping == 0
        assert loop.time() - began_s < 7.0

    in_simulated_time(test)


def test_who_asks_for_a_worker_leaves_room_for_others() -> None:
    pipes = Pipes(Traffic(), RelayLimits(pipes=16))
    held = [pipes.reserve("a", TO_WORKER, "box") for _ in range(14)]
    with pytest.raises(ConnectError, match="worker a has 14 connections"):
        pipes.reserve("a", TO_WORKER, "box")
    held += [pipes.reserve("a", TO_WORKER, LOCAL) for _ in range(2)]
    with pytest.raises(ConnectError, match="worker a has 16 connections"):
        pipes.reserve("a", TO_WORKER, "third")
    alone = [pipes.reserve("a", FROM_WORKER) for _ in range(16)]  # nobody else asks in its name
    with pytest.raises(ConnectError):
        pipes.reserve("a", FROM_WORKER)
    for room in (*held, *alone):
        room.close()
    assert pipes.reserve("a", TO_WORKER, "third")
