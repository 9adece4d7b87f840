"""The receiving end of streams: what a sender may not do, over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from jellybean_agent import DELIVER_METHOD, Inboxes, OpenPolicy, agent_service_handler, make_server
from jellybean_agent.security.identity import REPLY_KEY, SENDER_KEY
from jellybean_agent.transport.inboxes import INITIAL_CREDIT, MAX_STREAMS
from jellybean_protos.agent.v1 import agent_pb2


def ended(talk: Callable[[Any], Awaitable[Any]], received: list[agent_pb2.Message]) -> tuple[grpc.StatusCode, str]:
    """What the call that `talk` returns ends with; the receiver takes messages but is full."""

    async def run() -> tuple[grpc.StatusCode, str]:
        inboxes = Inboxes(lambda message, _: received.append(message), lambda _: True)
        server = make_server(OpenPolicy())
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            deliver: Any = channel.stream_stream(DELIVER_METHOD, response_deserializer=agent_pb2.Credit.FromString)
            calls: list[Any] = []  # kept: older grpcio cancels a call that nobody has

            def call_with(*more: tuple[str, str]) -> Any:
                calls.append(deliver(metadata=((SENDER_KEY, "edge-1"), *more), timeout=20))
                return calls[-1]

            call = await talk(call_with)
            found = await call.code(), await call.details()
        await server.stop(0)
        return found

    return asyncio.run(run())


def test_more_messages_than_there_was_credit_for() -> None:
    message, received = agent_pb2.Message(request_id="r").SerializeToString(), []
    failure = agent_pb2.Message(request_id="r", failure=agent_pb2.Failure()).SerializeToString()

    async def talk(deliver: Any) -> Any:
        call = deliver()
        assert (await call.read()).messages == INITIAL_CREDIT
        for data in [failure, *[message] * INITIAL_CREDIT, failure, message]:  # failures need none
            await call.write(data)
        return call

    status, reason = ended(talk, received)
    assert (status, "no credit" in reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert len(received) == INITIAL_CREDIT + 2


def test_bytes_that_are_no_message() -> None:
    async def talk(deliver: Any) -> Any:
        call = deliver()
        await call.read()
        await call.write(b"\xff\xff")
        return call

    assert ended(talk, []) == (grpc.StatusCode.INVALID_ARGUMENT, "the bytes are no message")


def test_more_streams_than_a_sender_needs() -> None:
    async def talk(deliver: Any) -> Any:
        calls = [deliver() for _ in range(MAX_STREAMS)]
        for call in calls:
            await call.read()
        return deliver()

    assert ended(talk, []) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "8 streams of 'edge-1' are open, which is the most")


def test_a_key_of_a_gateway_that_nobody_has_checked_gives_no_more_streams() -> None:
    """As of a worker that calls a gateway, which has no use for it."""

    async def talk(deliver: Any) -> Any:
        for number in range(MAX_STREAMS):
            await deliver((REPLY_KEY, f"{number:08x}")).read()
        return deliver((REPLY_KEY, "f" * 8))

    assert ended(talk, []) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "8 streams of 'edge-1' are open, which is the most")
