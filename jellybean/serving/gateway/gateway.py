"""The gateway's service: takes requests, draws a route for each, sends the sources' data, collects the sinks' answers.

It keeps a request until it is answered or its time is up (`trying.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from jellybean.serving.gateway.attempts import Trying, within
from jellybean.serving.gateway.cost_so_far import Spent
from jellybean.serving.gateway.fleet import Fleet
from jellybean.serving.gateway.hedging import Hedge
from jellybean.serving.gateway.in_flight import Request, Tell, Tensors
from jellybean.serving.gateway.inputs import Inputs, check_inputs
from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import Eventually, Key
from jellybean.serving.spool.spool import Spool
from jellybean_agent import (
    AgentError,
    EmulatedLinks,
    PlanView,
    StatusError,
    Transport,
    caller_uri,
    metrics_text,
    plan_view,
    status_of,
)
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
MAX_IN_HAND = 1024
MAX_BYTES_IN_HAND = 2**30  # of inputs, which are kept for another try
TIMEOUT_S = 60.0
_POLL_S = 0.02
ANSWERED_IDS = 65_536  # of clients, that are remembered
MAX_ID_BYTES = 256


class Gateway(Trying):
    """The Gateway service of one plan."""

    def __init__(
        self,
        view: PlanView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        transport: Transport,
        *,
        max_in_hand: int = MAX_IN_HAND,
        timeout_s: float = TIMEOUT_S,
        known: set[str] | None = None,
        spool: Spool | None = None,
        emulate: bool = True,
        hedge: Hedge | None = None,
    ) -> None:
        """`known`: the workers that may talk to this process; those of a plan that takes over are added.

        `spool`: for requests that are answered eventually; closed with the gateway. `emulate`: the links of a plan
        that takes over, too. `hedge`: when a slow request is sent a second way.
        """
        super().__init__(max_in_hand, timeout_s, hedge)
        self._emulate = emulate
        self.replaced: gateway_pb2.ReplaceRequest | None = None  # the last one that was done
        self.on_replaced: Callable[[gateway_pb2.ReplaceRequest], None] | None = None
        self._transport, self._known = transport, known if known is not None else set()
        self._max_in_hand = max_in_hand
        self._bytes = 0  # of the inputs in hand
        self._ids: set[Key] = set()  # of clients, in hand
        self._answered_ids: OrderedDict[Key, None] = OrderedDict()
        self._draining = False
        self._drain_until = math.inf
        self._retiring: dict[Fleet, asyncio.Task[None]] = {}  # of plans that another took over from
        self._replacing = False
        self._eventually: Eventually | None = None
        if spool is not None:
            self._eventually = Eventually(spool, self._serve_kept, lambda: not self.refusing)
        self._fleet = Fleet(view, addresses, links, transport, on_change=self._changed, on_gone=self._gone)
        self.spent = Spent()
        self.spent.begin(self._fleet)

    @property
    def view(self) -> PlanView:
        """The plan that new requests are served by."""
        return self._fleet.view

    def signature(self, operator: str) -> agent_pb2.Signature | None:
        """What an operator's model takes and gives; any worker that runs it knows."""
        return self._fleet.signature(operator)

    # -- what clients ask ---------------------------------------------------------------------------------------------

    async def Infer(self, request: gateway_pb2.InferRequest, context: Any) -> gateway_pb2.InferResponse:
        response = gateway_pb2.InferResponse(request_id=request.request_id or uuid.uuid4().hex)
        who = caller_uri(context)
        outcome, outputs = await self.infer(request.inputs, context.time_remaining(), request.request_id, who)
        if outcome is not None and outcome.kept:
            return gateway_pb2.InferResponse(request_id=outcome.kept, kept=True)
        if outcome is not None:
            await context.abort(outcome.status, outcome.reason)
        for sink, tensor in outputs.items():
            response.outputs[sink].CopyFrom(tensor)
        return response

    async def infer(
        self, inputs: Tensors, left_s: float | None, request_id: str = "", who: str = ""
    ) -> tuple[Outcome | None, Tensors]:
        """Answer one request within the seconds left for it, or say why not. No id: the client has none.

        An id is its caller's own: another's request of the same id is another request.
        """
        if len(request_id.encode()) > MAX_ID_BYTES:
            reason = f"a request's id has {len(request_id.encode())} bytes; {MAX_ID_BYTES} are the most"
            refused = Outcome(grpc.StatusCode.INVALID_ARGUMENT, reason)
            self._log(refused)
            return refused, {}
        if self._eventually is not None and (self.view.eventually or (request_id and not inputs)):
            return await self._infer_eventually(self._eventually, inputs, left_s, Key(who, request_id))
        key = Key(who, request_id) if request_id else None
        return await self._told(lambda tell: self.start(inputs, left_s, key, tell))

    def start(
        self, inputs: Inputs, left_s: float | None, key: Key | None, tell: Tell, *, are_checked: bool = False
    ) -> Request | None:
        """As `infer`, without waiting: `tell` gets what it gives, once. None: it is refused, and told already."""
        began = time.monotonic()
        size = sum([len(tensor.data) for tensor in inputs.values()])
        try:
            outcome = self._refusal(key, size)
            if outcome is None and not are_checked:
                check_inputs(self.view, self.signature, inputs)
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
        if outcome is not None:
            self._log(outcome, key.id if key is not None else "")
            self.figures.count(outcome, time.monotonic() - began)
            tell(outcome, {})
            return None
        self._bytes += size
        if key is not None:
            self._ids.add(key)

        def told(outcome: Outcome | None, outputs: Tensors) -> None:
            self._bytes -= size
            if key is not None:
                self._ids.discard(key)
                if outcome is None:
                    self._remember(key)
            self.figures.count(outcome, time.monotonic() - began)
            tell(outcome, outputs)

        return self._take_in_hand(inputs, left_s, key.id if key is not None else "", told)

    def _remember(self, key: Key) -> None:
        """What was answered once is not answered again, as far back as is remembered."""
        self._answered_ids[key] = None
        if len(self._answered_ids) > ANSWERED_IDS:
            self._answered_ids.popitem(last=False)

    async def _infer_eventually(
        self, eventually: Eventually, inputs: Tensors, left_s: float | None, key: Key
    ) -> tuple[Outcome | None, Tensors]:
        """As `infer`; what has no answer in time is kept, and not counted before it has."""
        began = time.monotonic()
        outputs: Tensors = {}
        outcome: Outcome | None
        try:
            if self._draining:
                raise StatusError(grpc.StatusCode.UNAVAILABLE, self.refusing)
            if inputs:
                check_inputs(self.view, self.signature, inputs)
            within_s = within(min(self._timeout_s, left_s if left_s is not None else self._timeout_s))
            outcome, outputs = await eventually.infer(
                key if key.id else Key(key.who, uuid.uuid4().hex), inputs, within_s
            )
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
            self.figures.refused += outcome.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        if outcome is not None and not outcome.kept:
            self._log(outcome, key.id)
        if outcome is None or not outcome.kept:
            self.figures.count(outcome, time.monotonic() - began)
        return outcome, outputs

    async def _serve_kept(self, inputs: Tensors) -> tuple[Outcome | None, Tensors]:
        """One try of a request of the spool."""
        try:
            check_inputs(self.view, self.signature, inputs)
            return await self._told(lambda tell: self._take_in_hand(inputs, None, "", tell))
        except AgentError as error:
            return Outcome(status_of(error), str(error)), {}

    async def Status(self, _request: gateway_pb2.StatusRequest, _context: Any) -> gateway_pb2.StatusResponse:
        return self.status()

    def status(self) -> gateway_pb2.StatusResponse:
        """What is up, and what became of the requests since the start."""
        workers, figures = self._fleet.workers, self.figures
        return gateway_pb2.StatusResponse(
            workflow=self.view.name,
            plan=self.view.hash,
            state=self.state,
            workers={name: worker.state for name, worker in workers.items()},
            reasons={name: worker.reason for name, worker in workers.items() if worker.reason},
            requests_in_hand=len(self._requests),
            answered=figures.answered,
            failed=figures.failed,
            refused=figures.refused,
            expired=figures.expired,
            retried=figures.retried,
            waiting=len(self._waiting),
            left_out=self._fleet.left_out,
            hedged=figures.hedged,
            kept=self._eventually.spool.waiting if self._eventually else 0,
            kept_bytes=self._eventually.spool.bytes if self._eventually else 0,
        )

    async def Metrics(self, _request: agent_pb2.MetricsRequest, _context: Any) -> agent_pb2.MetricsResponse:
        from jellybean.serving.gateway.metrics import GatewayCollector

        workers = await self.worker_metrics()
        return agent_pb2.MetricsResponse(text=metrics_text(GatewayCollector(self, lambda: workers)))

    async def worker_metrics(self) -> list[bytes]:
        """Of every worker that answers, in Prometheus' text format."""
        return await self._metrics_of(self._fleet)

    async def _metrics_of(self, fleet: Fleet) -> list[bytes]:
        asked_s = time.monotonic()
        texts = await fleet.metrics()
        self.spent.saw(fleet, texts, asked_s)
        return texts

    @property
    def crossed(self) -> Mapping[tuple[str, str, str], int]:
        """Bytes that were sent to workers over links, by source and both tiers, since this plan is served."""
        return self._fleet.crossed

    async def Drain(self, request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
        return agent_pb2.DrainResponse(left=await self.drain(request.timeout_s))  # 0: do not wait

    @property
    def state(self) -> str:
        """starting, ready, degraded (some worker is not there), or draining."""
        return "draining" if self._draining else self._fleet.state

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, finish those in hand; how many were left when the time was up."""
        self._draining = True
        self.changed.set()
        self._drain_until = min(self._drain_until, time.monotonic() + timeout_s)  # asked twice: the sooner counts
        while self._requests and time.monotonic() < self._drain_until:
            await asyncio.sleep(0.01)
        if self._eventually is not None:
            self._eventually.release()
        return len(self._requests)

    async def close(self) -> None:
        """Fail what is still in hand and end all streams."""
        for request in list(self._requests):
            self._finish(request, Outcome(grpc.StatusCode.UNAVAILABLE, "the gateway is shutting down"))
        if self._eventually is not None:
            await self._eventually.close()
        for fleet, task in list(self._retiring.items()):  # each that ends leaves it
            task.cancel()
            await fleet.close()
        await self._fleet.close()

    # -- plans --------------------------------------------------------------------------------------------------------

    async def Replace(self, request: gateway_pb2.ReplaceRequest, context: Any) -> gateway_pb2.ReplaceResponse:
        before = self.view.hash
        try:
            view = plan_view(json.loads(request.plan))
            addresses = {name: self._transport.check(address) for name, address in request.peers.items()}
            own = context.peer().startswith("unix:")  # a path that others name is nothing to make or write here
            await self.replace(view, addresses, Path(request.links) if own else None, request.timeout_s)
            self.replaced = request
            if self.on_replaced is not None:
                self.on_replaced(request)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
        except (ValueError, RecursionError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the plan is not JSON: {error}")
        return gateway_pb2.ReplaceResponse(before=before)

    async def replace(self, view: PlanView, addresses: Mapping[str, str], links: Path | None, timeout_s: float) -> None:
        """Serve new requests by another plan once its workers are ready; those in hand finish by the old one.

        StatusError when they do not become ready in time, or it is another workflow's: the old plan then goes on.
        """
        if self._draining or self._replacing:
            what = "draining" if self._draining else "replacing its plan already"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, f"the gateway is {what}")
        missing = [worker.name for worker in view.serving if worker.name not in addresses]
        if view.name != self.view.name or missing:
            why = (
                f"no address of {missing[0]}" if missing else f"it serves {self.view.name}, the plan is of {view.name}"
            )
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, why)
        if view.eventually and self._eventually is None:
            why = "a source has `deliver: eventually`, this gateway has no file to keep requests in: give --spool"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, why)
        self._replacing = True
        self._known.update(worker.name for worker in view.serving)
        emulated = (EmulatedLinks(view.links, links) if self._emulate else EmulatedLinks((), None)).open()
        fleet = Fleet(view, addresses, emulated, self._transport, on_change=self._changed, on_gone=self._gone)
        self.spent.begin(fleet)
        try:
            async with asyncio.timeout(timeout_s):
                while fleet.state != "ready":
                    await asyncio.sleep(_POLL_S)
        except BaseException as error:
            self.spent.end(fleet)
            await fleet.close()
            emulated.close()
            if isinstance(error, TimeoutError):
                reasons = (f"{name} ({worker.reason})" for name, worker in fleet.workers.items() if worker.reason)
                late = f"not ready within {timeout_s:g} s: {', '.join(reasons) or fleet.waiting_for}"
                raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, late) from error
            raise
        finally:
            self._replacing = False
        old, self._fleet = self._fleet, fleet
        self._retiring[old] = asyncio.create_task(self._retire(old))
        self._changed()

    async def _retire(self, fleet: Fleet) -> None:
        """Let the workers of the plan before go once nothing of it is under way."""
        while fleet.attempts:
            await asyncio.sleep(_POLL_S)
        await self._metrics_of(fleet)
        self.spent.end(fleet)
        await fleet.close()
        fleet.links.close()
        del self._retiring[fleet]

    # -- one request --------------------------------------------------------------------------------------------------

    @property
    def refusing(self) -> str:
        """Why a request would not get on its way now; empty when it would."""
        state = self.state
        if state == "draining":
            return "the gateway is draining: it takes no new requests"
        if state == "starting":
            return f"still starting: waiting for {self._fleet.waiting_for}"
        return self._fleet.closed

    def _refusal(self, key: Key | None, size: int) -> Outcome | None:
        if self.state in ("draining", "starting"):
            return Outcome(grpc.StatusCode.UNAVAILABLE, self.refusing)
        if key is not None and key in self._ids:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {key} is in hand already")
        if key is not None and key in self._answered_ids:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {key} was answered already")
        full = ""
        if len(self._requests) >= self._max_in_hand:
            full = f"{len(self._requests)} requests in hand are the most this gateway takes"
        elif self._requests and self._bytes + size > MAX_BYTES_IN_HAND:
            full = f"{self._bytes} bytes of inputs in hand: with {size} more they would be above {MAX_BYTES_IN_HAND}"
        self.figures.refused += bool(full)
        return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, f"overloaded: {full}") if full else None
