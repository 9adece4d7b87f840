"""The receiving end of Deliver streams: hands messages over and credit back.

Credit also says what arrived, and every half second at least that this process lives. It is withheld while the receiver
says that it is full. Work itself never waits for credit of others, so a cycle of
full workers cannot stop; memory is bounded by the gateway's requests in hand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from jellybean_agent.errors import AgentError, InvalidInputError, StatusError, status_of
from jellybean_agent.rpc.calls import EOF, Receiver, RpcCall
from jellybean_agent.security.identity import SENDER_KEY
from jellybean_agent.transport.message_wire import Data, apart
from jellybean_protos.agent.v1 import agent_pb2

INITIAL_CREDIT = 64
HEARTBEAT_S = 0.5
MAX_STREAMS = 8  # of one sender: it needs one, and a second while it moves to another connection
_LAST_WRITE_S = 5.0
_GRANT = 16  # credit goes back in lots of this many
Say = Callable[[agent_pb2.Credit], None]
Refuse = Callable[[AgentError], None]


class _Inbox:
    """One stream: what came, what credit goes back. `say` sends credit, `refuse` ends the stream."""

    def __init__(self, inboxes: Inboxes, sender: str, say: Say, refuse: Refuse) -> None:
        self._inboxes, self.sender, self._say, self._refuse = inboxes, sender, say, refuse
        self._owed, self._granted = INITIAL_CREDIT, 0  # messages that may still come: not told yet, and told
        self._loop = asyncio.get_running_loop()
        self._said_s = self._loop.time()
        self.grant()
        self._beating = self._loop.call_later(HEARTBEAT_S, self._beat)

    def received(self, data: bytes) -> None:
        try:
            self._take(*_parsed(data, are_apart=self._inboxes.are_apart))
        except AgentError as error:
            self.close()
            self._refuse(error)

    def _take(self, message: agent_pb2.Message, *data: Data) -> None:
        if not message.HasField("failure"):  # which needs no credit
            self._owed += 1
            self._granted -= 1
        if self._granted < 0:
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "there was no credit for the message")
        self._inboxes.receive(message, *data)
        if self._owed >= _GRANT and not self._inboxes.is_full():
            self.grant()

    def room(self) -> None:
        """The receiver is no longer full."""
        if self._owed >= _GRANT:
            self.grant()

    def grant(self, *, owed: bool = True) -> None:
        """Say that this process lives, and what is owed."""
        more = self._owed if owed else 0
        self._owed -= more
        self._granted += more
        self._said_s = self._loop.time()
        self._say(agent_pb2.Credit(messages=more, draining=self._inboxes.is_draining))

    def _beat(self) -> None:
        """One timer goes through many messages; credit that was given meanwhile said as much."""
        left_s = self._said_s + HEARTBEAT_S - self._loop.time()
        if left_s <= 0:
            self.grant(owed=not self._inboxes.is_full())
            left_s = HEARTBEAT_S
        self._beating = self._loop.call_later(left_s, self._beat)

    def close(self) -> None:
        """Nothing comes of it any more."""
        self._beating.cancel()
        self._inboxes.left(self)


class _Raw:
    """A stream that a server of ours hands over without a task."""

    def __init__(self, inboxes: Inboxes, sender: str, call: RpcCall) -> None:
        self._call = call
        self._inbox = inboxes.open(sender, self._say, lambda error: call.end(status_of(error), str(error)))
        call.add_done_callback(lambda _: self._inbox.close())
        self.received = self._inbox.received

    def _say(self, credit: agent_pb2.Credit) -> None:
        self._call.say(credit.SerializeToString())

    def no_more(self) -> None:
        self._inbox.close()
        self._call.end(grpc.StatusCode.OK)


def agent_service_handler(deliver: Callable[[Any, Any], Any], **others: Any) -> Any:
    """The Agent service of a server: Deliver, and handlers of other methods.

    Bytes in, bytes out, so that bytes which are no message are refused in our words.
    """
    handler = grpc.stream_stream_rpc_method_handler(deliver)
    return grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": handler, **others})


def _parsed(data: bytes, *, are_apart: bool) -> tuple[agent_pb2.Message] | tuple[agent_pb2.Message, Data]:
    try:
        return apart(data) if are_apart else (agent_pb2.Message.FromString(data),)
    except DecodeError as error:
        raise InvalidInputError("the bytes are no message") from error


class _Out:
    """What a stream of grpc's server is told, which takes it when there is room."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.refusal: AgentError | None = None
        self._credit: deque[agent_pb2.Credit] = deque()
        self._wake, self._is_over = asyncio.Event(), False
        self._writer = asyncio.create_task(self._write())

    def say(self, credit: agent_pb2.Credit) -> None:
        if len(self._credit) < 2:  # the first acknowledges nothing, so it stays apart
            self._credit.append(credit)
        else:
            self._credit[-1].messages += credit.messages
            self._credit[-1].draining |= credit.draining
        self._wake.set()

    def refuse(self, error: AgentError) -> None:
        self.refusal = error

    async def _write(self) -> None:
        while not self._is_over:
            await self._wake.wait()
            self._wake.clear()
            while self._credit:
                await self._context.write(self._credit.popleft().SerializeToString())

    async def close(self) -> None:
        self._is_over = True  # a write that is cut off would leave the call without a status
        self._wake.set()
        await asyncio.wait({self._writer}, timeout=_LAST_WRITE_S)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)


