"""Answers the requests of the spool, oldest first, retrying until each has an answer, across restarts of any process.

Memory holds the requests being tried and the numbers of those that wait for a retry, which wait outside the queue and
so delay no other request. A permanent failure is a final answer, and so is a timeout at a worker after `max_stuck`
tries.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import grpc

from jellybean.serving.outcomes import Outcome, Result, Tensors
from jellybean.serving.spool.spool import Answer, HeldBackError, Kept, Spool
from jellybean_agent import AgentError, StatusError, parse_identity, status_from_number, status_of
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
_TRANSIENT = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED),
)


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Bounds and pauses of a delivery."""

    concurrent: int = 32  # requests tried at once
    concurrent_retries: int = 16  # most retries among them, so that requests that always fail leave room for new ones
    max_waiting_retries: int = 10_000  # beyond this no new request is begun
    max_stuck: int = 32  # tries of one request that a worker took and did not answer in time
    min_pause_s: float = 0.2  # before a request's first retry; doubles with each further one
    max_pause_s: float = 10.0
    poll_s: float = 0.5  # between checks whether the gateway is open again


class Key(NamedTuple):
    """A client's id of a request, which is unique per client."""

    caller: str  # the client's URI; empty without certificates
    id: str

    @property
    def text(self) -> str:
        """The id in the spool; a URI holds no tab."""
        return f"{self.caller}\t{self.id}" if self.caller else self.id

    @classmethod
    def of(cls, text: str) -> Key:
        """The key of an id in the spool."""
        caller, tab, own = text.partition("\t")
        return cls(caller, own) if tab and parse_identity(caller) else cls("", text)

    def __str__(self) -> str:
        return repr(self.id[:60])


class Tried(NamedTuple):
    """The result of one try. `on_stored` is called once the answer is on disk, if it is the first one there."""

    outcome: Outcome | None
    outputs: Tensors = MappingProxyType({})
    on_stored: Callable[[], None] | None = None


Try = Callable[[Key, Tensors], Awaitable[Tried]]  # gets the key by which labels name the answer
OnFinal = Callable[[Outcome | None, float, str], None]  # (why there is no answer, seconds since it arrived, caller)


@dataclass(slots=True)
class _Retries:
    """State of a request that was tried before."""

    pause_s: float
    stuck: int = 0


