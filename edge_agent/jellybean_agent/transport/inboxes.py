"""The receiving end of Deliver streams: hands messages over, and grants credit.

Credit also acknowledges messages, and is the heartbeat of this process, sent at least every half second. A full
receiver grants no credit (backpressure); of several workflows each has streams of its own and is full by itself. A run
never waits for credit from other workers, so a cycle of full workers cannot deadlock; the gateway's limit of requests
in flight bounds the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from jellybean_agent.errors import AgentError, InvalidInputError, StatusError, status_of
from jellybean_agent.rpc.calls import RpcCall, StreamReceiver
from jellybean_agent.security.identity import SENDER_KEY, WORKFLOW_KEY
from jellybean_agent.transport.channels import caller_identity
from jellybean_agent.transport.message_wire import Data, parse_message, split_message
from jellybean_protos.agent.v1 import agent_pb2

INITIAL_CREDIT = 64
HEARTBEAT_S = 0.5
MAX_STREAMS = 8  # most streams of one sender: it needs one, and two while it moves to a new connection
_LAST_WRITE_S = 5.0
_CREDIT_LOT = 16  # credit is granted in lots of this many messages
SendCredit = Callable[[agent_pb2.Credit], None]
EndStream = Callable[[AgentError], None]


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Where a stream comes from: the process that sends, and the workflow of its messages if there are several.

    `sender`: by its certificate, where there is one. `gateway`: the key of one of several gateways,
    which all have the same name.
    """

    sender: str
    workflow: str = ""
    gateway: str = ""