class Inboxes:
    """All incoming streams of this process. `receive` gets each message; an AgentError of it ends the stream.

    `are_apart`: it gets a large tensor's bytes, which are then not in the message, as a second argument.
    """

    def __init__(self, receive: Callable[..., None], is_full: Callable[[], bool], *, are_apart: bool = False) -> None:
        self.are_apart = are_apart
        self.receive, self.is_full = receive, is_full
        self.is_draining = False
        self._open: dict[_Inbox, None] = {}

    def senders(self) -> frozenset[str]:
        """Who has a stream to here."""
        return frozenset(inbox.sender for inbox in self._open)

    def release(self) -> None:
        """The receiver is no longer full: give back what is owed."""
        for inbox in list(self._open):
            inbox.room()

    def announce_draining(self) -> None:
        """Tell every sender that this process is about to leave."""
        self.is_draining = True
        for inbox in list(self._open):
            inbox.grant()

    def raw(self, call: RpcCall) -> Receiver | None:
        """Serve a stream without a task; for `Server.add_raw_stream`."""
        try:
            return _Raw(self, _sender(call), call)
        except StatusError as error:
            call.end(error.status, str(error))
            return None

    async def deliver(self, _requests: Any, context: Any) -> None:
        """Handler of the Deliver RPC, for grpc's server; `deliver_handler` makes a server use it."""
        out = _Out(context)
        try:
            inbox = self.open(_sender(context), out.say, out.refuse)
        except StatusError as error:
            await out.close()
            await context.abort(error.status, str(error))
            return
        try:
            while out.refusal is None and (data := await context.read()) is not EOF:
                inbox.received(data)
        finally:
            inbox.close()
            await out.close()
        if out.refusal is not None:
            await context.abort(status_of(out.refusal), str(out.refusal))

    def open(self, sender: str, say: Say, refuse: Refuse) -> _Inbox:
        """A new stream. StatusError when its sender has too many."""
        if sum(sender == other.sender for other in self._open) >= MAX_STREAMS:
            reason = f"{MAX_STREAMS} streams of {sender[:60]!r} are open, which is the most"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        inbox = _Inbox(self, sender, say, refuse)
        self._open[inbox] = None
        return inbox

    def left(self, inbox: _Inbox) -> None:
        """A stream is over."""
        self._open.pop(inbox, None)


def _sender(context: Any) -> str:
    return str(next((value for key, value in context.invocation_metadata() or () if key == SENDER_KEY), "?"))
