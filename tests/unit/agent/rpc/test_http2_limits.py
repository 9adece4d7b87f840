"""Limits of an HTTP/2 connection: calls, streams, and floods of frames, settings and resets."""

from __future__ import annotations

import asyncio

import pytest

from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PING,
    PRIORITY,
    BrokenError,
    frame,
)
from jellybean_agent.rpc.http2_flood import FloodGuard
from tests.support.http2_client import (
    BIDI,
    EXHAUSTED,
    SLOW,
    CallServer,
    Frame,
    goaway,
    greeted_client,
    open_call,
    reset,
    settings,
    unary_call,
    window,
)
from tests.support.simulated_time import run_in_simulated_time


def test_calls_above_the_limit_are_refused_until_others_end() -> None:
    async def run() -> None:
        server = CallServer(calls=2)
        client, other = await greeted_client(server), await greeted_client(server)
        await client.send(unary_call(1, b"", SLOW) + unary_call(3, b"", SLOW))
        answers = await other.send(unary_call(1, b"x"))
        assert other.status(answers, 1) == (EXHAUSTED, "2 calls are in progress, which is the limit")
        await client.send(reset(3))
        assert other.status(await other.send(unary_call(3, b"x")), 3) == (0, "")

    run_in_simulated_time(run)


def test_streams_above_the_limit_end_the_connection() -> None:
    async def run() -> None:
        server = CallServer(streams=2)
        client = await greeted_client(server)
        answers = await client.send(b"".join(unary_call(number, b"", SLOW) for number in (1, 3)))
        assert not client.transport.is_closing()
        answers = await client.send(unary_call(5, b"", SLOW))
        assert goaway(answers) == (5, ENHANCE_YOUR_CALM, "more than 2 streams")

    run_in_simulated_time(run)


FLOODS = [
    ("pings", frame(PING, 0, 0, bytes(8))),
    ("settings", settings()),
    ("priorities", frame(PRIORITY, 0, 1, bytes(5))),
    ("updates of all", window(0, 1)),
    ("updates of a stream", window(1, 1)),
    ("updates of a closed stream", window(3, 1)),
    ("empty data", frame(DATA, 0, 1, b"")),
    ("data of a closed stream", frame(DATA, 0, 3, b"x")),
    ("resets of a closed stream", reset(3)),
    ("trailers of a closed stream", frame(HEADERS, END_HEADERS | END_STREAM, 3, b"")),
    ("empty continuations", frame(CONTINUATION, 0, 5, b"")),
]


@pytest.mark.parametrize("data", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_frames_without_effect_are_counted_until_a_call_is_answered(data: bytes) -> None:
    async def run() -> None:
        server = CallServer()
        server.server.flood_limits = FloodLimits(idle_frames=20)
        client = await greeted_client(server)
        await client.send(open_call(1, BIDI) + unary_call(3, b"x"))
        if data[3] == CONTINUATION:
            await client.send(frame(HEADERS, 0, 5, b""))
        else:
            await client.send(data * 15)
            await client.send(unary_call(7, b"x"))
            await client.send(data * 15)
            assert not client.transport.is_closing()
        answers = await client.send(data * 21)
        assert goaway(answers)[1:] == (ENHANCE_YOUR_CALM, "20 frames without effect")

    run_in_simulated_time(run)


def test_answers_pay_for_the_frames_that_acknowledge_them() -> None:
    guard = FloodGuard(FloodLimits(idle_frames=10))
    for _ in range(10):
        guard.count_idle()
    guard.message_sent(100)
    assert guard.idle_frames == 8
    guard.message_sent(2**14)
    assert guard.idle_frames == 4
    guard.message_sent(2**20)
    assert guard.idle_frames == 0
    for _ in range(10):
        guard.count_idle()
    with pytest.raises(BrokenError, match="10 frames without effect"):
        guard.count_idle()


def test_settings_cost_more_with_more_streams() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.flood_limits = FloodLimits(idle_frames=20, streams_per_frame=2)
        client = await greeted_client(server)
        await client.send(b"".join(open_call(number, BIDI) for number in range(1, 9, 2)))
        await client.send(settings() * 6)
        assert not client.transport.is_closing(), "6 times 1 + 4 / 2, and one before"
        assert goaway(await client.send(settings()))[1] == ENHANCE_YOUR_CALM

    run_in_simulated_time(run)


def test_calls_that_are_opened_and_reset_are_counted_over_time() -> None:
    async def run() -> None:
        server = CallServer()
        server.server.flood_limits = FloodLimits(resets=4, resets_per_s=1.0)
        client = await greeted_client(server)
        numbers = iter(range(1, 999, 2))

        async def rapid(count: int) -> list[Frame]:
            found = []
            for _ in range(count):
                number = next(numbers)
                found += await client.send(unary_call(number, b"", SLOW) + reset(number))
            return found

        assert await rapid(4) == []
        await asyncio.sleep(2.0)
        assert await rapid(2) == []
        number = next(numbers)
        await client.send(unary_call(number, b"x"))
        assert await rapid(1) == [], "an answered call allows one more"
        assert goaway(await rapid(1))[1:] == (ENHANCE_YOUR_CALM, "4 calls that were begun and reset")

    run_in_simulated_time(run)
