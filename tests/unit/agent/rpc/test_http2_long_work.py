"""Work that a client of many calls or parts makes is done in steps, between which others are served."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from jellybean_agent.admission.turns import TURN_S
from jellybean_agent.rpc.frames import DATA, END_STREAM, PING, frame
from jellybean_agent.rpc.parsed_size import SMALL_BYTES, overhead_steps
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.http2_client import (
    ECHO,
    CallServer,
    Http2Client,
    content,
    greeted_client,
    message,
    open_call,
    settle,
)
from tests.support.simulated_time import run_in_simulated_time

CALLS, AT_ONCE = 60, 10


async def waiting_calls(server: CallServer) -> Http2Client:
    """A client with that many calls whose requests have not arrived."""
    client = await greeted_client(server)
    await client.send(b"".join(open_call(2 * number + 1, ECHO) for number in range(CALLS)))
    assert server.server.calls_in_progress == CALLS
    return client


async def most_ended_at_once(server: CallServer) -> int:
    """The most calls that ended in one turn of the event loop, once all have."""
    left = [server.server.calls_in_progress]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(server.server.calls_in_progress)
    return max(before - after for before, after in itertools.pairwise([CALLS, *left]))


@pytest.mark.parametrize("end", ["lost", "broken"])
def test_the_calls_of_an_ended_connection_end_some_at_a_time(end: str) -> None:
    async def run() -> None:
        ticks = itertools.count()
        server = CallServer(calls=2 * CALLS, clock=lambda: next(ticks) * TURN_S / AT_ONCE)
        client = await waiting_calls(server)
        if end == "lost":
            client.connection.connection_lost(None)
        else:
            client.transport.receive(frame(PING, 0, 0, b"of another size"))
        assert 0 < await most_ended_at_once(server) <= AT_ONCE

    run_in_simulated_time(run)


def test_calls_without_a_request_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jellybean_agent.rpc.port._LOOKED_AT", AT_ONCE)

    async def run() -> None:
        server = CallServer(calls=2 * CALLS, body_s=5.0)
        await waiting_calls(server)
        for now_s in (0.0, 10.0):  # the first look notes how much of each has arrived
            await settle()
            server.port.gate.on_sweep(now_s)
        assert 0 < await most_ended_at_once(server) <= AT_ONCE

    run_in_simulated_time(run)


def test_a_large_message_is_kept_in_one_piece_from_when_it_counts() -> None:
    """What grows piece by piece is copied again and again."""

    async def run() -> None:
        server = CallServer()
        client = await greeted_client(server)
        body = message(bytes(range(256)) * 4096)
        await client.send(open_call(1, ECHO) + frame(DATA, 0, 1, body[:1000]))
        stream = client.connection._streams.by_number[1]
        await client.send(frame(DATA, 0, 1, body[1000:9000]))
        kept = stream.whole
        assert kept is not None and len(kept) == len(body) - 5 and not stream.part
        answers = []
        for at in range(9000, len(body), 2**14):
            is_last = at + 2**14 >= len(body)
            assert is_last or stream.whole is kept
            answers += await client.send(frame(DATA, END_STREAM if is_last else 0, 1, body[at : at + 2**14]))
        assert content(answers, 1).startswith(body[:100])

    run_in_simulated_time(run)


@pytest.mark.parametrize("part", [b"\x2a\x00", b"\x3a\x00", b"\x2a\x02\x08\x01"])
def test_a_message_of_small_parts_is_looked_through_in_steps(part: bytes) -> None:
    steps = overhead_steps(pb.ModelInferRequest.DESCRIPTOR, part * SMALL_BYTES)
    taken = 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            taken += 1
    assert end.value.value is True
    assert taken >= 100
