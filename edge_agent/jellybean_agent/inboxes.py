"""The receiving end of Deliver streams: hands messages over and credit back.

Credit also says what arrived, and every half second at least that this process lives. It is withheld while the receiver
says that it is full. Work itself never waits for credit of others, so a cycle of
full workers cannot stop; memory is bounded by the gateway's requests in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from jellybean_agent.errors import AgentError, InvalidInputError, StatusError, status_of
from jellybean_agent.identity import SENDER_KEY
from jellybean_protos.agent.v1 import agent_pb2

INITIAL_CREDIT = 64
HEARTBEAT_S = 0.5
MAX_STREAMS = 8  # of one sender: it needs one, and a second while it moves to another connection
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (missing from the type stubs)
_LAST_WRITE_S = 5.0
_GRANT = 16  # credit goes back in lots of this many


@dataclass(eq=False, slots=True)
class _Inbox:
    sender: str
    owed: int = INITIAL_CREDIT
    granted: int = 0  # messages that may still come
    over: bool = False  # no more credit
    wake: asyncio.Event = field(default_factory=asyncio.Event)


def deliver_handler(deliver: Callable[[Any, Any], Any], **others: Any) -> Any:
    """The Agent service of a server: Deliver, and handlers of other methods.

    Messages come as bytes to whoever reads them, so that bytes which are no message are refused in our words.
    """
    handler = grpc.stream_stream_rpc_method_handler(deliver, response_serializer=agent_pb2.Credit.SerializeToString)
    return grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": handler, **others})


def _parsed(data: bytes) -> agent_pb2.Message:
    try:
        return agent_pb2.Message.FromString(data)
    except DecodeError as error:
        raise InvalidInputError("the bytes are no message") from error


class Inboxes:
    """All incoming streams of this process. `receive` gets each message; an AgentError of it ends the stream."""

    def __init__(self, receive: Callable[[agent_pb2.Message], None], is_full: Callable[[], bool]) -> None:
        self._receive, self._is_full = receive, is_full
        self._open: set[_Inbox] = set()
        self._draining = False

    def senders(self) -> frozenset[str]:
        """Who has a stream to here."""
        return frozenset(inbox.sender for inbox in self._open)

    def release(self) -> None:
        """The receiver is no longer full: give back what is owed."""
        for inbox in self._open:
            if inbox.owed >= _GRANT:
                inbox.wake.set()

    def announce_draining(self) -> None:
        """Tell every sender that this process is about to leave."""
        self._draining = True
        for inbox in self._open:
            inbox.wake.set()

    async def deliver(self, _requests: Any, context: Any) -> None:
        """Handler of the Deliver RPC; `deliver_handler` makes a server use it."""
        sender = next((value for key, value in context.invocation_metadata() or () if key == SENDER_KEY), "?")
        inbox = _Inbox(str(sender))
        if sum(inbox.sender == other.sender for other in self._open) >= MAX_STREAMS:
            reason = f"{MAX_STREAMS} streams of {inbox.sender[:60]!r} are open, which is the most"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        inbox.wake.set()
        self._open.add(inbox)
        granter = asyncio.create_task(self._grant(inbox, context))
        refusal: AgentError | None = None
        try:
            while (data := await context.read()) is not _EOF:
                message = _parsed(data)
                if not message.HasField("failure"):  # which needs no credit
                    inbox.owed += 1
                    inbox.granted -= 1
                if inbox.granted < 0:
                    raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "there was no credit for the message")
                self._receive(message)
                if inbox.owed >= _GRANT and not self._is_full():
                    inbox.wake.set()
        except AgentError as error:
            refusal = error
        finally:
            self._open.discard(inbox)
            inbox.over = True  # a write that is cut off would leave the call without a status
            inbox.wake.set()
            await asyncio.wait({granter}, timeout=_LAST_WRITE_S)
            granter.cancel()
            await asyncio.gather(granter, return_exceptions=True)
        if refusal is not None:
            await context.abort(status_of(refusal), str(refusal))

    async def _grant(self, inbox: _Inbox, context: Any) -> None:
        while not inbox.over:
            due = True
            try:
                await asyncio.wait_for(inbox.wake.wait(), HEARTBEAT_S)
            except TimeoutError:
                due = not self._is_full()
            if inbox.over:
                return
            inbox.wake.clear()
            owed, inbox.owed = (inbox.owed, 0) if due else (0, inbox.owed)
            inbox.granted += owed
            await context.write(agent_pb2.Credit(messages=owed, draining=self._draining))
