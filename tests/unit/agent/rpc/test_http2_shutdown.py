"""The end of an HTTP/2 connection: of one that retires, of a client that leaves, and of a server that stops."""

from __future__ import annotations

import asyncio

from jellybean_agent.rpc.frames import DATA, END_STREAM, GOAWAY, NO_ERROR, REFUSED, RESET, frame
from tests.support.http2_client import (
    BIDI,
    SLOW,
    UNAVAILABLE,
    CallServer,
    goaway,
    greeted_client,
    message,
    number_of,
    open_call,
    settle,
    split_frames,
    unary_call,
)
from tests.support.simulated_time import run_in_simulated_time


def test_a_connection_that_retires_takes_calls_until_its_client_can_know() -> None:
    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        await client.send(unary_call(1, b"", SLOW))
        client.connection.retire()
        assert goaway(await client.frames()) == (2**31 - 1, NO_ERROR, "")
        answers = await client.send(unary_call(3, b"x"))
        assert client.status(answers, 3) == (0, "")
        await asyncio.sleep(1.001)
        assert goaway(await client.frames()) == (3, NO_ERROR, "")
        answers = await client.send(unary_call(5, b"x"))
        assert [(found.kind, found.number, found.payload) for found in answers] == [(RESET, 5, number_of(REFUSED))]
        client.connection.drain()
        assert await client.frames() == [], "it was told already"
        assert server.server.calls_in_progress == 1
        client.connection.close("the end")
        answers = split_frames(client.transport.take())
        assert client.status(answers, 1) == (UNAVAILABLE, "the end")
        await settle()
        assert server.cancelled == [1]
        assert (server.server.calls_in_progress, server.server.open_connections) == (0, 0)

    run_in_simulated_time(run)


def test_a_client_that_leaves_opens_no_more_calls() -> None:
    async def run() -> None:
        client = await greeted_client()
        answers = await client.send(frame(GOAWAY, 0, 0, bytes(8)) + unary_call(1, b"x"))
        assert [found.kind for found in answers] == [RESET]

    run_in_simulated_time(run)


def test_a_server_that_stops_waits_for_calls_and_then_ends_them() -> None:
    async def run() -> None:
        server = CallServer()
        quick, slow = await greeted_client(server), await greeted_client(server)
        await quick.send(open_call(1, BIDI))
        await slow.send(unary_call(1, b"", SLOW))
        stopping = asyncio.create_task(server.server.stop(2.0))
        await asyncio.sleep(1.0)
        assert goaway(await slow.frames())[0] == 1
        answers = await quick.send(frame(DATA, END_STREAM, 1, message(b"last")))
        assert quick.status(answers, 1) == (0, "")
        assert not stopping.done()
        await asyncio.sleep(1.1)
        assert slow.status(await slow.frames(), 1) == (UNAVAILABLE, "the server is shutting down")
        await stopping
        assert slow.transport.is_closing()
        assert quick.transport.is_closing()
        await server.server.wait_for_termination()

    run_in_simulated_time(run)
