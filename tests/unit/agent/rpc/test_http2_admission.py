"""What the clients of a server can use up: calls and bytes, in all and by client, and nothing is kept of them after."""

from __future__ import annotations

import asyncio
import gc
import gzip
import random
import resource
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_agent import Admission, ListeningPort
from jellybean_agent.rpc.frames import DATA, END_STREAM, PADDED, RESET, frame
from tests.support.examples import examples
from tests.support.http2_client import (
    BIDI,
    ECHO,
    EXHAUSTED,
    INTERNAL,
    SLOW,
    UNIMPLEMENTED,
    CallServer,
    Http2Client,
    content,
    greeted_client,
    message,
    open_call,
    reset,
    unary_call,
)
from tests.support.simulated_time import run_in_simulated_time

MIB = 2**20
GZIP = (b"grpc-encoding", b"gzip")
HEALTH = "/grpc.health.v1.Health/Check"


def data(number: int, payload: bytes, flags: int = 0) -> bytes:
    """DATA frames with this payload; the flags are of the last one."""
    size = 2**14
    parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    frames = [frame(DATA, 0, number, part) for part in parts[:-1]]
    return b"".join((*frames, frame(DATA, flags, number, parts[-1])))


def test_calls_without_a_request_end_for_those_that_have_one() -> None:
    async def run() -> None:
        server = CallServer(calls=20)
        crowd, other = await greeted_client(server), await greeted_client(server)
        answers = await crowd.send(b"".join(open_call(2 * number + 1, ECHO) for number in range(40)))
        assert server.server.calls_in_progress <= 20
        for number in range(1, 21, 2):
            assert other.status(await other.send(unary_call(number, b"x")), number) == (0, "")
        answers += await crowd.frames()
        status, text = crowd.status(answers, 1)
        assert (status, text) == (EXHAUSTED, "its request has not arrived, and others wait"), "the oldest is the first"

    run_in_simulated_time(run)


def test_health_is_answered_when_nothing_else_is() -> None:
    async def run() -> None:
        server = CallServer(calls=4, reserved_calls=2)
        client = await greeted_client(server)
        answers = await client.send(b"".join(unary_call(number, b"", SLOW) for number in (1, 3, 5, 7)))
        assert client.status(await client.send(unary_call(9, b"x")), 9)[0] == EXHAUSTED
        answers = await client.send(unary_call(11, b"", HEALTH))
        assert client.status(answers, 11)[0] == UNIMPLEMENTED, "it was admitted: this server has no such method"

    run_in_simulated_time(run)


def test_a_request_that_stops_arriving_ends_and_a_slow_one_does_not() -> None:
    async def run() -> None:
        server = CallServer(body_s=5.0)
        client, stalled = await greeted_client(server), await greeted_client(server)
        body = message(bytes(1000))
        await client.send(open_call(3, ECHO) + data(3, body[:10]))
        await stalled.send(open_call(1, ECHO) + data(1, body[:10]))
        for at in range(10, 310, 10):
            await asyncio.sleep(1.0)
            await client.send(data(3, body[at : at + 10]))
        answers = await client.send(data(3, body[310:], END_STREAM))
        assert client.status(answers, 3) == (0, "")
        assert server.server.calls_in_progress == 0
        assert server.server.admission.refused[ListeningPort.CLIENTS, "no request"] == 1

    run_in_simulated_time(run)


def test_unfinished_requests_count_until_they_are_reset() -> None:
    async def run() -> None:
        admission = Admission(request_bytes=MIB)
        client = await greeted_client(CallServer(admission))
        begun = message(bytes(500_000))[:300_000]
        answers = []
        for number in (1, 3, 5, 7, 9):
            answers += await client.send(open_call(number, ECHO) + data(number, begun))
        refused = [found for found in answers if found.kind == RESET]
        assert refused, "not all of them fit"
        assert admission.bytes.held <= MIB
        for number in (1, 3, 5, 7, 9):
            await client.send(reset(number))
        assert admission.bytes.held == 0
        assert client.status(await client.send(unary_call(11, b"x")), 11) == (0, "")

    run_in_simulated_time(run)


def test_a_request_counts_until_its_call_is_over() -> None:
    async def run() -> None:
        admission = Admission(request_bytes=MIB)
        client = await greeted_client(CallServer(admission))
        await client.send(open_call(1, SLOW) + data(1, message(bytes(100_000)), END_STREAM))
        assert 100_000 <= admission.bytes.held < 101_000, "with its headers"
        await client.send(reset(1))
        assert admission.bytes.held == 0

    run_in_simulated_time(run)


