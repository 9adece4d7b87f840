"""Serves the requests of the spool, oldest first, until each has an answer: whatever dies, and however long it takes.

Only what is being served is in memory, and the numbers of those that are tried again later: they wait outside the
line, so that what cannot be served now holds up nothing else. A failure that trying again would not mend is an answer
too, and so is a worker's silence, many times over.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.spool import Answer, Kept, Spool
from jellybean_agent import AgentError, status_from_number, status_of
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
AT_ONCE = 32  # requests of the spool under way
AGAIN_AT_ONCE = 16  # of them, that were tried before: what always fails leaves room for the others
MOST_LATER = 10_000  # that wait to be tried again; then no others are begun
MOST_STUCK = 32  # tries of one request that a worker took and did not answer in time
AGAIN_S, MOST_AGAIN_S = 0.2, 10.0
_LOOK_S = 0.5
_TRANSIENT = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED),
)

Tensors = Mapping[str, agent_pb2.Tensor]
Serve = Callable[[Tensors], Awaitable[tuple[Outcome | None, Tensors]]]


class Key(NamedTuple):
    """Whose request it is, and the id that he gave it."""

    who: str  # the caller's URI
    id: str

    @property
    def text(self) -> str:
        """As the spool knows it: a URI holds no tab."""
        return f"{self.who}\t{self.id}" if self.who else self.id

    def __str__(self) -> str:
        return repr(self.id[:60])


@dataclass(slots=True)
class _Tries:
    """What is remembered of a request that is tried again."""

    pause_s: float = AGAIN_S
    stuck: int = 0


class Eventually:
    """`serve` answers one request, or says why not; `is_open` says whether any would get on its way now."""

    def __init__(self, spool: Spool, serve: Serve, is_open: Callable[[], bool]) -> None:
        self.spool = spool
        self._serve, self._is_open = serve, is_open
        self._waiting: dict[str, list[asyncio.Event]] = {}  # by id: who waits here for its answer
        self._under_way: dict[asyncio.Task[None], bool] = {}  # whether it was tried before
        self._number = 0  # of the last request that was begun
        self._later: list[tuple[float, int]] = []  # heap: when a request is tried again, and its number
        self._tries: dict[int, _Tries] = {}  # by number
        self._released = False
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._work(), name="spool")

    async def infer(self, key: Key, inputs: Tensors, within_s: float) -> tuple[Outcome | None, Tensors]:
        """Keep a request, unless its id is known, and wait so long for its answer; without inputs only wait.

        An id that is sent again gets the answer that it has. StatusError when there is no room to keep it, or when
        it is known with other inputs.
        """
        if inputs:
            data = gateway_pb2.InferRequest(inputs=inputs).SerializeToString(deterministic=True)
            if await self.spool.put(key.text, data):
                self._wake.set()
        elif await self.spool.take(key.text) is None and not await self.spool.knows(key.text):
            return Outcome(grpc.StatusCode.NOT_FOUND, f"no request {key} is kept here"), {}
        found = await self._answer(key.text, within_s)
        if found is None:
            reason = f"kept: request {key} will be answered; ask for it again by its id"
            return Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, reason, key.id), {}
        if found.reason:
            return Outcome(status_from_number(found.status), found.reason), {}
        if found.outputs is None:
            reason = f"the answer of request {key} was taken and has made room since"
            return Outcome(grpc.StatusCode.NOT_FOUND, reason), {}
        return None, gateway_pb2.InferResponse.FromString(found.outputs).outputs

    async def _answer(self, text: str, within_s: float) -> Answer | None:
        """The answer of a request that was kept, waited for so long; None when there is none yet."""
        settled = asyncio.Event()
        self._waiting.setdefault(text, []).append(settled)
        try:
            found = None if self._released else await self.spool.take(text)
            if found is None and within_s > 0 and not self._released:
                async with asyncio.timeout(within_s):
                    await settled.wait()
                found = None if self.spool.closed else await self.spool.take(text)
        except TimeoutError:
            return None
        finally:
            self._waiting[text].remove(settled)
            if not self._waiting[text]:
                del self._waiting[text]
        return found

    def release(self) -> None:
        """Tell all who wait that their requests are kept: there will be no answer here any more."""
        self._released = True
        for events in self._waiting.values():
            for settled in events:
                settled.set()

    async def close(self) -> None:
        """Stop serving; what has no answer stays kept."""
        self.release()
        tasks = [self._task, *self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.spool.close()

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            kept = None
            if len(self._under_way) < AT_ONCE and self._is_open() and not self.spool.full:
                try:
                    kept = await self._next()
                except AgentError as error:
                    LOG.warning("%s", error)
            if kept is None:
                with_timeout: Any = asyncio.wait_for(self._wake.wait(), _LOOK_S)
                await asyncio.gather(with_timeout, return_exceptions=True)
                continue
            task = asyncio.create_task(self._one(kept))
            self._under_way[task] = kept.number in self._tries
            task.add_done_callback(self._over)

    async def _next(self) -> Kept | None:
        """The request that is to be served next: one whose pause is over, else the oldest that was not begun yet."""
        crowded = len(self._later) >= MOST_LATER
        is_due = bool(self._later) and self._later[0][0] <= time.monotonic()
        if is_due and (crowded or sum(self._under_way.values()) < AGAIN_AT_ONCE):
            due_s, number = heapq.heappop(self._later)
            try:
                kept = await self.spool.after(number - 1)
            except AgentError:
                heapq.heappush(self._later, (due_s, number))
                raise
            if kept is not None and kept.number == number:
                return kept
            del self._tries[number]
        kept = None if crowded else await self.spool.after(self._number)
        self._number = self._number if kept is None else kept.number
        return kept

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._wake.set()

    async def _one(self, kept: Kept) -> None:
        """Serve one request and write its answer down if that is final; else it is tried again later."""
        tries = self._tries.get(kept.number) or _Tries()
        try:
            answer = await self._try(kept, tries)
            if answer is not None:
                await self.spool.settle(kept, answer)
                self._tries.pop(kept.number, None)
                for settled in self._waiting.get(kept.id, ()):
                    settled.set()
                return
        except AgentError as error:
            LOG.warning("request %s of the spool: %s: %s", kept.id[:60], status_of(error).name, error)
        self._tries[kept.number] = tries
        heapq.heappush(self._later, (time.monotonic() + tries.pause_s, kept.number))
        tries.pause_s = min(2 * tries.pause_s, MOST_AGAIN_S)

    async def _try(self, kept: Kept, tries: _Tries) -> Answer | None:
        """The final answer of a request, None when trying again may give another."""
        request = gateway_pb2.InferRequest.FromString(kept.inputs)
        outcome, outputs = await self._serve(request.inputs)
        if outcome is None:
            return Answer(gateway_pb2.InferResponse(outputs=outputs).SerializeToString(), 0, "")
        tries.stuck += outcome.stuck
        reason = outcome.reason
        if outcome.status in _TRANSIENT:
            if tries.stuck < MOST_STUCK:
                LOG.info("request %s of the spool is tried again: %s", kept.id[:60], reason)
                return None
            reason += f" (so {tries.stuck} times: given up)"
        return Answer(None, int(outcome.status.value[0]), reason)
