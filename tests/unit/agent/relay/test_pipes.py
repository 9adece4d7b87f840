"""Pipes, offers and who is joined to whom, with connections in memory and in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import struct
import weakref
from collections.abc import Callable, Iterator

import pytest

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.connector import ConnectError, Connector, PausedSink, Pipes, dial
from jellybean_agent.relay.endpoints import Endpoint, Sink, TlsEndpoint, read_buffer
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.offers import Offer, OfferPool
from jellybean_agent.relay.pipe import Pipe
from jellybean_agent.relay.traffic import FROM_WORKER, TO_WORKER, ReasonLog, Traffic
from jellybean_agent.relay.wire import ACCEPTED, PING, PONG, START, STARTED, UNREACHABLE
from tests.support.http2_client import settle
from tests.support.memory_connection import MemoryTransport
from tests.support.simulated_time import run_in_simulated_time

LIMITS = RelayLimits(pipes=2, offer_wait_s=10.0, start_s=3.0, ping_s=10.0, offer_age_s=300.0, half_closed_s=120.0)
BUFFER = read_buffer()


@pytest.fixture(autouse=True, scope="module")
def _sockets() -> Iterator[None]:
    first, second = socket.socketpair()
    with first, second:
        Connection.socket = first
        yield


class Noted(Sink):
    """What happened to a connection."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def opened(self, endpoint: Endpoint) -> None:
        self.events.append("opened")

    def received(self, data: bytes) -> None:
        self.events.append(data)

    def ended(self) -> None:
        self.events.append("ended")

    def lost(self, reason: str) -> None:
        self.events.append(("lost", reason))

    def paused(self) -> None:
        self.events.append("paused")

    def resumed(self) -> None:
        self.events.append("resumed")


class Connection:
    """An endpoint, its transport and what its sink has noted. `socket`: a real one, for the options that are set."""

    socket: socket.socket

    def __init__(self, sink: Sink | None = None) -> None:
        self.noted = Noted()
        self.endpoint = Endpoint(sink or self.noted, BUFFER)
        self.transport = MemoryTransport(self.endpoint, self.socket)
        self.transport.connect()

    def take(self) -> bytes:
        return self.transport.take()

    def receive(self, data: bytes) -> None:
        self.transport.receive(data)


def in_simulated_time(test: Callable[[], object]) -> None:
    async def run() -> None:
        found = test()
        if asyncio.iscoroutine(found):
            await found
        await settle()

    run_in_simulated_time(run)


def test_a_connection_reports_what_happens_to_it() -> None:
    async def test() -> None:
        whole = Connection()
        whole.receive(b"hello")
        whole.endpoint.send(b"answer")
        whole.transport.end()
        assert whole.endpoint.peer_has_ended
        whole.endpoint.end()
        whole.endpoint.send(b"after the end")
        assert (whole.take(), whole.transport.has_ended) == (b"answer", True)
        whole.transport.end()
        whole.transport.lose()
        assert whole.noted.events == ["opened", b"hello", "ended", ("lost", "")]
        assert whole.endpoint.is_lost and whole.endpoint.is_over
        cut = Connection()
        cut.transport.lose(OSError("cable"))
        silent = Connection()
        silent.transport.lose()
        half = Connection()
        half.transport.end()
        half.transport.lose()
        assert [found.noted.events[-1] for found in (cut, silent, half)] == [
            ("lost", "cable"),
            ("lost", "it was closed"),
            ("lost", "it was closed"),
        ]

    in_simulated_time(test)


def test_a_reset_aborts_and_keeps_its_first_reason() -> None:
    async def test() -> None:
        connection = Connection()
        connection.endpoint.reset("first")
        connection.endpoint.reset("second")
        assert connection.transport.is_aborted
        assert connection.endpoint.is_over
        assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 0)
        connection.endpoint.send(b"x")
        connection.endpoint.buffer_updated(1)
        connection.endpoint.pause_reading()
        await settle()
        assert connection.noted.events == ["opened", ("lost", "first")]
        assert connection.take() == b""
        early = Endpoint(Sink(), BUFFER)
        early.reset("before it is connected")
        transport = MemoryTransport(early, connection.socket)
        transport.connect()
        assert transport.is_aborted

    in_simulated_time(test)


def test_tls_that_is_closed_ends_the_connection_below_it_too() -> None:
    async def test() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        endpoint = TlsEndpoint(lambda *both: context.wrap_bio(*both, server_hostname="x"), Sink(), BUFFER)
        transport = MemoryTransport(endpoint, Connection.socket)
        transport.connect()
        assert transport.take()[:1] == b"\x16", "the handshake begins"
        endpoint.close()
        assert transport.has_ended

    in_simulated_time(test)


