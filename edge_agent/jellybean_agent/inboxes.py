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

from jellybean_agent.errors import AgentError, status_of
from jellybean_agent.identity import SENDER_KEY
from jellybean_protos.agent.v1 import agent_pb2

INITIAL_CREDIT = 64
HEARTBEAT_S = 0.5
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (missing from the type stubs)
_GRANT = 16  # credit goes back in lots of this many


@dataclass(eq=False, slots=True)
class _Inbox:
    sender: str
    owed: int = INITIAL_CREDIT
    wake: asyncio.Event = field(default_factory=asyncio.Event)


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
        """Handler of the Deliver RPC."""
        sender = next((value for key, value in context.invocation_metadata() or () if key == SENDER_KEY), "?")
        inbox = _Inbox(str(sender))
        inbox.wake.set()
        self._open.add(inbox)
        granter = asyncio.create_task(self._grant(inbox, context))
        try:
            while (message := await context.read()) is not _EOF:
                inbox.owed += not message.HasField("failure")  # which needs no credit
                self._receive(message)
                if inbox.owed >= _GRANT and not self._is_full():
                    inbox.wake.set()
        except AgentError as error:
            await context.abort(status_of(error), str(error))
        finally:
            self._open.discard(inbox)
            granter.cancel()
            await asyncio.gather(granter, return_exceptions=True)

    async def _grant(self, inbox: _Inbox, context: Any) -> None:
        while True:
            due = True
            try:
                await asyncio.wait_for(inbox.wake.wait(), HEARTBEAT_S)
            except TimeoutError:
                due = not self._is_full()
            inbox.wake.clear()
            owed, inbox.owed = (inbox.owed, 0) if due else (0, inbox.owed)
            await context.write(agent_pb2.Credit(messages=owed, draining=self._draining))
