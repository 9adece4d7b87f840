"""The offers of remote workers: idle connections that their tunnels keep open, each good for one pipe."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.endpoints import Endpoint, Sink
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.wire import ACCEPTED, PING, PONG, START, STARTED, UNREACHABLE

LOG = logging.getLogger("jellybean.relay")
_AGE_JITTER = 0.1  # fraction by which ages differ, so that tunnels do not dial again all at once


class Offer(Sink):
    """An accepted offer. `on_gone`: called when it is lost before it is started."""

    def __init__(self, endpoint: Endpoint, limits: RelayLimits, on_gone: Callable[[Offer], None]) -> None:
        self.endpoint, self._limits, self._on_gone = endpoint, limits, on_gone
        self.early = b""  # received behind the tunnel's answer to START
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        self._is_starting, self._has_answered = False, True
        age_s = limits.offer_age_s * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        self._timers = {"age": self._loop.call_later(age_s, self.end)}
        endpoint.sink = self
        endpoint.send(ACCEPTED)
        self._wait_for_pong()

    async def start(self, timeout_s: float) -> bool:
        """Start the offer; False if the tunnel is silent or gone. TransientError if it cannot reach its agent."""
        self._is_starting = True
        self._cancel_timers()
        self.endpoint.send(START)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answer
        except TimeoutError:
            answer = b""
        except asyncio.CancelledError:
            self.endpoint.reset("the connection that it was started for is gone")
            raise
        if answer == UNREACHABLE:
            self.endpoint.close()
            raise TransientError("its tunnel does not reach the agent")
        if answer != STARTED:
            self.endpoint.reset(f"it has not started within {timeout_s:g} s")
        return answer == STARTED and not self.endpoint.is_over

    def end(self) -> None:
        """Close an idle offer: its tunnel makes another one."""
        self._cancel_timers()
        self._on_gone(self)
        self.endpoint.close()

    # -- Sink ---------------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self._answer.done():
            self.early += data
            return
        data = data.replace(PONG, b"") if not self._is_starting else data.lstrip(PONG)
        self._has_answered = True
        if not data:
            return
        if not self._is_starting or data[:1] not in (STARTED, UNREACHABLE):
            self.endpoint.reset("it sends what an idle offer does not send")
            return
        self.endpoint.pause_reading()  # until the pipe begins
        self.early = data[1:]
        self._answer.set_result(data[:1])

    def ended(self) -> None:
        if not self._answer.done():
            self.endpoint.reset("it has ended")

    def lost(self, reason: str) -> None:
        self._cancel_timers()
        self._on_gone(self)
        if not self._answer.done():
            self._answer.set_result(b"")

    # -- pings --------------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        if not self._has_answered:
            self.endpoint.reset(f"no answer to a ping within {self._limits.ping_s:g} s")
            return
        self.endpoint.send(PING)
        self._has_answered = False
        self._wait_for_pong()

    def _wait_for_pong(self) -> None:
        self._timers["ping"] = self._loop.call_later(self._limits.ping_s, self._ping)

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()


class OfferPool:
    """The idle offers of one worker, and the connections that wait for one: who asks for it take turns."""

    def __init__(self, worker: str, limits: RelayLimits) -> None:
        self._worker, self._limits = worker, limits
        self._idle: dict[Offer, None] = {}
        self._waiting: dict[str, deque[asyncio.Future[Offer]]] = {}  # by asker, the next one to be served first

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """Number of connections that wait for an offer."""
        return sum(map(len, self._waiting.values()))

    def add(self, endpoint: Endpoint) -> None:
        """Accept an offer."""
        offer = Offer(endpoint, self._limits, self._remove)
        while self._waiting:
            asker = next(iter(self._waiting))
            queue = self._waiting.pop(asker)
            waiting = queue.popleft()
            if queue:
                self._waiting[asker] = queue  # behind the other askers
            if not waiting.done():
                waiting.set_result(offer)
                return
        self._idle[offer] = None

    async def started(self, asker: str = "") -> Offer:
        """An offer that was started. TransientError if there is none in time, or the agent is not reached."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._limits.offer_wait_s
        while (left_s := until_s - loop.time()) > 0.0:
            try:
                offer = await self._next(left_s, asker)
            except TimeoutError:
                break
            if await offer.start(min(self._limits.start_s, max(0.0, until_s - loop.time()))):
                return offer
        raise TransientError(f"no offer of worker {self._worker} within {self._limits.offer_wait_s:g} s")

    def end_all(self) -> None:
        """Close the idle offers."""
        for offer in list(self._idle):
            offer.end()

    async def _next(self, timeout_s: float, asker: str) -> Offer:
        """An offer for the caller alone: the newest, as it is the least likely to be gone unnoticed."""
        if self._idle:
            return self._idle.popitem()[0]
        waiting: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except BaseException:
            if waiting.done() and not waiting.cancelled() and not waiting.result().endpoint.is_over:
                self._idle[waiting.result()] = None
            raise
        finally:
            self._stop_waiting(asker, waiting)

    def _stop_waiting(self, asker: str, waiting: asyncio.Future[Offer]) -> None:
        queue = self._waiting.get(asker)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._waiting[asker]

    def _remove(self, offer: Offer) -> None:
        self._idle.pop(offer, None)