class SpoolDelivery:
    """Delivers the requests of `spool`.

    `try_once` attempts one request and returns its result; `is_open()`: True if a request would reach a worker now.
    `on_final` gets the outcome of each request, once: when the spool has its final answer.
    """

    def __init__(
        self,
        spool: Spool,
        try_once: Try,
        is_open: Callable[[], bool],
        on_final: OnFinal,
        settings: DeliverySettings = DeliverySettings(),
    ) -> None:
        self.spool = spool
        self._try_once, self._is_open, self._on_final, self._settings = try_once, is_open, on_final, settings
        self._waiters: dict[str, list[asyncio.Event]] = {}  # spool id -> calls that wait for its answer
        self._under_way: dict[asyncio.Task[None], bool] = {}  # task of a try -> True if it is a retry
        self._last_number = 0  # up to it every request was begun or is held back
        self._due: list[tuple[float, int]] = []  # heap of retries: (CLOCK_MONOTONIC second, number)
        self._retries: dict[int, _Retries] = {}  # by number
        self._released = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to deliver."""
        self._task = asyncio.create_task(self._deliver(), name="spool")

    async def keep(self, key: Key, inputs: Tensors, answer_id: str = "") -> bool:
        """Keep a request; False if its id is known. Without inputs its id must be known.

        `answer_id`: by which labels name its answer, if that is not its id.

        StatusError when the spool is full, or when the id is known with other inputs, or unknown without inputs.
        """
        if inputs:
            data = gateway_pb2.InferRequest(inputs=inputs, request_id=answer_id).SerializeToString(deterministic=True)
            is_new = await self.spool.put(key.text, data)
            if is_new:
                self._wake.set()
            return is_new
        if await self.spool.take(key.text) is None and not await self.spool.knows(key.text):
            raise StatusError(grpc.StatusCode.NOT_FOUND, f"no request {key} is kept here")
        return False

    async def answer(self, key: Key, limit_s: float) -> Result:
        """Wait up to `limit_s` for the answer of a kept request. The same id gives the same answer each time."""
        answer = await self._answer(key.text, limit_s)
        if answer is None:
            reason = f"kept: request {key} will be answered; ask for it again by its id"
            return Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, reason, key.id), {}
        if (failure := _failure(answer)) is not None:
            return failure, {}
        if answer.outputs is None:
            reason = f"the answer of request {key} was taken and has been removed since to make room"
            return Outcome(grpc.StatusCode.NOT_FOUND, reason), {}
        return None, gateway_pb2.InferResponse.FromString(answer.outputs).outputs

    async def _answer(self, text: str, limit_s: float) -> Answer | None:
        """Wait up to `limit_s` for the answer of a kept request; None when there is none yet."""
        settled = asyncio.Event()
        self._waiters.setdefault(text, []).append(settled)
        try:
            answer = None if self._released else await self.spool.take(text)
            if answer is None and limit_s > 0 and not self._released:
                async with asyncio.timeout(limit_s):
                    await settled.wait()
                answer = None if self.spool.closed else await self.spool.take(text)
        except TimeoutError:
            return None
        finally:
            self._waiters[text].remove(settled)
            if not self._waiters[text]:
                del self._waiters[text]
        if answer is not None:
            self._wake.set()  # what was held back may have room now
        return answer

    def release(self) -> None:
        """End all waits for answers, as this process is about to stop."""
        self._released = True
        for events in self._waiters.values():
            for settled in events:
                settled.set()

    async def close(self) -> None:
        """Stop delivering and close the spool; unanswered requests stay in it."""
        self.release()
        tasks = [*([self._task] if self._task is not None else ()), *self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.spool.close()

    async def _deliver(self) -> None:
        while True:
            self._wake.clear()
            kept = None
            if len(self._under_way) < self._settings.concurrent and self._is_open() and not self.spool.full:
                try:
                    kept = await self._next()
                except AgentError as error:
                    LOG.warning("%s", error)
            if kept is None:
                wait: Any = asyncio.wait_for(self._wake.wait(), self._settings.poll_s)
                await asyncio.gather(wait, return_exceptions=True)
                continue
            task = asyncio.create_task(self._try(kept))
            self._under_way[task] = kept.number in self._retries
            task.add_done_callback(self._forget)

    async def _next(self) -> Kept | None:
        """The request to try next: a retry that is due, else the oldest one not begun yet."""
        crowded = len(self._due) >= self._settings.max_waiting_retries
        is_due = bool(self._due) and self._due[0][0] <= time.monotonic()
        if is_due and (crowded or sum(self._under_way.values()) < self._settings.concurrent_retries):
            due_s, number = heapq.heappop(self._due)
            try:
                kept = await self.spool.after(number - 1)
            except AgentError:
                heapq.heappush(self._due, (due_s, number))
                raise
            if kept is not None and kept.number == number:
                return kept
            del self._retries[number]
        if crowded:
            return None
        before = self._last_number
        kept, self._last_number = await self.spool.begin(before)
        if kept is None and self._last_number != before:  # those of clients without room were passed over
            self._wake.set()
        return kept

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._wake.set()

    async def _try(self, kept: Kept) -> None:
        """Try a request once and write its answer to disk if it is final; else schedule a retry."""
        retries = self._retries.get(kept.number) or _Retries(self._settings.min_pause_s)
        try:
            answer, on_stored = await self._final_answer(kept, retries)
            if answer is not None:
                stored = await self.spool.settle(kept, answer)
                self._retries.pop(kept.number, None)
                if stored is not None:
                    latency_s = self.spool.age_s(kept.arrived_unix_s)
                    self._on_final(_failure(stored), latency_s, Key.of(kept.id).caller)
                    if on_stored is not None and stored.outputs is not None:
                        on_stored()
                for settled in self._waiters.get(kept.id, ()):
                    settled.set()
                return
        except HeldBackError as error:
            LOG.info("request %s of the spool: %s", kept.id[:60], error)
            self._retries.pop(kept.number, None)
            return
        except AgentError as error:
            LOG.warning("request %s of the spool: %s: %s", kept.id[:60], status_of(error).name, error)
        self._retries[kept.number] = retries
        heapq.heappush(self._due, (time.monotonic() + retries.pause_s, kept.number))
        retries.pause_s = min(2 * retries.pause_s, self._settings.max_pause_s)

    async def _final_answer(self, kept: Kept, retries: _Retries) -> tuple[Answer | None, Callable[[], None] | None]:
        """The answer of one try, None when a retry may give another; and what is to be called once it is on disk."""
        request, key = gateway_pb2.InferRequest.FromString(kept.inputs), Key.of(kept.id)
        outcome, outputs, on_stored = await self._try_once(
            key._replace(id=request.request_id or key.id), request.inputs
        )
        if outcome is None:
            return Answer(gateway_pb2.InferResponse(outputs=outputs).SerializeToString(), 0, ""), on_stored
        retries.stuck += outcome.stuck
        reason = outcome.reason
        if outcome.status in _TRANSIENT:
            if retries.stuck < self._settings.max_stuck:
                LOG.info("request %s of the spool is tried again: %s", kept.id[:60], reason)
                return None, None
            reason += f" ({retries.stuck} times; not tried again)"
        return Answer(None, int(outcome.status.value[0]), reason), None


def _failure(answer: Answer) -> Outcome | None:
    """Why a request failed for good; None if it was answered."""
    return Outcome(status_from_number(answer.status), answer.reason) if answer.reason else None
