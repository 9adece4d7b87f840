"""The gateway: takes requests, draws a route for each, sends the sources' data, collects the sinks' answers.

It keeps a stream open to every worker of the plan; when one breaks, the worker is gone and the requests on their way
through it fail by its name; new ones go round it where a route does. A worker that wants to leave gets no new requests
and its stream ends with the last one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from jellybean.serving.answers import SinkAnswer
from jellybean.serving.inputs import check_inputs, children
from jellybean.serving.places import PlaceDrawer
from jellybean_agent.channels import Transport
from jellybean_agent.driver import read_path
from jellybean_agent.errors import AgentError, InvalidInputError, TransientError, status_from_number, status_of
from jellybean_agent.links import EmulatedLinks
from jellybean_agent.messages import GATEWAY
from jellybean_agent.peers import Peer
from jellybean_agent.plan_view import PlanView
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
MAX_IN_HAND = 1024
TIMEOUT_S = 60.0
_DESCRIBE_S = 10.0
_DESCRIBE_TRIES, _DESCRIBE_AGAIN_S = 5, 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a request failed."""

    status: grpc.StatusCode
    reason: str


@dataclass(eq=False, slots=True)
class _Request:
    """A request in hand. Its `key` is never used twice, whatever ids clients choose."""

    key: str
    route: int
    done: asyncio.Future[Outcome | None]
    answers: dict[str, SinkAnswer]
    missing: set[str]


@dataclass(slots=True)
class _Worker:
    state: str = "starting"  # starting, ready, draining, gone
    reason: str = ""
    signatures: Mapping[str, agent_pb2.Signature] = field(default_factory=dict)


@dataclass(slots=True)
class Figures:
    """Requests since the start: how many, and the seconds from request to answer of all of them together."""

    answered: int = 0
    failed: int = 0  # or refused
    answered_s: float = 0.0
    failed_s: float = 0.0
    last_unix_s: float = 0.0  # 0: none yet

    def count(self, answered: bool, took_s: float) -> None:
        self.last_unix_s = time.time()
        if answered:
            self.answered += 1
            self.answered_s += took_s
        else:
            self.failed += 1
            self.failed_s += took_s