def test_queued_messages_of_a_stream_count_until_they_are_read() -> None:
    async def run() -> None:
        admission = Admission(request_bytes=MIB)
        client = await greeted_client(CallServer(admission))
        answers = await client.send(open_call(1, BIDI) + b"".join(data(1, message(bytes(1000))) for _ in range(50)))
        assert len(content(answers, 1)) == 50 * 1005
        headers = admission.bytes.held
        assert headers < 1000
        await client.send(data(1, message(bytes(5000))[:2000]))
        assert admission.bytes.held == headers + 2000 - 5
        client.transport.lose()
        assert admission.bytes.held == 0

    run_in_simulated_time(run)


def test_answers_that_are_not_read_count() -> None:
    async def run() -> None:
        admission = Admission(request_bytes=300_000)
        client = await greeted_client(CallServer(admission), (4, 0))  # no window for answers
        answers = []
        for number in range(1, 13, 2):
            answers += await client.send(open_call(number, ECHO) + data(number, message(bytes(50_000)), END_STREAM))
        refused = [number for number in range(1, 13, 2) if any(f.number == number and f.flags & 1 for f in answers)]
        assert refused
        assert client.status(answers, refused[0])[0] == EXHAUSTED
        client.transport.lose()
        assert admission.bytes.held == 0

    run_in_simulated_time(run)


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "never ended"])
def test_a_compressed_request_is_unpacked_when_it_is_complete_and_within_the_memory(ends: bool) -> None:
    async def run() -> None:
        admission = Admission(request_bytes=4 * MIB)
        client = await greeted_client(CallServer(admission))
        bomb = message(gzip.compress(bytes(32 * MIB)), compressed=1)
        answers = []
        for number in (1, 3, 5):
            answers += await client.send(open_call(number, ECHO, GZIP) + data(number, bomb, END_STREAM * ends))
        assert admission.bytes.held < 4 * MIB
        while ends and len([found for found in answers if found.flags & END_STREAM]) < 3:
            await asyncio.sleep(0.001)
            answers += await client.frames()
        if ends:
            assert [client.status(answers, number)[0] for number in (1, 3, 5)] == [EXHAUSTED] * 3
        else:
            assert not answers
            assert 0 <= admission.bytes.held - 3 * (len(bomb) - 5) < 2000, "as they came"

    asyncio.run(run())


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_large_compressed_messages_are_unpacked_in_order_beside_other_calls(compression: str) -> None:
    async def run() -> None:
        admission = Admission()
        client = await greeted_client(CallServer(admission), (4, 2**30))
        await client.send(frame(8, 0, 0, (2**30).to_bytes(4, "big")))
        large = random.Random(1).randbytes(1000) * 3000
        pack = gzip.compress if compression == "gzip" else zlib.compress
        packed = message(pack(large), compressed=1)
        header = (b"grpc-encoding", compression.encode())
        answers = await client.send(open_call(1, BIDI, header) + data(1, packed))
        answers += await client.send(data(1, message(b"behind it"), END_STREAM))
        answers += await client.send(unary_call(3, b"beside it"))
        assert content(answers, 3) == message(b"beside it")
        while not any(found.flags & END_STREAM and found.number == 1 for found in answers):
            await asyncio.sleep(0.001)
            answers += await client.frames()
        assert content(answers, 1) == message(large) + message(b"behind it")
        client.transport.lose()
        assert admission.bytes.held == 0

    asyncio.run(run())


@pytest.mark.parametrize("path", [ECHO, BIDI])
@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_a_compressed_message_waits_for_few_pieces_of_another_client(path: str, compression: str) -> None:
    pack = gzip.compress if compression == "gzip" else zlib.compress
    header = (b"grpc-encoding", compression.encode())
    large = random.Random(1).randbytes(1000) * 3000

    async def run() -> None:
        server = CallServer(Admission(request_bytes=256 * MIB))
        crowd = await greeted_client(server, (4, 2**30), address="10.0.0.1")
        alice = await greeted_client(server, (4, 2**30), address="10.0.0.2")
        for client in (crowd, alice):
            await client.send(frame(8, 0, 0, (2**30).to_bytes(4, "big")))
        bomb = message(pack(bytes(MIB)), compressed=1)
        calls = (open_call(number, ECHO, header) + data(number, bomb, END_STREAM) for number in range(1, 121, 2))
        bursts = await crowd.send(b"".join(calls))
        packed = message(pack(large), compressed=1)
        answers = await alice.send(open_call(1, path, header) + data(1, packed, END_STREAM))
        while not any(found.flags & END_STREAM for found in answers):
            await asyncio.sleep(0)
            answers += await alice.frames()
        assert content(answers, 1) == message(large)
        bursts += await crowd.frames()
        assert sum(found.flags & END_STREAM for found in bursts) < 30, "half of them still wait"

    asyncio.run(run())