def test_a_close_waits_a_moment_for_the_peer_to_read_and_close() -> None:
    async def test() -> None:
        connection, prompt = Connection(), Connection()
        connection.endpoint.pause_reading()
        for one in (connection, prompt):
            one.endpoint.send(b"last")
            one.endpoint.close()
            one.receive(b"ignored")
            assert (one.take(), one.transport.has_ended, one.transport.is_reading) == (b"last", True, True)
        prompt.transport.end()
        await settle()
        assert prompt.noted.events[-1][0] == "lost"
        await asyncio.sleep(0.9)
        assert not connection.transport.is_closing()
        await asyncio.sleep(0.2)
        assert connection.transport.is_aborted
        assert not prompt.transport.is_aborted
        ended = Connection()
        ended.transport.end()
        ended.endpoint.close()
        assert ended.transport.is_closing(), "at once, as its peer has ended"
        await asyncio.sleep(2.0)
        assert not ended.transport.is_aborted

    in_simulated_time(test)


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


# -- pipes of a process ------------------------------------------------------------------------------------------------


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


# -- offers ------------------------------------------------------------------------------------------------------------


class Offered:
    """An offer of a pool, and its tunnel's end."""

    def __init__(self, pool: OfferPool) -> None:
        self.connection = Connection()
        pool.add(self.connection.endpoint)

    def said(self) -> bytes:
        return self.connection.take()


def test_an_idle_offer_is_pinged_and_lost_if_it_does_not_answer() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        lively, silent = Offered(pool), Offered(pool)
        assert (lively.said(), silent.said()) == (ACCEPTED, ACCEPTED)
        await asyncio.sleep(9.9)
        assert lively.said() == b""
        await asyncio.sleep(0.2)
        assert (lively.said(), silent.said()) == (PING, PING)
        lively.connection.receive(PONG)
        await asyncio.sleep(10.0)
        assert (lively.said(), silent.connection.transport.is_aborted) == (PING, True)
        assert len(pool) == 1

    in_simulated_time(test)


def test_an_offer_ends_at_its_age() -> None:
    async def test() -> None:
        pool = OfferPool("a", RelayLimits(offer_age_s=100.0, ping_s=3600.0))
        offered = Offered(pool)
        await asyncio.sleep(89.9)
        assert len(pool) == 1
        await asyncio.sleep(20.2)
        assert len(pool) == 0
        assert offered.connection.transport.has_ended

    in_simulated_time(test)


@pytest.mark.parametrize("data", [STARTED, b"x", PONG + b"x", UNREACHABLE])
def test_an_idle_offer_that_sends_something_else_is_reset(data: bytes) -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        offered = Offered(pool)
        offered.connection.receive(data)
        assert offered.connection.transport.is_aborted
        await settle()
        assert len(pool) == 0

    in_simulated_time(test)


def test_an_idle_offer_that_ends_is_gone() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        for how in ("end", "lose"):
            offered = Offered(pool)
            getattr(offered.connection.transport, how)()
            await settle()
            assert len(pool) == 0
        pool = OfferPool("a", LIMITS)
        ended = [Offered(pool), Offered(pool)]
        pool.end_all()
        assert all(offered.connection.transport.has_ended for offered in ended)
        assert len(pool) == 0

    in_simulated_time(test)


def test_the_newest_offer_is_started_and_what_comes_with_the_answer_is_kept() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        old, new = Offered(pool), Offered(pool)
        starting = asyncio.create_task(pool.started())
        await settle()
        assert (old.said(), new.said()) == (ACCEPTED, ACCEPTED + START)
        assert len(pool) == 1
        new.connection.receive(PONG + STARTED + b"first bytes")
        assert not new.connection.transport.is_reading, "until the pipe begins"
        new.connection.receive(b", more")
        offer = await starting
        assert (offer.endpoint, offer.early) == (new.connection.endpoint, b"first bytes, more")
        await asyncio.sleep(600.0)
        assert not new.connection.transport.is_closing(), "its timers have ended"

    in_simulated_time(test)


def test_an_offer_that_does_not_start_is_reset_and_the_next_is_tried() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        good, silent, gone = Offered(pool), Offered(pool), Offered(pool)
        starting = asyncio.create_task(pool.started())
        await settle()
        gone.connection.transport.lose()
        await asyncio.sleep(2.9)
        assert not silent.connection.transport.is_aborted
        await asyncio.sleep(0.2)
        assert silent.connection.transport.is_aborted
        good.connection.receive(STARTED)
        assert (await starting).endpoint is good.connection.endpoint

    in_simulated_time(test)