class Gateway:
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
    ) -> None:
        self.view, self._addresses, self._links, self._transport = view, addresses, links, transport
        self._max_in_hand, self._timeout_s = max_in_hand, timeout_s
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._in_hand: dict[str, _Request] = {}
        self._ids: set[str] = set()  # of clients, in hand
        self._workers = {worker.name: _Worker() for worker in view.serving}
        places = len(view.routes) // len(view.weights)
        self._drawer = PlaceDrawer(view.weights, places, periodic=view.periodic)
        self._draining = False
        self._drain_until = math.inf
        self.figures = Figures()
        self.changed = asyncio.Event()  # set whenever `refusing` may be another
        self._describing: dict[str, asyncio.Task[None]] = {}  # by worker
        self._peers = {
            name: Peer(
                name,
                addresses[name],
                sender=GATEWAY,
                on_lost=self._lost,
                transport=transport,
                on_credit=self._credit,
                eager=True,
            )
            for name in self._workers
        }

    # -- what clients ask ---------------------------------------------------------------------------------------------

    async def Infer(self, request: gateway_pb2.InferRequest, context: Any) -> gateway_pb2.InferResponse:
        response = gateway_pb2.InferResponse(request_id=request.request_id or uuid.uuid4().hex)
        outcome, outputs = await self.infer(request.inputs, context.time_remaining(), response.request_id)
        if outcome is not None:
            await context.abort(outcome.status, outcome.reason)
        for sink, tensor in outputs.items():
            response.outputs[sink].CopyFrom(tensor)
        return response

    async def infer(
        self, inputs: Mapping[str, agent_pb2.Tensor], left_s: float | None, request_id: str
    ) -> tuple[Outcome | None, Mapping[str, agent_pb2.Tensor]]:
        """Answer one request within the seconds left for it, or say why not."""
        began = time.monotonic()
        outputs: Mapping[str, agent_pb2.Tensor] = {}
        try:
            outcome = self._refusal(request_id)
            if outcome is None:
                check_inputs(self.view, self.signature, inputs)
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
        if outcome is None:
            outcome, outputs = await self._serve(inputs, left_s, request_id)
        self.figures.count(outcome is None, time.monotonic() - began)
        return outcome, outputs

    async def Status(self, _request: gateway_pb2.StatusRequest, _context: Any) -> gateway_pb2.StatusResponse:
        return gateway_pb2.StatusResponse(
            workflow=self.view.name,
            plan=self.view.hash,
            state=self.state,
            workers={name: worker.state for name, worker in self._workers.items()},
            reasons={name: worker.reason for name, worker in self._workers.items() if worker.reason},
            requests_in_hand=len(self._in_hand),
            answered=self.figures.answered,
            failed=self.figures.failed,
        )

    async def Drain(self, request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
        return agent_pb2.DrainResponse(left=await self.drain(request.timeout_s))  # 0: do not wait

    @property
    def state(self) -> str:
        """starting, ready, degraded (some worker is not there), or draining."""
        states = {worker.state for worker in self._workers.values()}
        if self._draining:
            return "draining"
        if "starting" in states:
            return "starting"
        return "ready" if states == {"ready"} else "degraded"

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, finish those in hand; how many were left when the time was up."""
        self._draining = True
        self.changed.set()
        self._drain_until = min(self._drain_until, time.monotonic() + timeout_s)  # asked twice: the sooner counts
        while self._in_hand and time.monotonic() < self._drain_until:
            await asyncio.sleep(0.01)
        return len(self._in_hand)

    async def close(self) -> None:
        """Fail what is still in hand and end all streams."""
        for request in list(self._in_hand.values()):
            self._finish(request, Outcome(grpc.StatusCode.UNAVAILABLE, "the gateway is shutting down"))
        for task in self._describing.values():
            task.cancel()
        for peer in self._peers.values():
            await peer.close()

    # -- one request --------------------------------------------------------------------------------------------------

    @property
    def refusing(self) -> str:
        """Why any request would be refused now; empty when they are taken."""
        state = self.state
        if state == "draining":
            return "the gateway is draining: it takes no new requests"
        if state == "starting":
            waiting = ", ".join(name for name, worker in self._workers.items() if worker.state == "starting")
            return f"still starting: waiting for {waiting}"
        away = {name: worker for name, worker in self._workers.items() if worker.state in ("draining", "gone")}
        if all(away.keys() & set(route.values()) for route in self.view.routes):
            return "no route is left: " + ", ".join(
                f"worker {name} is {w.state} ({w.reason})" for name, w in away.items()
            )
        return ""

    def _refusal(self, request_id: str) -> Outcome | None:
        if self.state in ("draining", "starting"):
            return Outcome(grpc.StatusCode.UNAVAILABLE, self.refusing)
        if len(self._in_hand) >= self._max_in_hand:
            reason = f"overloaded: {len(self._in_hand)} requests in hand are the most this gateway takes"
            return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        if request_id in self._ids:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {request_id[:60]!r} is in hand already")
        return None

    async def _serve(
        self, inputs: Mapping[str, agent_pb2.Tensor], left_s: float | None, request_id: str
    ) -> tuple[Outcome | None, Mapping[str, agent_pb2.Tensor]]:
        outputs: dict[str, agent_pb2.Tensor] = {}
        route = self._drawer.draw()
        for name in self.view.routes[route].values():
            worker = self._workers[name]
            if worker.state in ("gone", "draining"):
                reason = f"worker {name} is {worker.state}: {worker.reason}"
                return Outcome(grpc.StatusCode.UNAVAILABLE, reason), outputs
        sinks = self.view.sinks
        done: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        key = f"{self._run}-{next(self._numbers)}"
        request = _Request(key, route, done, {sink: SinkAnswer() for sink in sinks}, set(sinks))
        self._in_hand[key] = request
        self._ids.add(request_id)
        timeout_s = min(self._timeout_s, left_s if left_s is not None else self._timeout_s)
        outcome: Outcome | None = Outcome(grpc.StatusCode.CANCELLED, "the client cancelled")
        try:
            self._send_sources(request, inputs)
            async with asyncio.timeout(timeout_s):
                outcome = await done
            if outcome is None:
                for sink, answer in request.answers.items():
                    signature = self.signature(sink)
                    spec = signature.outputs[GATEWAY] if signature else agent_pb2.TensorSpec()
                    outputs[sink] = answer.tensor(spec)
        except TimeoutError:
            waiting = ", ".join(sorted(request.missing))
            outcome = Outcome(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no answer of {waiting} within {timeout_s:.3g} s: overloaded or stuck",
            )
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
        finally:
            self._ids.discard(request_id)
            self._release(request, outcome)
        return outcome, outputs

    def signature(self, operator: str) -> agent_pb2.Signature | None:
        """What an operator's model takes and gives; any worker that runs it knows."""
        return next((w.signatures[operator] for w in self._workers.values() if operator in w.signatures), None)

    def _send_sources(self, request: _Request, inputs: Mapping[str, agent_pb2.Tensor]) -> None:
        for source, outputs in self.view.source_outputs.items():
            for operator, kind in outputs:
                for position, tensor in children(inputs[source], kind):
                    message = agent_pb2.Message(
                        request_id=request.key,
                        route=request.route,
                        upstream=source,
                        downstream=operator,
                        path=position,
                        tensor=tensor,
                        plan=self.view.hash,
                    )
                    worker = self.view.routes[request.route][operator]
                    tiers = (self.view.tier_of(source, request.route), self.view.workers[worker].tier)
                    due_s = self._links.reserve(*tiers, len(message.tensor.data)) if tiers[0] != tiers[1] else 0.0
                    self._peers[worker].put(message, due_s)

    def _finish(self, request: _Request, outcome: Outcome | None) -> None:
        if not request.done.done():
            request.done.set_result(outcome)

    def _release(self, request: _Request, outcome: Outcome | None) -> None:
        """The request is over: after a failure, workers on its route forget it; draining workers may be free to go."""
        del self._in_hand[request.key]
        if outcome is not None:
            given_up = agent_pb2.Failure(reason=outcome.reason, status=int(outcome.status.value[0]))
            message = agent_pb2.Message(request_id=request.key, failure=given_up, plan=self.view.hash)
            for name in set(self.view.routes[request.route].values()):
                if self._workers[name].state == "ready":
                    self._peers[name].put(message)
        self._let_go()

    # -- what workers say ---------------------------------------------------------------------------------------------

    def receive(self, message: agent_pb2.Message) -> None:
        """An answer or a failure from a worker; what comes for a request that is over is dropped."""
        request = self._in_hand.get(message.request_id)
        if request is None:
            return
        if message.HasField("failure"):
            failure = message.failure
            reason = f"worker {failure.worker}, operator {failure.operator}: {failure.reason}"
            self._finish(request, Outcome(status_from_number(failure.status), reason))
        elif message.upstream in request.answers:
            try:
                path = read_path(message, self.view.operators[message.upstream].depth)
            except InvalidInputError as error:
                self._finish(request, Outcome(grpc.StatusCode.INTERNAL, f"answer of {message.upstream}: {error}"))
                return
            if request.answers[message.upstream].add(path, message.tensor):
                request.missing.discard(message.upstream)
            if not request.missing:
                self._finish(request, None)

    def _credit(self, name: str, credit: agent_pb2.Credit) -> None:
        worker = self._workers[name]
        if credit.draining:
            if worker.state != "draining":
                LOG.info("%s is draining", name)
            worker.state, worker.reason = "draining", "it was asked to leave"
            self._redraw()
            self._let_go()
        elif worker.state in ("starting", "gone") and credit.messages:
            running = self._describing.get(name)
            if running is None or running.done():
                self._describing[name] = asyncio.create_task(self._describe(name))

    async def _describe(self, name: str) -> None:
        """Learn what the worker's models take and give; then it is ready. A loss of the worker cancels this."""
        worker = self._workers[name]
        status = await self._asked(name, worker)
        if status is None or worker.state not in ("starting", "gone"):
            return
        if status.plan != self.view.hash or status.worker != name:
            worker.reason = f"{status.worker} of plan {status.plan[:12]} answers at its address"
            return
        worker.signatures = dict(status.signatures)
        worker.state, worker.reason = "ready", ""
        self._redraw()
        LOG.info("%s is ready", name)

    async def _asked(self, name: str, worker: _Worker) -> agent_pb2.AgentStatus | None:
        """The worker's status, asked for a few times; None, and a reason, when it never answers."""
        async with self._transport.channel(self._addresses[name], name) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
            for attempt in range(_DESCRIBE_TRIES):
                if attempt:
                    await asyncio.sleep(_DESCRIBE_AGAIN_S)
                try:
                    status: agent_pb2.AgentStatus = await stub.Describe(
                        agent_pb2.DescribeRequest(), timeout=_DESCRIBE_S
                    )
                    return status
                except grpc.aio.AioRpcError as error:
                    worker.reason = f"it does not describe itself: {error.details() or error.code().name}"
                    LOG.warning("%s: %s", name, worker.reason)
        return None

    def _lost(self, name: str, reason: str, _undelivered: Sequence[agent_pb2.Message]) -> None:
        worker = self._workers[name]
        if (describing := self._describing.pop(name, None)) is not None:
            describing.cancel()  # the next connection asks anew
        if worker.state == "starting":
            worker.reason = reason
            return
        if worker.state != "gone":
            LOG.warning("%s is gone: %s", name, reason)
        worker.state, worker.reason = "gone", reason
        self._redraw()
        error = TransientError(f"worker {name} is gone: {reason}")
        for request in list(self._in_hand.values()):
            if name in self.view.routes[request.route].values():
                self._finish(request, Outcome(status_of(error), str(error)))

    def _redraw(self) -> None:
        """New requests go round workers that drain or are gone, if any route does."""
        self.changed.set()
        leaving = {name for name, worker in self._workers.items() if worker.state in ("draining", "gone")}
        weights = [
            0.0 if leaving & set(route.values()) else weight
            for weight, route in zip(itertools.cycle(self.view.weights), self.view.routes, strict=False)
        ]
        self._drawer.redraw(weights)

    def _let_go(self) -> None:
        """End the stream to each draining worker that no request in hand can reach any more."""
        for name, worker in self._workers.items():
            if worker.state == "draining" and not any(
                name in self.view.routes[request.route].values() for request in self._in_hand.values()
            ):
                self._peers[name].end()
