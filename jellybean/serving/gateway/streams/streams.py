"""The streams of a gateway: which exist, and the order of their chunks."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import grpc

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean.serving.gateway.requests.admission import MAX_ID_BYTES
from jellybean.serving.gateway.requests.in_flight import InFlightRequests, answer_limit_s
from jellybean.serving.gateway.requests.request import Attempt, OnFinished, Request
from jellybean.serving.gateway.streams.moves import SentChunk, read_states, settle
from jellybean.serving.gateway.streams.stream import Place, Stream
from jellybean.serving.gateway.tracing import NOT_TRACED, RequestTrace
from jellybean.serving.outcomes import Outcome, Result, Tensors
from jellybean.serving.spool.delivery import Key
from jellybean_agent import PlanView, StreamPosition, fits_share

MAX_TRIES = 8  # of one chunk, each after its stream was rebuilt
PAUSE_S = 0.1  # after the first rebuilt try, longer by as much after each: workers are started again meanwhile


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of a gateway's memory of streams. `idle_s`: after which a stream without chunks is forgotten."""

    max_streams: int = 4096
    idle_s: float = 300.0
    max_waiting: int = 64  # chunks of one stream that wait for their turn


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What a client says of a request: its stream, and whether the stream begins or ends with it.

    `number`: of the chunk, from 1, so that a repeated one is answered once; 0: the next.
    """

    stream: Key
    begins: bool = False
    ends: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class AnsweredChunk:
    """A chunk that was answered now. `name`: its stream and its number there, `camera-7/12`; `attempt`: that did it."""

    name: str
    attempt: Attempt


class ChunkResult(NamedTuple):
    """Why a chunk has no answer, or its answer. `answered`: None also where an earlier answer is given again."""

    outcome: Outcome | None
    outputs: Tensors = MappingProxyType({})
    answered: AnsweredChunk | None = None


class Streams:
    """Answers chunks, those of one stream one after another. `current_plan()`: serves new attempts.

    `timeout_s`: longest time limit of a chunk, its wait for the chunks before it included.
    """

    def __init__(
        self,
        requests: InFlightRequests,
        current_plan: Callable[[], ServedPlan],
        timeout_s: float,
        limits: StreamLimits = StreamLimits(),
    ) -> None:
        self._requests, self._current_plan = requests, current_plan
        self._timeout_s, self._limits = timeout_s, limits
        self._streams: OrderedDict[Key, Stream] = OrderedDict()  # used longest ago first
        self._counts: Counter[str] = Counter()  # of them, by client
        self._numbers = itertools.count()
        self.waiting = 0  # chunks that wait for their turn
        self.rebuilt = 0  # times that chunks could not be run with the state of their stream where they were sent

    def __len__(self) -> int:
        return len(self._streams)

    async def infer(
        self, chunk: StreamChunk, inputs: Inputs, time_left_s: float | None, request_id: str, trace: RequestTrace
    ) -> ChunkResult:
        """Answer one chunk, after those of its stream that came before it."""
        until_s = time.monotonic() + min(self._timeout_s, self._timeout_s if time_left_s is None else time_left_s)
        stream = self._stream_of(chunk)
        if isinstance(stream, Outcome):
            return ChunkResult(stream)
        if not await self._turn(stream, until_s):
            reason = f"stream {stream.name}: no answer in time, as the chunks before it have none"
            return ChunkResult(Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, reason))
        try:
            if (refusal := _misnumbered(stream, chunk)) is not None:
                return ChunkResult(*refusal)
            outcome, sent = await self._answer(stream, partial(self._send, until_s, request_id), inputs, trace)
            if sent is None or sent.attempt is None:
                return ChunkResult(outcome)
            return ChunkResult(None, sent.outputs, AnsweredChunk(f"{chunk.stream.id}/{stream.number}", sent.attempt))
        finally:
            stream.lock.release()
            if self._streams.get(chunk.stream) is not stream:  # it was begun anew meanwhile
                self._current_plan().release_stream(stream.key)
            elif chunk.ends:
                self._forget(chunk.stream)

    def _stream_of(self, chunk: StreamChunk) -> Stream | Outcome:
        """The stream of a chunk that has arrived, or why it is refused."""
        now_s = time.monotonic()
        self._forget_idle(now_s)
        stream = self._streams.get(chunk.stream)
        if chunk.begins:
            if stream is not None:
                self._forget(chunk.stream)
            elif (reason := self._full_reason(chunk.stream.caller)) is not None:
                return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, f"overloaded: {reason}")
            stream = Stream(f"{uuid.uuid4().hex}-{next(self._numbers)}", str(chunk.stream), now_s)
            self._streams[chunk.stream] = stream
            self._counts[chunk.stream.caller] += 1
        elif stream is None:
            reason = (
                f"stream {chunk.stream} is not known: it was not begun, has ended, was idle for "
                f"{self._limits.idle_s:.0f} s, or the gateway was started again. What its state was made of is lost: "
                "begin it anew"
            )
            return Outcome(grpc.StatusCode.NOT_FOUND, reason)
        if stream.waiting >= self._limits.max_waiting:
            reason = f"overloaded: {stream.waiting} chunks of stream {stream.name} wait for their turn"
            return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        stream.used_s = now_s
        self._streams.move_to_end(chunk.stream)
        return stream

    def _full_reason(self, caller: str) -> str | None:
        """Why a client may not open one more stream; None if it may."""
        held, free = self._counts[caller], self._limits.max_streams - len(self._streams)
        if free <= 0:
            return f"{len(self._streams)} streams are open, the most this gateway takes"
        if not fits_share(held, 1, free):
            return f"{held} of {len(self._streams)} open streams are of this client, which is its limit"
        return None

    def _forget_idle(self, now_s: float) -> None:
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if now_s - stream.used_s <= self._limits.idle_s or stream.lock.locked():
                return
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._current_plan().release_stream(self._streams.pop(key).key)
        self._counts[key.caller] -= 1
        if not self._counts[key.caller]:
            del self._counts[key.caller]

    async def _turn(self, stream: Stream, until_s: float) -> bool:
        """Wait for the chunks before; False if that takes too long."""
        stream.waiting += 1
        self.waiting += 1
        try:
            async with asyncio.timeout(answer_limit_s(max(0.0, until_s - time.monotonic()))):
                return await stream.lock.acquire()
        except TimeoutError:
            return False
        finally:
            stream.waiting -= 1
            self.waiting -= 1

    async def _answer(
        self, stream: Stream, send: Callable[..., Awaitable[SentChunk]], inputs: Inputs, trace: RequestTrace
    ) -> tuple[Outcome | None, SentChunk | None]:
        """Answer the stream's next chunk, with its states where it goes; they are rebuilt if they are not there.

        Returns why there is no answer, or the answer.
        """
        outcome: Outcome | None = None
        for tries in range(MAX_TRIES):
            outcome = await settle(stream, self._current_plan(), partial(send, NOT_TRACED))
            if outcome is None:
                sent = await send(trace, stream, inputs, stream.after)
                if sent.place is not None:
                    stream.answered(inputs, sent.outputs, sent.after, sent.place)
                    if stream.needs_copy and stream.copying is None:
                        stream.copying = asyncio.create_task(self._copy(stream, sent.place))
                    return None, sent
                outcome = sent.outcome
            if outcome is None or outcome.status is not grpc.StatusCode.ABORTED:
                break
            stream.place = None  # the state is not where it was
            self.rebuilt += 1
            await asyncio.sleep(tries * PAUSE_S)
        return outcome, None

    async def _send(
        self, until_s: float, request_id: str, trace: RequestTrace, stream: Stream, inputs: Inputs, after: str
    ) -> SentChunk:
        """Send a chunk that continues the state of the attempt `after`."""
        request: Request | None = None

        def submit(on_finished: OnFinished) -> Request:
            nonlocal request
            left_s, position = max(0.0, until_s - time.monotonic()), StreamPosition(stream.key, after)
            request = self._requests.submit(inputs, left_s, request_id, trace, on_finished, position)
            return request

        outcome, outputs = await self._requests.result_of(submit)
        attempt = request.answered_by if request is not None else None
        if outcome is not None or attempt is None:
            return SentChunk(outcome, {}, None, None)
        return SentChunk(None, outputs, attempt, Place.of(attempt.plan, attempt.route))

    async def _copy(self, stream: Stream, place: Place) -> None:
        """Copy the stream's states while it goes on; if that fails, its next answer tries again."""
        try:
            copy = await read_states(stream, place)
            if copy is not None and stream.code == place.code:
                stream.keep_copy(copy)
        finally:
            stream.copying = None