def test_a_tunnel_without_its_agent_fails_the_connection() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        offered, _ = Offered(pool), None
        starting = asyncio.create_task(pool.started())
        await settle()
        offered.connection.receive(UNREACHABLE)
        with pytest.raises(TransientError, match="its tunnel does not reach the agent"):
            await starting
        assert offered.connection.transport.has_ended

    in_simulated_time(test)


def test_a_connection_waits_for_an_offer_and_gives_up_after_a_time() -> None:
    async def test() -> None:
        pool, loop = OfferPool("a", LIMITS), asyncio.get_running_loop()
        waiting = [asyncio.create_task(pool.started()) for _ in range(2)]
        await asyncio.sleep(9.0)
        assert pool.waiting == 2
        offered = Offered(pool)
        assert len(pool) == 0, "the first that waits gets it"
        await settle()
        offered.connection.receive(STARTED)
        assert (await waiting[0]).endpoint is offered.connection.endpoint
        began_s = loop.time()
        with pytest.raises(TransientError, match="no offer of worker a within 10 s"):
            await waiting[1]
        assert loop.time() - began_s <= 1.1
        assert pool.waiting == 0
        late = Offered(pool)
        assert (len(pool), late.said()) == (1, ACCEPTED), "who has given up gets none"

    in_simulated_time(test)


def test_a_caller_that_is_gone_leaves_its_offer_to_others() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        waiting = asyncio.create_task(pool.started())
        await settle()
        offered = Offered(pool)
        waiting.cancel()
        await settle()
        assert len(pool) == 1
        starting = asyncio.create_task(pool.started())
        await settle()
        starting.cancel()
        await settle()
        assert offered.connection.transport.is_aborted, "it had been started for one that is gone"

    in_simulated_time(test)


# -- the connector -----------------------------------------------------------------------------------------------------


class Relaying:
    """A connector of worker a, and what it has refused."""

    def __init__(self, targets: dict[str, tuple[str, int]] | None = None) -> None:
        self.traffic = Traffic()
        self.pipes = Pipes(self.traffic, LIMITS)
        self.connector = Connector({"a", "b"}, targets or {}, self.pipes, BUFFER)
        self.failures: list[tuple[str, str]] = []
        self.answered: list[str] = []

    def fail(self, label: str, reason: str) -> None:
        self.failures.append((label, reason))

    async def ask(self, name: str) -> Connection:
        """Worker a asks for a peer."""
        connection = Connection()
        self.connector.from_worker(connection.endpoint, "a", name, (lambda: self.answered.append(name), self.fail))
        await settle()
        return connection


def test_a_local_connection_is_joined_to_an_offer() -> None:
    async def test() -> None:
        relaying = Relaying()
        local, offered = Connection(), Offered(relaying.connector.pools["a"])
        relaying.connector.from_local(local.endpoint, "a", relaying.fail)
        assert not local.transport.is_reading
        await settle()
        offered.connection.receive(STARTED + b"hello")
        await settle()
        assert local.transport.is_reading
        assert local.take() == b"hello"
        local.receive(b"world")
        assert offered.said() == ACCEPTED + START + b"world"
        assert relaying.traffic.bytes == {("a", FROM_WORKER): 5, ("a", TO_WORKER): 5}
        assert relaying.failures == []

    in_simulated_time(test)


def test_a_local_connection_that_cannot_be_joined_is_reset_and_counted() -> None:
    async def test() -> None:
        relaying = Relaying()
        locals_ = [Connection() for _ in range(3)]
        for local in locals_:
            relaying.connector.from_local(local.endpoint, "a", relaying.fail)
        await settle()
        assert [local.transport.is_aborted for local in locals_] == [False, False, True]
        assert relaying.failures == [("too_many_connections", "worker a has 2 connections")]
        locals_[0].transport.lose()
        await settle()
        another = Connection()
        relaying.connector.from_local(another.endpoint, "a", relaying.fail)
        await settle()
        assert not another.transport.is_aborted, "there is room again"
        await asyncio.sleep(10.1)
        assert another.transport.is_aborted
        assert relaying.failures[1:] == [("no_offer", "no offer of worker a within 10 s")] * 2
        relaying.pipes.reserve("a", TO_WORKER)

    in_simulated_time(test)


def test_a_local_connection_that_sends_while_it_waits_or_is_there_at_the_end_is_reset() -> None:
    async def test() -> None:
        relaying = Relaying()
        eager, patient = Connection(), Connection()
        for local in (eager, patient):
            relaying.connector.from_local(local.endpoint, "a", relaying.fail)
        await settle()
        eager.receive(b"x")
        await settle()
        assert eager.transport.is_aborted
        assert not patient.transport.is_aborted
        assert await relaying.pipes.stop(1.0) == 0
        assert patient.transport.is_aborted

    in_simulated_time(test)


