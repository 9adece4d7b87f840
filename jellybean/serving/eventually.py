"""Serves the requests of the spool, oldest first, until each has an answer: whatever dies, and however long it takes.

Only what is being served is in memory. A failure that trying again would not mend is an answer too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool import Answer, Kept, Spool
from jellybean_agent.errors import AgentError, status_from_number, status_of
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
AT_ONCE = 32  # requests of the spool under way
AGAIN_S, MOST_AGAIN_S = 0.2, 10.0
_LOOK_S = 0.5
_TRANSIENT = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED),
)

Tensors = Mapping[str, agent_pb2.Tensor]
Serve = Callable[[Tensors], Awaitable[tuple[Outcome | None, Tensors]]]


class Eventually:
    """`serve` answers one request, or says why not; `is_open` says whether any would get on its way now."""

    def __init__(self, spool: Spool, serve: Serve, is_open: Callable[[], bool]) -> None:
        self.spool = spool
        self._serve, self._is_open = serve, is_open
        self._waiting: dict[str, list[asyncio.Event]] = {}  # by id: who waits here for its answer
        self._under_way: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._work(), name="spool")

    async def infer(self, request_id: str, inputs: Tensors, within_s: float) -> tuple[Outcome | None, Tensors]:
        """Keep a request, unless its id is known, and wait so long for its answer; without inputs only wait.

        An id that is sent again gets the answer that it has. StatusError when there is no room to keep it.
        """
        if inputs:
            if await self.spool.put(request_id, gateway_pb2.InferRequest(inputs=inputs).SerializeToString()):
                self._wake.set()
        elif await self.spool.take(request_id) is None and not await self.spool.knows(request_id):
            return Outcome(grpc.StatusCode.NOT_FOUND, f"no request {request_id[:60]!r} is kept here"), {}
        found = await self._answer(request_id, within_s)
        if found is None:
            reason = f"kept: request {request_id[:60]!r} will be answered; ask for it again by its id"
            return Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, reason, request_id), {}
        if found.reason:
            return Outcome(status_from_number(found.status), found.reason), {}
        if found.outputs is None:
            reason = f"the answer of request {request_id[:60]!r} was taken and has made room since"
            return Outcome(grpc.StatusCode.NOT_FOUND, reason), {}
        return None, gateway_pb2.InferResponse.FromString(found.outputs).outputs

    async def _answer(self, request_id: str, within_s: float) -> Answer | None:
        """The answer of a request that was kept, waited for so long; None when there is none yet."""
        settled = asyncio.Event()
        self._waiting.setdefault(request_id, []).append(settled)
        try:
            found = await self.spool.take(request_id)
            if found is None and within_s > 0:
                async with asyncio.timeout(within_s):
                    await settled.wait()
                found = await self.spool.take(request_id)
        except TimeoutError:
            return None
        finally:
            self._waiting[request_id].remove(settled)
            if not self._waiting[request_id]:
                del self._waiting[request_id]
        return found

    async def close(self) -> None:
        """Stop serving; what has no answer stays kept."""
        tasks = [self._task, *self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.spool.close()

    async def _work(self) -> None:
        number = 0
        while True:
            self._wake.clear()
            kept = None
            if len(self._under_way) < AT_ONCE and self._is_open():
                try:
                    kept = await self.spool.after(number)
                except AgentError as error:
                    LOG.warning("%s", error)
            if kept is None:
                with_timeout: Any = asyncio.wait_for(self._wake.wait(), _LOOK_S)
                await asyncio.gather(with_timeout, return_exceptions=True)
                continue
            number = kept.number
            task = asyncio.create_task(self._one(kept))
            self._under_way.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._wake.set()

    async def _one(self, kept: Kept) -> None:
        """Serve one request until it has an answer that is final, and write that down."""
        pause_s = AGAIN_S
        while True:
            try:
                request = gateway_pb2.InferRequest.FromString(kept.inputs)
                outcome, outputs = await self._serve(request.inputs)
                if outcome is None:
                    data = gateway_pb2.InferResponse(outputs=outputs).SerializeToString()
                    await self.spool.settle(kept, Answer(data, 0, ""))
                    break
                if outcome.status not in _TRANSIENT:
                    await self.spool.settle(kept, Answer(None, int(outcome.status.value[0]), outcome.reason))
                    break
                LOG.info("request %s of the spool is tried again: %s", kept.id[:60], outcome.reason)
            except AgentError as error:
                LOG.warning("request %s of the spool: %s: %s", kept.id[:60], status_of(error).name, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_AGAIN_S)
        for settled in self._waiting.get(kept.id, ()):
            settled.set()
