"""Moves the states of a stream to the workers that its next chunk goes to, or rebuilds them there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import grpc

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean.serving.gateway.requests.request import Attempt
from jellybean.serving.gateway.streams.stream import Place, StateCopy, Stream
from jellybean.serving.outcomes import Outcome, Tensors
from jellybean_agent import StatusError
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.gateway")


class SentChunk(NamedTuple):
    """A chunk's answer: `attempt`: that gave it; `place`: where its states are. Both None without an answer."""

    outcome: Outcome | None  # why there is no answer
    outputs: Tensors
    attempt: Attempt | None
    place: Place | None

    @property
    def after(self) -> str:
        """The attempt that gave the answer, by which the states after it are named."""
        return "" if self.attempt is None else self.attempt.key


SendChunk = Callable[[Stream, Inputs, str], Awaitable[SentChunk]]  # stream, inputs, attempt that it continues


async def read_states(stream: Stream, place: Place) -> StateCopy | None:
    """A copy of the stream's states at the place that has them; None if a worker there does not answer."""
    number, after = stream.number, stream.after
    states = {}
    for operator, worker in place.workers:
        request = agent_pb2.StreamState(operator=operator, stream=stream.key, after=after, plan=place.plan.view.hash)
        try:
            states[operator] = (await place.plan.call_state("ReadState", worker, request)).tensors
        except StatusError as error:
            LOG.info("stream %s: %s does not give its state: %s", stream.name, worker, error)
            return None
    return StateCopy(number, after, states)


async def write_states(stream: Stream, place: Place, copy: StateCopy) -> Outcome | None:
    """Give a copy of the stream's states to the workers of a place; returns why that failed."""
    for operator, worker in place.workers:
        request = agent_pb2.StreamState(
            operator=operator,
            stream=stream.key,
            after=copy.after,
            tensors=copy.states.get(operator, ()),
            plan=place.plan.view.hash,
        )
        try:
            await place.plan.call_state("WriteState", worker, request)
        except StatusError as error:
            return Outcome(grpc.StatusCode.ABORTED, f"worker {worker} does not take the state: {error}")
    return None


async def settle(stream: Stream, plan: ServedPlan, send: SendChunk) -> Outcome | None:
    """Bring the stream's states to where the plan sends its next chunk. Returns why that failed, or what was lost.

    With the status ABORTED it may be tried again.
    """
    try:
        route = plan.draw_for(stream.key)
    except StatusError as error:
        return Outcome(error.status, str(error))
    if route is None or stream.number == 0:  # nothing to move, or no place to move it to: the chunk waits for one
        return None
    target = Place.of(plan, route)
    if stream.place == target:
        return None
    is_same_code = stream.code == target.code
    if stream.place is not None and is_same_code:
        copy = await read_states(stream, stream.place)
        if copy is not None and await write_states(stream, target, copy) is None:
            stream.place = target
            stream.keep_copy(copy)
            return None
    return await _rebuild(stream, plan, route, send, is_same_code=is_same_code)


async def _rebuild(
    stream: Stream, plan: ServedPlan, route: int, send: SendChunk, *, is_same_code: bool
) -> Outcome | None:
    """Write the copy to the place that a route leads to, and send the chunks after it again."""
    target = Place.of(plan, route)
    copy = stream.copy if is_same_code else StateCopy()
    chunks = [chunk for chunk in stream.recent if chunk.number > copy.number]
    first = chunks[0].number if chunks else stream.number + 1
    if first > copy.number + 1:  # the copy does not fit the model, or none could be made for too long
        copy, chunks, first = StateCopy(), list(stream.recent), stream.recent[0].number
    stream.place = None
    if (failed := await write_states(stream, target, copy)) is not None:
        plan.bar(route)  # a worker that died a moment ago: its streams go elsewhere until the route is probed
        return failed
    after, place = copy.after, target
    for chunk in chunks:
        sent = await send(stream, chunk.inputs, after)
        if sent.place is None:
            return sent.outcome
        after, place = sent.after, sent.place
    stream.after, stream.place, stream.copy, stream.code = after, place, copy, place.code
    LOG.info("stream %s was rebuilt by %d chunks", stream.name, len(chunks))
    if first == copy.number + 1:
        return None
    reason = (
        f"stream {stream.name}: its state was made anew from chunks {first} to {stream.number}; chunks 1 to "
        f"{first - 1} are lost to it. Chunk {stream.number + 1} was not run: send it again, or begin the stream anew"
    )
    return Outcome(grpc.StatusCode.DATA_LOSS, reason)
