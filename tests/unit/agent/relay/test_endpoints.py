"""Endpoints of pipes: what they report of a connection, and how they reset, end and close it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct

import pytest

from jellybean_agent.admission.turns import TURN_S, PeerTurns
from jellybean_agent.relay.endpoints import Endpoint, Sink, TlsEndpoint
from tests.support.http2_client import settle
from tests.support.memory_connection import MemoryTransport
from tests.unit.agent.relay.memory_endpoint import BUFFER
from tests.unit.agent.relay.pipe_connections import Connection, in_simulated_time

pytestmark = pytest.mark.usefixtures("connection_socket")


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


def test_handshakes_of_an_address_take_turns_and_a_silent_one_takes_no_memory() -> None:
    async def test() -> None:
        ticks, made = itertools.count(), list[ssl.SSLObject]()
        turn = PeerTurns(lambda: next(ticks) * TURN_S).of("10.0.0.1")
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        outgoing = ssl.MemoryBIO()
        hello = client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
        with contextlib.suppress(ssl.SSLWantReadError):
            hello.do_handshake()

        def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
            made.append(client.wrap_bio(incoming, outgoing, server_hostname="x"))
            return made[-1]

        def accept() -> MemoryTransport:
            endpoint = TlsEndpoint(wrap, Sink(), BUFFER, is_server=True)
            transport = MemoryTransport(endpoint, Connection.socket)
            transport.holds_back = True
            transport.connect()
            endpoint.turn = turn
            return transport

        flood, silent = [accept() for _ in range(3)], accept()
        assert made == []
        data = outgoing.read()
        for transport in flood:
            transport.receive(data)
        assert len(made) == 1
        assert [transport.is_reading for transport in (*flood, silent)] == [True, False, False, True]
        while len(made) < 3:
            await settle()
        assert len(silent.take()) == 0

    in_simulated_time(test)
