"""The gateway's gRPC service: the calls of clients, and those of the run's owner."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from jellybean.serving.enrolment.rollout import PlanOffer, PlanRollout
from jellybean.serving.gateway.gateways import Gateways, own_workflow
from jellybean.serving.gateway.metrics import GatewaysCollector, worker_metrics, workflow_worker_metrics
from jellybean.serving.gateway.streams.streams import StreamChunk
from jellybean.serving.spool.delivery import Key
from jellybean_agent import (
    GATEWAY,
    AgentError,
    StatusError,
    Transport,
    caller_uri,
    check_answer_size,
    metrics_text,
    plan_view,
    status_of,
    workflow_views,
)
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

_ANSWER_S = 0.2  # between the answer to Stop and the end of the process


async def _no_end() -> None:
    """Does not end the process."""


class GatewayService:
    """Methods of the service `Gateway`.

    `rollout`: the plan that is served, and its replacement at boxes that joined. `on_replaced` is called with every
    replacement of the plan that succeeded, with the addresses of all its workers. `on_stop`: ends the process.
    """

    def __init__(
        self,
        gateways: Gateways,
        transport: Transport,
        rollout: PlanRollout,
        on_replaced: Callable[[gateway_pb2.ReplaceRequest], None] = lambda request: None,
        on_stop: Callable[[], Awaitable[None]] = _no_end,
    ) -> None:
        self._gateways, self._transport, self._rollout = gateways, transport, rollout
        self._on_replaced, self._on_stop = on_replaced, on_stop
        self._ends = set[asyncio.Task[None]]()  # one for each Stop under way

    async def Infer(self, request: gateway_pb2.InferRequest, context: Any) -> gateway_pb2.InferResponse:
        given = request.request_id
        response = gateway_pb2.InferResponse(request_id=given or uuid.uuid4().hex)
        caller = caller_uri(context)
        time_left_s = context.time_remaining()
        chunk = _chunk_of(request, caller) if request.HasField("stream") else None
        try:
            gateway = self._gateways.of(request.workflow, caller)
        except StatusError as error:
            await context.abort(error.status, str(error))
        if gateway.view.eventually and request.inputs:
            given = response.request_id  # it is kept on disk, and its answer for a label, by an id in any case
        outcome, outputs = await gateway.infer(request.inputs, time_left_s, given, caller, chunk)
        if outcome is not None and outcome.kept:
            return gateway_pb2.InferResponse(request_id=outcome.kept, kept=True)
        if outcome is not None:
            await context.abort(outcome.status, outcome.reason)
        try:
            check_answer_size(len(tensor.data) for tensor in outputs.values())
        except AgentError as error:
            await context.abort(status_of(error), str(error))
        for sink, tensor in outputs.items():
            response.outputs[sink].CopyFrom(tensor)
        return response

    async def Status(self, request: gateway_pb2.StatusRequest, context: Any) -> gateway_pb2.StatusResponse:
        caller = caller_uri(context)
        if not request.workflow and not own_workflow(caller):
            return self._gateways.status()
        try:
            return self._gateways.of(request.workflow, caller).status()
        except StatusError as error:
            await context.abort(error.status, str(error))
            raise

    async def Metrics(self, request: agent_pb2.MetricsRequest, context: Any) -> agent_pb2.MetricsResponse:
        try:
            named = self._gateways.of(request.workflow) if request.workflow else None
        except StatusError as error:
            await context.abort(error.status, str(error))
        gateways = tuple(self._gateways) if named is None else (named,)
        workers = await (worker_metrics(gateways) if named is None else workflow_worker_metrics(named))
        plan, own = (lambda: self._gateways.view) if named is None else None, self._transport
        collector = GatewaysCollector(gateways, lambda: workers, own.certificate, own.admission, plan=plan)
        return agent_pb2.MetricsResponse(text=metrics_text(collector))

    async def Drain(self, request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
        return agent_pb2.DrainResponse(left=await self._gateways.drain(request.timeout_s))

    async def Stop(self, request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
        drain = asyncio.create_task(self._gateways.drain(request.timeout_s))
        end = asyncio.create_task(self._end_after(drain))
        self._ends.add(end)  # the event loop itself keeps no reference
        end.add_done_callback(self._ends.discard)
        return agent_pb2.DrainResponse(left=await asyncio.shield(drain))

    async def _end_after(self, drain: asyncio.Task[int]) -> None:
        """End the process after a drain, whether or not its caller still waits: it refuses all requests by now."""
        await asyncio.wait([drain])
        await asyncio.sleep(_ANSWER_S)
        await self._on_stop()

    async def Plan(self, _request: gateway_pb2.PlanRequest, _context: Any) -> gateway_pb2.PlanResponse:
        return gateway_pb2.PlanResponse(plan=self._rollout.served.document)

    async def Replace(self, request: gateway_pb2.ReplaceRequest, context: Any) -> gateway_pb2.ReplaceResponse:
        before = self._rollout.served
        try:
            document = json.loads(request.plan)
            view, views = plan_view(document), workflow_views(document)
            given = {name: self._transport.check(address) for name, address in request.peers.items()}
            addresses = {**before.addresses, **given, GATEWAY: before.addresses[GATEWAY]}
            is_local = context.peer().startswith("unix:")  # only the same machine may name a path to write here
            links = Path(request.links) if is_local and request.links else None
            self._gateways.expect(view, views, addresses)
            await self._rollout.replace(
                PlanOffer(view, request.plan, addresses),
                request.timeout_s,
                partial(self._gateways.replace, view, views, addresses, links),
                partial(self._on_replaced, gateway_pb2.ReplaceRequest(plan=request.plan, peers=addresses)),
            )
            await self._gateways.await_ended()
        except AgentError as error:
            await context.abort(status_of(error), str(error))
        except (ValueError, RecursionError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the plan is not JSON: {error}")
        return gateway_pb2.ReplaceResponse(before=before.view.hash)


def _chunk_of(request: gateway_pb2.InferRequest, caller: str) -> StreamChunk:
    given = request.stream
    return StreamChunk(Key(caller, given.id), begins=given.begins, ends=given.ends, number=given.chunk)
