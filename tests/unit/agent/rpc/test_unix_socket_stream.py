"""Deliver over the fast lane: the same promises as over gRPC, and what nobody may do to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean.serving import open_authority
from jellybean_agent import (
    DELIVER_METHOD,
    CertificateFolder,
    Identity,
    Inboxes,
    InvalidInputError,
    Peer,
    PeerSettings,
    Policy,
    Role,
    RpcServer,
    StreamSource,
    Transport,
    agent_service_handler,
)
from jellybean_agent.rpc import unix_socket_frames as frames
from jellybean_agent.rpc.unix_socket import UnixSocketConnection
from jellybean_agent.security.identity import SENDER_KEY
from jellybean_agent.transport.inboxes import INITIAL_CREDIT, MAX_STREAMS
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.waiting import wait_until_async

PLAIN = Transport("w", insecure=True)
Received = list[agent_pb2.Message]


class Receiver:
    """A process that messages are delivered to."""

    def __init__(self, folder: Path, link: str = "unix") -> None:
        self.got: Received = []
        self.is_full = False
        self.inboxes = Inboxes(self._take, lambda _: self.is_full)
        ours, self.theirs = transports(folder) if link == "tls" else (PLAIN, PLAIN)
        self.server: RpcServer = ours.server(Policy("w", ("a-1",)))
        self.server.add_generic_rpc_handlers((agent_service_handler(),))
        self.server.add_raw_stream(DELIVER_METHOD, self.inboxes.deliver_raw)
        folder.chmod(0o700)
        at = f"unix:{folder}/s" if link == "unix" else "127.0.0.1:0"
        port = ours.bind(self.server, at)
        self.address = at if link == "unix" else f"127.0.0.1:{port}"

    def _take(self, message: agent_pb2.Message, _source: StreamSource) -> None:
        if message.upstream == "wrong":
            raise InvalidInputError("that is wrong")
        if message.upstream == "worse":
            raise ZeroDivisionError
        self.got.append(message)


def transports(folder: Path) -> tuple[Transport, Transport]:
    """The receiver's and the sender's, with certificates of one authority."""
    authority = open_authority(folder / "ca")
    for name in ("a-1", "b-1"):
        authority.equip(folder / name, Identity("w", Role.AGENT, name))
    return Transport("w", CertificateFolder(folder / "b-1")), Transport("w", CertificateFolder(folder / "a-1"))


def run(folder: Path, test: Callable[[Receiver], Awaitable[None]], link: str = "unix") -> None:
    async def ran() -> None:
        wrong: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        receiver = Receiver(folder, link)
        await receiver.server.start()
        try:
            await asyncio.wait_for(test(receiver), 40)
        finally:
            await receiver.server.stop(0.1)
        assert not wrong

    asyncio.run(ran())


def peer_of(
    receiver: Receiver,
    lost: list[tuple[str, list[str]]],
    on_credit: Callable[[str, agent_pb2.Credit], None] | None = None,
    **more: Any,
) -> Peer:
    def note(_name: str, why: str, messages: Any) -> None:
        lost.append((why, [message.request_id for message in messages]))

    settings = PeerSettings("a-1", receiver.theirs, **more)
    return Peer("b-1", receiver.address, settings, on_lost=note, on_credit=on_credit).start()


def message(number: int, size: int = 4, upstream: str = "x") -> agent_pb2.Message:
    tensor = agent_pb2.Tensor(dtype="uint8", shape=[size], data=bytes(size))
    return agent_pb2.Message(request_id=str(number), upstream=upstream, downstream="double", tensor=tensor)


@pytest.mark.parametrize("link", ["unix", "tls", "tcp"])
def test_all_messages_arrive_in_order_whatever_their_size(tmp_path: Path, link: str) -> None:
    """Over TCP without TLS by gRPC."""

    async def test(receiver: Receiver) -> None:
        lost: list[tuple[str, list[str]]] = []
        peer = peer_of(receiver, lost)
        for number in range(300):
            found, data = message(number, (1 << number % 22) if number % 50 == 0 else number), b""
            if number % 3 == 0:  # its bytes beside it
                data, found.tensor.data = found.tensor.data, b""
            peer.put(found, data=memoryview(data))
        await wait_until_async(lambda: len(receiver.got) == 300)
        assert [found.request_id for found in receiver.got] == [str(number) for number in range(300)]
        assert all(found.tensor.data == bytes(found.tensor.shape[0]) for found in receiver.got)
        assert (peer.queued, lost) == (0, [])
        (connection,) = receiver.server.ports[0].connections
        assert isinstance(connection, UnixSocketConnection) == (link != "tcp")
        peer.put(agent_pb2.Message(request_id="7", failure=agent_pb2.Failure(reason="given up")))
        peer.end()
        await wait_until_async(lambda: not receiver.inboxes.senders())
        assert receiver.got[-1].HasField("failure")
        await peer.close()

    run(tmp_path, test, link)


@pytest.mark.parametrize("link", ["unix", "tls"])
def test_a_full_receiver_holds_its_sender_up_and_one_that_drains_says_so(tmp_path: Path, link: str) -> None:
    async def test(receiver: Receiver) -> None:
        credits: list[agent_pb2.Credit] = []
        receiver.is_full = True
        peer = peer_of(receiver, [], on_credit=lambda _name, credit: credits.append(credit))
        for number in range(INITIAL_CREDIT + 20):
            peer.put(message(number))
        await wait_until_async(lambda: len(receiver.got) == INITIAL_CREDIT)
        await wait_until_async(lambda: len(credits) > 1)  # a heartbeat gives none
        assert (len(receiver.got), peer.queued, credits[-1].messages) == (INITIAL_CREDIT, 20, 0)
        receiver.is_full = False
        receiver.inboxes.has_capacity()
        await wait_until_async(lambda: len(receiver.got) == INITIAL_CREDIT + 20)
        receiver.inboxes.announce_draining()
        await wait_until_async(lambda: credits[-1].draining)
        await peer.close()

    run(tmp_path, test, link)


@pytest.mark.parametrize("link", ["unix", "tls"])
@pytest.mark.parametrize("upstream", ["wrong", "worse"])
def test_a_refused_message_ends_its_stream_with_a_reason_and_the_next_goes_on(
    tmp_path: Path, link: str, upstream: str
) -> None:
    async def test(receiver: Receiver) -> None:
        lost: list[tuple[str, list[str]]] = []
        peer = peer_of(receiver, lost)
        peer.put(message(0))
        peer.put(message(1, upstream=upstream))
        await wait_until_async(lambda: bool(lost))
        assert lost == [("that is wrong" if upstream == "wrong" else "Unexpected ZeroDivisionError", ["0", "1"])]
        peer.put(message(2))
        await wait_until_async(lambda: len(receiver.got) == 2)
        await peer.close()

    run(tmp_path, test, link)


@pytest.mark.parametrize("link", ["unix", "tls"])
def test_a_server_that_dies_and_one_that_stands_still_are_noticed(tmp_path: Path, link: str) -> None:
    async def test(receiver: Receiver) -> None:
        lost: list[tuple[str, list[str]]] = []
        peer = peer_of(receiver, lost, silent_s=1.5)
        receiver.is_full = True
        peer.put(message(0))
        await wait_until_async(lambda: bool(receiver.got))
        for connection in list(receiver.server.ports[0].connections):
            transport: Any = connection
            transport._out.transport.abort()
        await wait_until_async(lambda: bool(lost))
        assert lost.pop() == ("it closed the connection", ["0"])
        peer.put(message(1))
        await wait_until_async(lambda: len(receiver.got) == 2)
        for inbox in receiver.inboxes._open:
            inbox.heartbeat.cancel()  # it says nothing from now on
        await wait_until_async(lambda: bool(lost))
        assert lost[0][0].startswith("nothing was heard from it for ")
        assert lost[0][1] == ["1"]
        await peer.close()

    run(tmp_path, test, link)


def test_streams_of_no_method_and_too_many_and_too_much_are_refused(tmp_path: Path) -> None:
    def opening(number: int, method: str = DELIVER_METHOD) -> bytes:
        metadata = b'{"%s": "edge-1", "jellybean-protocol": "2"}' % SENDER_KEY.encode()
        head = frames.HEAD.pack(0.0, len(method), len(metadata)) + method.encode() + metadata
        return frames.FRAME.pack(len(head) + 5, number, frames.OPEN) + head

    def said(number: int, data: bytes) -> bytes:
        return frames.FRAME.pack(len(data) + 5, number, frames.MESSAGE) + data

    async def answers(
        receiver: Receiver, data: bytes, greeting: bytes = frames.STREAMS_GREETING
    ) -> list[tuple[int, int, bytes]]:
        reader, writer = await asyncio.open_unix_connection(receiver.address.removeprefix("unix:"))
        writer.write(greeting + data)
        writer.write_eof()
        told = (await asyncio.wait_for(reader.read(), 20)).removeprefix(greeting)
        writer.close()
        found = []
        while told:
            size, number, kind = frames.FRAME.unpack_from(told)
            found.append((number, kind, told[frames.FRAME.size : 4 + size]))
            told = told[4 + size :]
        return found

    async def test(receiver: Receiver) -> None:
        refused = await answers(receiver, opening(1, "/no/Method"))
        assert [(number, kind) for number, kind, _ in refused] == [(1, frames.FAILED)]
        assert refused[0][2][0] == grpc.StatusCode.UNIMPLEMENTED.value[0]
        many = await answers(receiver, b"".join(map(opening, range(1, MAX_STREAMS + 2))))
        assert [kind for _, kind, _ in many].count(frames.FAILED) == 1
        assert b"8 streams of 'edge-1' are open" in many[-1][2]
        nonsense = await answers(receiver, opening(1) + said(1, b"\xff\xff") + said(1, b"more"))
        assert nonsense[-1][2][1:] == b"the bytes are no message"
        receiver.is_full = True
        much = await answers(receiver, opening(1) + said(1, message(1).SerializeToString()) * (INITIAL_CREDIT + 1))
        assert much[-1][2][1:] == b"there was no credit for the message"
        assert await answers(receiver, opening(1), frames.GREETING) == []  # that greeting knows no streams
        left = await answers(receiver, opening(1) + struct.pack("<IIB", 5, 1, frames.END))
        assert left[-1][:2] == (1, frames.END)
        await wait_until_async(lambda: not receiver.inboxes.senders() and not receiver.server.calls_in_progress)

    run(tmp_path, test)
