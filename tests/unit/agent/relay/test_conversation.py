"""A tunnel's conversation with a relay, in memory: offers and asks, answered, refused, out of turn or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.wire import (
    ACCEPTED,
    ASK,
    OFFER,
    OTHER_DEPLOYMENT,
    PING,
    PONG,
    START,
    STARTED,
    Greeting,
    refusal,
)
from jellybean_agent.tunnel.conversation import Conversation, OtherDeploymentError
from tests.support.http2_client import settle
from tests.support.simulated_time import run_in_simulated_time
from tests.unit.agent.relay.memory_endpoint import MemoryEndpoint


class Talk:
    """A tunnel's conversation with a relay that a test writes."""

    def __init__(self, silence_s: float = 25.0, deployment: str = "") -> None:
        self.relay = MemoryEndpoint()
        self.conversation = Conversation(self.relay.endpoint, silence_s, deployment)
        self.accepted = 0

    def _accept(self) -> None:
        self.accepted += 1

    async def offer(self) -> asyncio.Task[bool]:
        task = asyncio.create_task(self.conversation.offer(self._accept))
        await settle()
        return task

    async def ask(self, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self.conversation.ask(name))
        await settle()
        return task


def talking(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    run_in_simulated_time(run)


def test_an_offer_is_accepted_pinged_and_started() -> None:
    async def test() -> None:
        talk = Talk(deployment="blue")
        offering = await talk.offer()
        assert talk.relay.take() == Greeting(OFFER, "", "blue").encode()
        assert talk.accepted == 0
        talk.relay.receive(ACCEPTED + PING)
        assert (talk.accepted, talk.relay.take()) == (1, PONG)
        for _ in range(5):
            await asyncio.sleep(20.0)
            talk.relay.receive(PING)
            assert talk.relay.take() == PONG
        talk.relay.receive(START + b"early")
        assert not talk.relay.transport.is_reading
        talk.relay.receive(b" bytes")
        assert await offering
        assert talk.conversation.early == b"early bytes"
        await asyncio.sleep(100.0)
        assert not talk.relay.transport.is_closing()

    talking(test)


@pytest.mark.parametrize("count", [2, 1000, 2**17])
def test_pings_that_come_together_have_one_answer(count: int) -> None:
    """Else a relay that sends them without end, and reads nothing, would fill the tunnel's memory."""

    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        talk.relay.take()
        talk.relay.receive(ACCEPTED + PING * count)
        assert talk.relay.take() == PONG
        talk.relay.receive(PING * count + START)
        assert talk.relay.take() == PONG
        assert await offering

    talking(test)


def test_a_relay_that_pings_and_reads_no_answer_is_left() -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        talk.relay.receive(ACCEPTED)
        talk.relay.endpoint.pause_writing()  # as the transport says that too much is unread
        with pytest.raises(TransientError, match="does not read"):
            await offering

    talking(test)


def test_a_peer_that_is_asked_for() -> None:
    async def test() -> None:
        talk = Talk()
        asking = await talk.ask("edge-2")
        assert talk.relay.take() == Greeting(ASK, "edge-2").encode()
        talk.relay.receive(STARTED + b"hello")
        await asking
        assert talk.conversation.early == b"hello"

    talking(test)


@pytest.mark.parametrize("kind", ["offer", "ask"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusal("no room"), "the relay refuses: no room"),
        (b"x", "it speaks another protocol"),
        (PING, "it speaks another protocol"),
        (None, "it ended the connection"),
    ],
)
def test_a_relay_that_refuses_or_says_something_else(kind: str, answer: bytes | None, reason: str) -> None:
    async def test() -> None:
        talk = Talk()
        task: Any = await (talk.offer() if kind == "offer" else talk.ask("x"))
        if answer is None:
            talk.relay.transport.end()
        elif len(answer) > 3:
            talk.relay.receive(answer[:3])
            assert not task.done()
            talk.relay.receive(answer[3:])
        else:
            talk.relay.receive(answer)
        with pytest.raises(TransientError, match=f"^{reason}$"):
            await task
        assert talk.relay.transport.is_aborted

    talking(test)


@pytest.mark.parametrize("answer", [ACCEPTED + ACCEPTED, ACCEPTED + STARTED, ACCEPTED + OTHER_DEPLOYMENT, START])
def test_answers_out_of_turn_end_an_offer(answer: bytes) -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        talk.relay.receive(answer)
        with pytest.raises(TransientError, match="it speaks another protocol"):
            await offering

    talking(test)


@pytest.mark.parametrize("kind", ["offer", "ask"])
def test_a_relay_of_another_deployment(kind: str) -> None:
    async def test() -> None:
        talk = Talk()
        task: Any = await (talk.offer() if kind == "offer" else talk.ask("x"))
        talk.relay.receive(OTHER_DEPLOYMENT)
        with pytest.raises(OtherDeploymentError):
            await task

    talking(test)


def test_an_accepted_offer_that_the_relay_ends_is_no_failure() -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        talk.relay.receive(ACCEPTED)
        talk.relay.transport.end()
        assert not await offering
        assert talk.relay.transport.is_closing()

    talking(test)


def test_a_silent_or_lost_relay_ends_an_offer() -> None:
    async def test() -> None:
        silent, lost = Talk(), Talk()
        offering, other = await silent.offer(), await lost.offer()
        for talk in (silent, lost):
            talk.relay.receive(ACCEPTED)
        lost.relay.transport.lose(ConnectionResetError("reset"))
        with pytest.raises(TransientError, match="reset"):
            await other
        await asyncio.sleep(24.9)
        assert not offering.done()
        await asyncio.sleep(0.2)
        with pytest.raises(TransientError, match="it was silent for 25 s"):
            await offering
        gone = MemoryEndpoint()
        gone.transport.lose()
        conversation = Conversation(gone.endpoint, 25.0)
        with pytest.raises(TransientError, match="it closed the connection"):
            await conversation.ask("x")

    talking(test)


def test_an_offer_that_is_given_up_is_reset() -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        offering.cancel()
        await settle()
        assert talk.relay.transport.is_aborted

    talking(test)
