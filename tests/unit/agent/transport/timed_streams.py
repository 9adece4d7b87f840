"""Both ends of message streams in simulated time, over real Unix sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from jellybean_agent import (
    DELIVER_METHOD,
    Inboxes,
    InvalidInputError,
    OpenPolicy,
    Peer,
    PeerSettings,
    RpcServer,
    StreamSource,
    Transport,
    agent_service_handler,
    make_server,
)
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.simulated_time import run_in_simulated_time

PLAIN = Transport("w", insecure=True)


class Receiver:
    """A process that messages are delivered to. `is_silent`: it takes streams, and says nothing."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.got: list[str] = []
        self.left_s: list[float] = []
        self.is_full = self.is_silent = False
        self.accepts_after_s = 0.0  # a stream gets no credit before
        self.streams = 0
        self.inboxes = Inboxes(self._take, lambda _: self.is_full)
        self.server: RpcServer | None = None

    async def start(self) -> None:
        self.server = make_server(OpenPolicy())
        self.server.add_generic_rpc_handlers((agent_service_handler(),))
        self.server.add_raw_stream(DELIVER_METHOD, self._deliver)
        PLAIN.bind(self.server, self.address)
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(0.0)
            self.server = None

    def _deliver(self, call: Any) -> Any:
        self.streams += 1
        if self.accepts_after_s:
            return _Late(self, call)
        return _Silence() if self.is_silent else self.inboxes.deliver_raw(call)

    def _take(self, message: agent_pb2.Message, _source: StreamSource) -> None:
        if message.upstream == "wrong":
            raise InvalidInputError("that is wrong")
        self.got.append(message.request_id)
        self.left_s.append(message.left_s)


class _Silence:
    """A stream that takes messages and grants no credit."""

    def receive(self, message: bytes) -> None:
        pass

    def end_of_requests(self) -> None:
        pass


class _Late:
    """A stream that is served after a while."""

    def __init__(self, receiver: Receiver, call: Any) -> None:
        self._receiver, self._call, self._inbox = receiver, call, None
        asyncio.get_running_loop().call_later(receiver.accepts_after_s, self._accept)

    def _accept(self) -> None:
        inbox: Any = self._receiver.inboxes.deliver_raw(self._call)
        self._inbox = inbox

    def receive(self, message: bytes) -> None:
        assert self._inbox is not None, "there was no credit"
        self._inbox.receive(message)

    def end_of_requests(self) -> None:
        if self._inbox is not None:
            self._inbox.end_of_requests()


class Sender:
    """A peer, and what it has reported."""

    def __init__(self, receiver: Receiver, **settings: Any) -> None:
        self.lost: list[tuple[str, str, list[str]]] = []
        self.credits: list[agent_pb2.Credit] = []
        self.peer = Peer(
            "b-1",
            receiver.address,
            PeerSettings("a-1", settings.pop("transport", PLAIN), **settings),
            on_lost=self._note_loss,
            on_credit=lambda _name, credit: self.credits.append(credit),
        )

    def _note_loss(self, name: str, reason: str, messages: Sequence[agent_pb2.Message]) -> None:
        self.lost.append((name, reason, [message.request_id for message in messages]))

    def put(self, *requests: int, due_s: float = 0.0, until_s: float = math.inf, upstream: str = "") -> None:
        for request in requests:
            tensor = agent_pb2.Tensor(dtype="uint8", shape=[2], data=b"xy")
            message = agent_pb2.Message(request_id=str(request), upstream=upstream, downstream="op", tensor=tensor)
            self.peer.put(message, due_s, until_s)

    def put_failure(self, request: int) -> None:
        self.peer.put(agent_pb2.Message(request_id=str(request), failure=agent_pb2.Failure(reason="it failed")))


def names(*numbers: int) -> list[str]:
    """IDs of the requests with these numbers."""
    return [str(number) for number in numbers]


def with_receiver(folder: Path, test: Callable[[Receiver], Awaitable[None]], *, starts: bool = True) -> None:
    """Run a test with a receiver in simulated time. `starts`: its server has started."""

    async def run() -> None:
        receiver = Receiver(folder / "b-1")
        if starts:
            await receiver.start()
        try:
            await test(receiver)
        finally:
            await receiver.stop()

    folder.chmod(0o700)
    run_in_simulated_time(run)


async def pause(seconds: float = 0.05) -> None:
    """Let simulated time pass, and messages that may leave arrive."""
    await asyncio.sleep(seconds)


def now_s() -> float:
    """Simulated time."""
    return asyncio.get_running_loop().time()
