"""The connector of a relay: which connections it joins to offers, workers and targets, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.connector import ConnectError, Connector, Pipes, dial
from jellybean_agent.relay.traffic import FROM_WORKER, TO_WORKER, Traffic
from jellybean_agent.relay.wire import ACCEPTED, START, STARTED
from tests.support.http2_client import settle
from tests.unit.agent.relay.memory_endpoint import BUFFER
from tests.unit.agent.relay.pipe_connections import LIMITS, Connection, Offered, in_simulated_time

pytestmark = pytest.mark.usefixtures("connection_socket")


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
