"""What a tunnel and its relay say to each other on one connection before it becomes a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.endpoints import Endpoint, Sink
from jellybean_agent.relay.wire import (
    ACCEPTED,
    ASK,
    OFFER,
    OTHER_DEPLOYMENT,
    PING,
    PONG,
    REFUSED,
    START,
    STARTED,
    Greeting,
    parse_refusal,
)


class OtherDeploymentError(TransientError):
    """The relay is of another deployment: at the next dial, one of the own deployment may answer."""


class Conversation(Sink):
    """A greeting sent on a secured connection, and the relay's answers to it.

    The connection is lost if the relay is silent for `silence_s`. `deployment`: ID of the tunnel's, which the relay
    compares with its own.
    """

    def __init__(self, endpoint: Endpoint, silence_s: float, deployment: str = "") -> None:
        self.endpoint, self._silence_s, self._deployment = endpoint, silence_s, deployment
        self.early = b""  # received behind STARTED
        self._loop = asyncio.get_running_loop()
        self._is_offer = self._is_accepted = self._was_ended = False
        self._data = b""
        self._on_accepted: Callable[[], None] = lambda: None
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        endpoint.sink = self
        if endpoint.is_over:
            self._fail("it closed the connection")

    async def offer(self, on_accepted: Callable[[], None]) -> bool:
        """Offer the connection; returns once the relay starts it, False if it ends it. TransientError if it fails."""
        self._is_offer, self._on_accepted = True, on_accepted
        self._greet(OFFER)
        await self._answered()
        return not self._was_ended

    async def ask(self, name: str) -> None:
        """Ask for a peer; returns once the pipe may begin. TransientError with the relay's reason if it refuses."""
        self._greet(ASK, name)
        await self._answered()

    def _greet(self, kind: bytes, name: str = "") -> None:
        self.endpoint.send(Greeting(kind, name, self._deployment).encode())
        self._listen()

    async def _answered(self) -> None:
        try:
            await self._started
        except BaseException:
            self.endpoint.reset("it was given up")
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()

    # -- Sink ---------------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self._started.done():
            self.early += data
            return
        self._listen()
        self._data += data
        while self._data and not self._started.done():
            kind = self._data[:1]
            if kind == REFUSED:
                reason = parse_refusal(self._data)
                if reason is not None:
                    self._fail(f"the relay refuses: {reason}")
                return
            if kind == PING and self._is_accepted:
                self._data = self._data.lstrip(PING)
                self.endpoint.send(PONG)  # one for all: the relay sends the next ping once it has the answer
                continue
            self._data = self._data[1:]
            if kind == ACCEPTED and self._is_offer and not self._is_accepted:
                self._is_accepted = True
                self._on_accepted()
            elif kind == (START if self._is_offer else STARTED) and self._is_accepted == self._is_offer:
                self.endpoint.pause_reading()  # until the pipe begins
                self.early, self._data = self._data, b""
                self._started.set_result(None)
            elif kind == OTHER_DEPLOYMENT and not self._is_accepted:
                self._fail("the relay is of another deployment", OtherDeploymentError)
            else:
                self._fail("it speaks another protocol")

    def ended(self) -> None:
        if self._started.done():
            return
        if self._is_accepted:  # it has reached its age, or the relay ends
            self._was_ended = True
            self.endpoint.close()
            self._started.set_result(None)
        else:
            self._fail("it ended the connection")

    def paused(self) -> None:
        if not self._started.done():
            self.endpoint.reset("it pings and does not read the answers")

    def lost(self, reason: str) -> None:
        self._fail(reason or "it closed the connection")

    # -- silence ------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._silence_s, self._silent)

    def _silent(self) -> None:
        self._fail(f"it was silent for {self._silence_s:g} s")

    def _fail(self, reason: str, kind: type[TransientError] = TransientError) -> None:
        if not self._started.done():
            self._started.set_exception(kind(reason))