def misplaced_chunk(view: PlanView, chunk: StreamChunk | None) -> Outcome | None:
    """Why a request that names no stream, or one that does, does not fit the plan; None if it fits."""
    if chunk is None and view.stateful:
        reason = f"{view.stateful[0]} keeps a state by stream: say which stream this is, and that it begins"
        return Outcome(grpc.StatusCode.INVALID_ARGUMENT, reason)
    if chunk is not None and not 0 < (size := len(chunk.stream.id.encode())) <= MAX_ID_BYTES:
        reason = f"a stream's id has 1 to {MAX_ID_BYTES} bytes, not {size}"
        return Outcome(grpc.StatusCode.INVALID_ARGUMENT, reason)
    if chunk is not None and not view.stateful:
        reason = "no operator of this plan keeps a state between requests: leave out stream and parameter sequence_id"
        return Outcome(grpc.StatusCode.UNIMPLEMENTED, reason)
    return None


def _misnumbered(stream: Stream, chunk: StreamChunk) -> Result | None:
    """The answer to a chunk that is repeated, or the refusal of one that is out of order; None for the next one."""
    if chunk.number in (0, stream.number + 1):
        return None
    if chunk.number == stream.number:
        return None, stream.answer
    reason = f"stream {stream.name}: chunk {chunk.number} came, chunk {stream.number + 1} is next: send that first"
    return Outcome(grpc.StatusCode.INVALID_ARGUMENT, reason), {}
