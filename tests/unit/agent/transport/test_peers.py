"""The sending end of a stream, whose receiver breaks off or says nothing: what is told, what is sent again."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from jellybean_agent import Peer, PeerSettings, Transport
from jellybean_agent.transport.outgoing_queue import OutgoingMessage
from jellybean_agent.transport.peers import OnLost
from jellybean_agent.transport.streams import _GrpcCall
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.waiting import wait_until_async

PLAIN = Transport(insecure=True)
SETTINGS = PeerSettings("a-1", PLAIN)
FIRST_CREDIT = 64
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (missing from the type stubs)


class Receiver:
    """Takes `takes` messages per stream, gives credit back for `credits` of them, then does as `then` says.

    A stream is broken only once the sender has noted its credit: gRPC may drop what came just before an error.
    """

    def __init__(self, takes: int, credits: int, then: str) -> None:
        self.takes, self.credits, self.then = takes, credits, then
        self.got: list[agent_pb2.Message] = []
        self.streams = 0
        self.credit_noted = 0

    def note_credit(self, _name: str, credit: agent_pb2.Credit) -> None:
        self.credit_noted += credit.messages

    async def deliver(self, _requests: Any, context: Any) -> None:
        self.streams += 1
        await context.write(agent_pb2.Credit(messages=FIRST_CREDIT))
        for taken in range(self.takes):
            message = await context.read()
            if message is _EOF:
                return
            self.got.append(message)
            if taken < self.credits:
                await context.write(agent_pb2.Credit(messages=1))
        if self.then == "break":
            granted = self.streams * (FIRST_CREDIT + self.credits)
            await wait_until_async(lambda: self.credit_noted >= granted)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
        await asyncio.sleep(60)


def with_receiver(receiver: Receiver, test: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        server = grpc.aio.server()
        deliver = grpc.stream_stream_rpc_method_handler(
            receiver.deliver, agent_pb2.Message.FromString, agent_pb2.Credit.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": deliver})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await test(f"127.0.0.1:{port}")
        finally:
            await server.stop(0)

    asyncio.run(run())


def message(number: int) -> agent_pb2.Message:
    tensor = agent_pb2.Tensor(dtype="uint8", shape=[1], data=bytes([number]))
    return agent_pb2.Message(request_id=str(number), downstream="double", tensor=tensor)


def names(messages: Sequence[agent_pb2.Message]) -> list[str]:
    return [found.request_id for found in messages]


def noting(lost: list[tuple[str, list[str]]]) -> OnLost:
    return lambda _name, why, messages: lost.append((why, names(messages)))


def test_what_may_not_have_arrived_is_told_when_the_stream_breaks() -> None:
    receiver = Receiver(takes=4, credits=2, then="break")
    lost: list[tuple[str, list[str]]] = []

    async def test(address: str) -> None:
        peer = Peer("b-1", address, SETTINGS, on_lost=noting(lost), on_credit=receiver.note_credit).start()
        for number in range(4):
            peer.put(message(number))
        await wait_until_async(lambda: bool(lost))
        ((reason, lost_names),) = lost
        assert (reason, lost_names[-2:]) == ("broken off", ["2", "3"])
        assert len(lost_names) <= 4, "the last credits may break off with the stream"
        assert (peer.queued, names(receiver.got)) == (0, ["0", "1", "2", "3"])
        await peer.close()

    with_receiver(receiver, test)


def test_one_that_keeps_sends_again_what_may_not_have_arrived_whole() -> None:
    receiver = Receiver(takes=4, credits=2, then="break")

    async def test(address: str) -> None:
        settings = replace(SETTINGS, resends=True)
        peer = Peer("", address, settings, on_lost=lambda *_: None, on_credit=receiver.note_credit).start()
        for number in range(3):
            peer.put(message(number))
        bare = agent_pb2.Message(request_id="3", tensor=agent_pb2.Tensor(dtype="uint8", shape=[1]))
        peer.put(bare, data=memoryview(b"\3"))
        await wait_until_async(lambda: receiver.streams == 2 and len(receiver.got) == 6)
        assert names(receiver.got) == ["0", "1", "2", "3", "2", "3"]
        assert [found.tensor.data for found in receiver.got[4:]] == [b"\2", b"\3"]
        await wait_until_async(lambda: peer.queued == 0)
        await peer.close()

    with_receiver(receiver, test)


def test_a_message_acknowledged_before_its_write_returned_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver(takes=3, credits=2, then="break")
    write, began = _GrpcCall.write, 0

    async def write_that_returns_late(call: _GrpcCall, outgoing: OutgoingMessage) -> None:
        nonlocal began
        began += 1
        await write(call, outgoing)
        if began <= receiver.credits:
            await wait_until_async(lambda: receiver.credit_noted >= FIRST_CREDIT + began)

    async def test(address: str) -> None:
        settings = replace(SETTINGS, resends=True)
        peer = Peer("", address, settings, on_lost=lambda *_: None, on_credit=receiver.note_credit).start()
        for number in range(3):
            peer.put(message(number))
        await wait_until_async(lambda: receiver.streams == 2 and peer.queued == 0)
        assert names(receiver.got) == ["0", "1", "2", "2"]
        await peer.close()

    monkeypatch.setattr(_GrpcCall, "write", write_that_returns_late)
    with_receiver(receiver, test)


def test_a_receiver_that_says_nothing_is_given_up() -> None:
    receiver = Receiver(takes=1, credits=0, then="sleep")
    lost: list[tuple[str, list[str]]] = []

    async def test(address: str) -> None:
        settings = replace(SETTINGS, silent_s=0.5)
        peer = Peer("b-1", address, settings, on_lost=lambda _name, why, what: lost.append((why, names(what)))).start()
        began_s = time.monotonic()
        peer.put(message(7))
        await wait_until_async(lambda: bool(lost))
        assert time.monotonic() - began_s >= 0.5
        assert re.match(r"nothing was heard from it for \d+\.\d", lost[0][0])
        assert lost[0][1] == ["7"]
        await peer.close()

    with_receiver(receiver, test)


def test_what_is_too_late_or_forgotten_does_not_leave_and_the_rest_says_what_time_is_left() -> None:
    receiver = Receiver(takes=9, credits=9, then="sleep")

    async def test(address: str) -> None:
        peer = Peer("b-1", address, SETTINGS, on_lost=lambda *_: None).start()
        now_s = time.monotonic()
        peer.put(message(0), until_s=now_s - 1.0)
        peer.put(message(1), now_s + 0.2, now_s + 5.0)
        peer.put(message(2), now_s + 0.1)
        peer.put(message(3), now_s + 60.0, now_s + 9.0)  # it crosses its link too late
        peer.put(message(4), now_s + 0.1)
        peer.forget("4")
        await wait_until_async(lambda: len(receiver.got) == 2)
        assert names(receiver.got) == ["2", "1"]
        assert receiver.got[0].left_s == 0.0  # no deadline
        assert 0.0 < receiver.got[1].left_s <= 4.8
        assert (peer.expired, peer.queued) == (1, 1)
        peer.expire(now_s + 9.0)
        assert (peer.expired, peer.queued) == (2, 0)
        peer.expire(math.inf)
        await peer.close()

    with_receiver(receiver, test)


def test_a_server_on_a_unix_socket_that_speaks_grpc_only_is_called_over_grpc(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    async def run() -> None:
        receiver, lost = Receiver(takes=9, credits=9, then="sleep"), list[tuple[str, list[str]]]()
        server = grpc.aio.server()
        deliver = grpc.stream_stream_rpc_method_handler(
            receiver.deliver, agent_pb2.Message.FromString, agent_pb2.Credit.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": deliver})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{tmp_path}/s")
        await server.start()
        peer = Peer("b-1", f"unix:{tmp_path}/s", SETTINGS, on_lost=noting(lost)).start()
        peer.put(message(1))
        peer.put(message(2))
        await wait_until_async(lambda: len(receiver.got) == 2)
        assert (names(receiver.got), lost) == (["1", "2"], [])
        peer.end()
        await peer.close()
        await server.stop(0)

    asyncio.run(run())