@pytest.mark.parametrize("end", ["lost", "reset"])
def test_half_unpacked_messages_leave_no_memory_behind(end: str) -> None:
    """At once, not at a garbage collection, of which nobody knows when it comes."""
    bomb = message(gzip.compress(bytes(32 * MIB)), compressed=1)

    async def run() -> None:
        admission = Admission(request_bytes=256 * MIB)
        client = await greeted_client(CallServer(admission), (4, 2**30))
        before = _resident_bytes()
        calls = (open_call(number, ECHO, GZIP) + data(number, bomb, END_STREAM) for number in range(1, 21, 2))
        await client.send(b"".join(calls))
        while admission.bytes.held < 40 * MIB:
            await asyncio.sleep(0)
        if end == "lost":
            client.transport.lose()
        else:
            await client.send(b"".join(reset(number) for number in range(1, 21, 2)))
        while admission.bytes.held or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        assert _resident_bytes() - before < 20 * MIB

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("size", [100, 300_000])
@pytest.mark.parametrize("damage", ["no gzip", "cut off", "changed"])
def test_a_damaged_compressed_message_ends_its_call_alone(size: int, damage: str) -> None:
    packed = bytearray(gzip.compress(random.Random(2).randbytes(size)))
    if damage == "no gzip":
        packed[:2] = b"no"
    elif damage == "cut off":
        del packed[-10:]
    else:
        packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)

    async def run() -> None:
        admission = Admission()
        client = await greeted_client(CallServer(admission))
        answers = await client.send(
            open_call(1, ECHO, GZIP) + data(1, message(bytes(packed), compressed=1), END_STREAM)
        )
        while not answers:
            await asyncio.sleep(0.001)
            answers += await client.frames()
        assert client.status(answers, 1) == (INTERNAL, "a message is no gzip")
        assert client.status(await client.send(unary_call(3, b"x")), 3) == (0, "")
        assert admission.bytes.held == 0

    asyncio.run(run())


@pytest.mark.parametrize("pieces", [0, 1, 7])
def test_padded_data_is_read_as_it_comes(pieces: int) -> None:
    async def run() -> None:
        client = await greeted_client()
        body = message(bytes(range(200)))
        padded = b"".join(
            frame(DATA, PADDED | (END_STREAM if at else 0), 1, bytes([pad]) + part + bytes(pad))
            for at, pad, part in ((0, 0, body[:3]), (0, 255, body[3:100]), (0, 9, b""), (1, 30, body[100:]))
        )
        answers = await client.send(open_call(1, ECHO) + padded + unary_call(3, b"next"), pieces)
        assert content(answers, 1) == body
        assert content(answers, 3) == message(b"next")

    run_in_simulated_time(run)


STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["open", "part", "end", "reset", "stream", "packed"])), max_size=25
)


@given(STEPS, st.booleans())
@settings(max_examples=examples(200))
def test_nothing_counts_once_the_client_is_gone(steps: list[tuple[int, str]], is_narrow: bool) -> None:
    packed = message(gzip.compress(bytes(2000)), compressed=1)

    async def run() -> None:
        admission = Admission(request_bytes=20_000)
        server = CallServer(admission, calls=5)
        client: Http2Client = await greeted_client(server, *([(4, 100)] if is_narrow else []))
        last, open_ = -1, dict[int, int]()
        for which, step in steps:
            if step in ("open", "stream", "packed"):
                last += 2
                open_[which] = last
                path = {"open": SLOW, "stream": BIDI, "packed": ECHO}[step]
                await client.send(open_call(last, path, GZIP) + (data(last, packed) if step == "packed" else b""))
            elif which in open_:
                number = open_[which]
                what = {"part": data(number, message(bytes(3000))[:2000]), "end": data(number, b"", END_STREAM)}
                await client.send(what.get(step) or reset(number))
        client.transport.lose()
        await asyncio.sleep(0)
        assert admission.bytes.held == 0
        assert admission.connections.held == 0
        assert server.server.calls_in_progress == 0

    run_in_simulated_time(run)


def test_addresses_of_one_ipv6_network_are_one_peer_and_those_of_ipv4_are_not() -> None:
    async def test() -> None:
        calls = CallServer()
        networks: dict[str, object] = {}
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"):
            client = Http2Client(calls.port, address)
            await client.greet()
            caller = client.connection.responses.caller
            assert caller is not None
            networks[address] = caller.calls
        assert networks["2001:db8::1"] is networks["2001:db8::2"]
        assert networks["::ffff:10.0.0.1"] is networks["10.0.0.1"]
        assert len(set(map(id, networks.values()))) == 4

    run_in_simulated_time(test)