def test_a_worker_is_joined_to_another_worker_by_its_name() -> None:
    async def test() -> None:
        relaying = Relaying()
        offered = Offered(relaying.connector.pools["b"])
        asking = await relaying.ask("b")
        assert relaying.answered == []
        offered.connection.receive(STARTED + b"early")
        await settle()
        assert relaying.answered == ["b"]
        assert asking.take() == b"early"
        asking.receive(b"question")
        assert relaying.traffic.connections == {("a", FROM_WORKER): 1, ("b", TO_WORKER): 1}
        assert relaying.traffic.bytes["b", TO_WORKER] == relaying.traffic.bytes["a", FROM_WORKER] == 8
        assert relaying.traffic.bytes["b", FROM_WORKER] == relaying.traffic.bytes["a", TO_WORKER] == 5
        for _ in range(2):
            relaying.pipes.reserve("a", TO_WORKER)
        relaying.pipes.reserve("b", TO_WORKER)
        with pytest.raises(ConnectError):
            relaying.pipes.reserve("b", TO_WORKER)
        relaying.pipes.reserve("a", FROM_WORKER)
        with pytest.raises(ConnectError):
            relaying.pipes.reserve("a", FROM_WORKER)

    in_simulated_time(test)


def test_a_worker_is_joined_to_a_target_or_told_why_not() -> None:
    async def test() -> None:
        got: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.append(await reader.read(5))
            writer.write(b"answer")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                targets = {"": server.sockets[0].getsockname()[:2], "down": closed.getsockname()[:2]}
                relaying = Relaying(targets)
                asking = await relaying.ask("")
                await asyncio.sleep(0.1)
                assert relaying.answered == [""]
                asking.receive(b"hello")
                await asyncio.sleep(0.1)
                assert (got, asking.take()) == ([b"hello"], b"answer")
                assert relaying.traffic.bytes == {("a", FROM_WORKER): 5, ("a", TO_WORKER): 6}
                await relaying.ask("down")
                await asyncio.sleep(0.1)
                await relaying.ask("elsewhere")
                address = f"127.0.0.1:{closed.getsockname()[1]}"
                (label, reason), unknown = relaying.failures
                assert label == "dial"
                assert reason.startswith(f"down at {address}: ")
                assert unknown == ("unknown_target", "this relay has no peer 'elsewhere'")
                assert relaying.traffic.failed_dials == {"down": 1}
                assert relaying.answered == [""]
                asking.transport.lose()
                await asyncio.sleep(0.1)
        assert len(relaying.pipes) == 0

    in_simulated_time(test)


def test_a_gateway_that_is_not_reached_is_called_so() -> None:
    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            relaying = Relaying({"": closed.getsockname()[:2]})
            await relaying.ask("")
            await asyncio.sleep(0.1)
            ((label, reason),) = relaying.failures
            assert (label, reason.partition(":")[0]) == ("dial", "gateway at 127.0.0.1")
            assert relaying.traffic.failed_dials == {"gateway": 1}

    in_simulated_time(test)


def test_a_host_name_that_cannot_be_looked_up_is_a_transient_error() -> None:
    async def test() -> None:
        with pytest.raises(TransientError, match=r"^\.\.:1: "):
            await dial("..", 1, 5.0, BUFFER)

    asyncio.run(test())


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_reason_is_logged_once_until_it_changes_or_there_was_success(caplog: pytest.LogCaptureFixture) -> None:
    log = ReasonLog(logging.getLogger("test.reasons"))
    for who, text in (("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        log.failed(who, "dial", text)
    log.failed("a", "offer", "x", logging.ERROR)
    assert [record.getMessage() for record in caplog.records] == ["x", "x", "y", "x", "x"]
    assert caplog.records[-1].levelno == logging.ERROR
    assert (log.succeeded("a"), log.succeeded("a"), log.succeeded("b")) == (True, False, True)
    log.failed("a", "dial", "x")
    assert len(caplog.records) == 6


def test_only_so_many_reasons_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    log = ReasonLog(logging.getLogger("test.reasons"))
    for number in range(1025):
        log.failed(str(number), "dial", "x")
    caplog.clear()
    log.failed("1024", "dial", "x")
    log.failed("1", "dial", "x")
    assert caplog.records == []
    log.failed("0", "dial", "x")
    assert len(caplog.records) == 1, "the oldest was forgotten"


def test_an_offer_ends_only_once() -> None:
    async def test() -> None:
        gone: list[Offer] = []
        connection = Connection()
        offer = Offer(connection.endpoint, LIMITS, gone.append)
        offer.end()
        assert gone == [offer]
        await asyncio.sleep(20.0)
        assert connection.take() == ACCEPTED

    in_simulated_time(test)