class _Inbox:
    """One incoming stream, from `start` to `close`. `send_credit` sends credit, `end_stream` ends it with an error."""

    def __init__(self, inboxes: Inboxes, source: StreamSource, send_credit: SendCredit, end_stream: EndStream) -> None:
        self._inboxes, self.source = inboxes, source
        self._send_credit, self._end_stream = send_credit, end_stream
        self._owed, self._granted = INITIAL_CREDIT, 0  # credit still to be granted; credit granted and not used
        self._loop = asyncio.get_running_loop()
        self._sent_s = self._loop.time()  # when credit was sent last
        self.heartbeat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Grant the initial credit, and start the heartbeat."""
        self.grant()
        self.heartbeat = self._loop.call_later(HEARTBEAT_S, self._beat)

    def receive(self, data: bytes) -> None:
        """A message as bytes."""
        try:
            self._take(*_parsed(data, splits_tensors=self._inboxes.splits_tensors))
        except AgentError as error:
            self.close()
            self._end_stream(error)

    def _take(self, message: agent_pb2.Message, *data: Data) -> None:
        if not message.HasField("failure"):  # failures need no credit
            self._owed += 1
            self._granted -= 1
        if self._granted < 0:
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "there was no credit for the message")
        self._inboxes.receive(message, self.source, *data)
        if self._owed >= _CREDIT_LOT and not self._is_full():
            self.grant()

    def _is_full(self) -> bool:
        return self._inboxes.is_full(self.source.workflow)

    def has_capacity(self) -> None:
        """The receiver is no longer full: grant the owed credit of this stream."""
        if self._owed >= _CREDIT_LOT:
            self.grant()

    def grant(self, *, owed: bool = True) -> None:
        """Send a heartbeat; with `owed`, also grant the owed credit."""
        more = self._owed if owed else 0
        self._owed -= more
        self._granted += more
        self._sent_s = self._loop.time()
        self._send_credit(agent_pb2.Credit(messages=more, draining=self._inboxes.is_draining))

    def _beat(self) -> None:
        """Send a heartbeat unless credit was sent since the last check; one timer serves many messages."""
        left_s = self._sent_s + HEARTBEAT_S - self._loop.time()
        if left_s <= 0:
            self.grant(owed=not self._is_full())
            left_s = HEARTBEAT_S
        self.heartbeat = self._loop.call_later(left_s, self._beat)

    def close(self) -> None:
        """The stream is over."""
        if self.heartbeat is not None:
            self.heartbeat.cancel()
        self._inboxes.closed(self)


class _RawDeliver:
    """A Deliver stream of `RpcServer`, served without an asyncio task."""

    def __init__(self, inboxes: Inboxes, source: StreamSource, call: RpcCall) -> None:
        self._call = call
        self._inbox = inboxes.open(source, self._send_credit, lambda error: call.end(status_of(error), str(error)))
        call.add_done_callback(lambda _: self._inbox.close())
        self.receive = self._inbox.receive

    def _send_credit(self, credit: agent_pb2.Credit) -> None:
        self._call.send_response(credit.SerializeToString())

    def end_of_requests(self) -> None:
        self._inbox.close()
        self._call.end(grpc.StatusCode.OK)


def agent_service_handler(**others: Any) -> Any:
    """The Agent service of a server: other methods by name, and Deliver, whose raw stream must be added too."""
    handler = grpc.stream_stream_rpc_method_handler(_served_raw)
    return grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": handler, **others})


async def _served_raw(_requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Deliver is served raw only")


def _parsed(data: bytes, *, splits_tensors: bool) -> tuple[agent_pb2.Message] | tuple[agent_pb2.Message, Data]:
    try:
        return split_message(data) if splits_tensors else (parse_message(data),)
    except DecodeError as error:
        raise InvalidInputError("the bytes are no message") from error


class Inboxes:
    """All incoming streams of this process.

    `receive` gets each message and the source of its stream, with which the message must be compared:
    who may open a stream may not say everything. An AgentError that it raises ends the stream.
    `splits_tensors`: it gets a large tensor's bytes apart from the message, as a third argument.
    """

    def __init__(
        self,
        receive: Callable[..., None],
        is_full: Callable[[str], bool],
        *,
        splits_tensors: bool = False,
        workflows: Collection[str] = ("",),
    ) -> None:
        """`is_full(workflow)`: True if no more messages of it are wanted for now.

        `workflows`: those that streams may be of; the empty name where there is only one.
        """
        self._workflows = workflows
        self.splits_tensors = splits_tensors
        self.receive, self.is_full = receive, is_full
        self.is_draining = False
        self._open: dict[_Inbox, None] = {}

    def senders(self) -> frozenset[str]:
        """The processes that have a stream open."""
        return frozenset(inbox.source.sender for inbox in self._open)

    def has_capacity(self, workflow: str = "") -> None:
        """The receiver is no longer full for a workflow: grant the owed credit."""
        for inbox in list(self._open):
            if inbox.source.workflow == workflow:
                inbox.has_capacity()

    def announce_draining(self) -> None:
        """Tell every sender that this process is about to shut down."""
        self.is_draining = True
        for inbox in list(self._open):
            inbox.grant()

    def deliver_raw(self, call: RpcCall, gateway: str = "") -> StreamReceiver | None:
        """Serve a Deliver stream without a task; for `RpcServer.add_raw_stream`.

        `gateway`: the key of one of several gateways, whose right to it was checked.
        """
        try:
            return _RawDeliver(self, _source(call, gateway), call)
        except StatusError as error:
            call.end(error.status, str(error))
            return None

    def open(self, source: StreamSource, send_credit: SendCredit, end_stream: EndStream) -> _Inbox:
        """Open a new stream. StatusError when its sender has too many, or names a workflow that is not served here."""
        if source.workflow not in self._workflows:
            known = ", ".join(self._workflows) or "one only"
            reason = f"streams of workflow {source.workflow[:60]!r} are not taken here: served are {known}"
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, reason)
        if sum(source == other.source for other in self._open) >= MAX_STREAMS:
            reason = f"{MAX_STREAMS} streams of {source.sender[:60]!r} are open, which is the most"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        inbox = _Inbox(self, source, send_credit, end_stream)
        self._open[inbox] = None
        inbox.start()
        return inbox

    def closed(self, inbox: _Inbox) -> None:
        """A stream is over."""
        self._open.pop(inbox, None)


def _source(context: Any, gateway: str) -> StreamSource:
    metadata = dict(context.invocation_metadata() or ())
    caller = caller_identity(context)
    sender = str(metadata.get(SENDER_KEY, "?")) if caller is None else caller.name
    return StreamSource(sender, str(metadata.get(WORKFLOW_KEY, "")), gateway)
