"""The gateway: takes requests, draws a route for each, sends the sources' data, collects the sinks' answers.

It keeps a request until it is answered or its time is up, and is the one place where a request is tried again: what a
lost worker had in hand goes another route under a key of its own, so that an answer counts once whoever gives it. A
request that finds no route open waits for one.
"""

from __future__ import annotations

import asyncio
import itertools
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

from jellybean.serving.answers import SinkAnswer
from jellybean.serving.eventually import Eventually, Key, Tensors
from jellybean.serving.fleet import Fleet
from jellybean.serving.hedging import RESERVE, Hedge
from jellybean.serving.in_hand import Attempt, Figures, Request, finish, outputs_of
from jellybean.serving.inputs import check_inputs
from jellybean.serving.outcomes import Outcome
from jellybean.serving.retries import RetryBudget
from jellybean.serving.spool import Spool
from jellybean_agent.channels import Transport
from jellybean_agent.driver import read_path
from jellybean_agent.errors import AgentError, InvalidInputError, StatusError, status_from_number, status_of
from jellybean_agent.identity import caller
from jellybean_agent.links import EmulatedLinks
from jellybean_agent.logs import about
from jellybean_agent.metrics import text_of
from jellybean_agent.plan_view import PlanView, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2

LOG = logging.getLogger("jellybean.gateway")
MAX_IN_HAND = 1024
MAX_BYTES_IN_HAND = 2**30  # of inputs, which are kept for another try
TIMEOUT_S = 60.0
MAX_TRIES = 8  # of one request
RETRY_SHARE = 0.2  # of the requests, in the long run
_POLL_S = 0.02
_TELL_S = 0.05  # before a client's deadline, at most: or he never learns why there was no answer
ANSWERED_IDS = 65_536  # of clients, that are remembered
MAX_ID_BYTES = 256
_OF_CLIENTS = (  # their doing, and so no warning here
    *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS),
    *(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED),
)


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
        known: set[str] | None = None,
        spool: Spool | None = None,
        emulate: bool = True,
        hedge: Hedge | None = None,
    ) -> None:
        """`known`: the workers that may talk to this process; those of a plan that takes over are added.

        `spool`: for requests that are answered eventually; closed with the gateway. `emulate`: the links of a plan
        that takes over, too. `hedge`: when a slow request is sent a second way.
        """
        self._emulate, self._hedge = emulate, hedge
        self.replaced: gateway_pb2.ReplaceRequest | None = None  # the last one that was done
        self.on_replaced: Callable[[gateway_pb2.ReplaceRequest], None] | None = None
        self._transport, self._known = transport, known if known is not None else set()
        self._max_in_hand, self._timeout_s = max_in_hand, timeout_s
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._requests: dict[Request, None] = {}
        self._attempts: dict[str, Attempt] = {}  # under way, by key
        self._waiting: dict[Request, None] = {}  # for a route
        self._bytes = 0  # of the inputs in hand
        self._ids: set[Key] = set()  # of clients, in hand
        self._answered_ids: OrderedDict[Key, None] = OrderedDict()
        self._budget = RetryBudget(max_in_hand, RETRY_SHARE)
        self._draining = False
        self._drain_until = math.inf
        self.figures = Figures()
        self.changed = asyncio.Event()  # set whenever `refusing` may be another
        self._retiring: dict[Fleet, asyncio.Task[None]] = {}  # of plans that another took over from
        self._replacing = False
        self._eventually: Eventually | None = None
        if spool is not None:
            self._eventually = Eventually(spool, self._serve_kept, lambda: not self.refusing)
        self._fleet = Fleet(view, addresses, links, transport, on_change=self._changed, on_gone=self._gone)

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
        who = caller(context)
        outcome, outputs = await self.infer(request.inputs, context.time_remaining(), request.request_id, who)
        if outcome is not None and outcome.kept:
            return gateway_pb2.InferResponse(request_id=outcome.kept, kept=True)
        if outcome is not None:
            await context.abort(outcome.status, outcome.reason)
        for sink, tensor in outputs.items():
            response.outputs[sink].CopyFrom(tensor)
        return response

    async def infer(
        self, inputs: Mapping[str, agent_pb2.Tensor], left_s: float | None, request_id: str = "", who: str = ""
    ) -> tuple[Outcome | None, Mapping[str, agent_pb2.Tensor]]:
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
        began = time.monotonic()
        outcome: Outcome | None
        outputs: Mapping[str, agent_pb2.Tensor] = {}
        size = sum(len(tensor.data) for tensor in inputs.values())
        try:
            outcome = self._refusal(key, size)
            if outcome is None:
                check_inputs(self.view, self.signature, inputs)
        except AgentError as error:
            outcome = Outcome(status_of(error), str(error))
        if outcome is None:
            self._bytes += size
            try:
                outcome, outputs = await self._serve(inputs, left_s, key)
            finally:
                self._bytes -= size
        else:
            self._log(outcome, request_id)
        self.figures.count(outcome, time.monotonic() - began)
        return outcome, outputs

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
            within_s = _within_s(min(self._timeout_s, left_s if left_s is not None else self._timeout_s))
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
            return await self._serve(inputs, None, None)
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
        from jellybean.serving.gateway_metrics import GatewayCollector

        workers = await self.worker_metrics()
        return agent_pb2.MetricsResponse(text=text_of(GatewayCollector(self, lambda: workers)))

    async def worker_metrics(self) -> list[bytes]:
        """Of every worker that answers, in Prometheus' text format."""
        return await self._fleet.metrics()

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
            finish(request, Outcome(grpc.StatusCode.UNAVAILABLE, "the gateway is shutting down"))
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
        emulated = EmulatedLinks(view.links, links) if self._emulate else EmulatedLinks((), None)
        fleet = Fleet(view, addresses, emulated, self._transport, on_change=self._changed, on_gone=self._gone)
        try:
            async with asyncio.timeout(timeout_s):
                while fleet.state != "ready":
                    await asyncio.sleep(_POLL_S)
        except BaseException as error:
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

    async def _serve(
        self, inputs: Mapping[str, agent_pb2.Tensor], left_s: float | None, key: Key | None
    ) -> tuple[Outcome | None, Mapping[str, agent_pb2.Tensor]]:
        timeout_s = min(self._timeout_s, left_s if left_s is not None else self._timeout_s)
        within_s = _within_s(timeout_s)
        request = Request(inputs, time.monotonic() + within_s, asyncio.get_running_loop().create_future())
        self._requests[request] = None
        if key is not None:
            self._ids.add(key)
        found: Outcome | Attempt = Outcome(grpc.StatusCode.CANCELLED, "the client cancelled")
        try:
            self._budget.earn()
            self._try(request)
            if self._hedge is not None:
                self._hedge_later(self._hedge, request, within_s)
            async with asyncio.timeout(within_s):
                found = await request.done
            if isinstance(found, Outcome):
                return found, {}
            outputs = dict(outputs_of(found))
            if self._hedge is not None:
                self._learn(self._hedge, request, found, time.monotonic() + within_s - request.until_s)
            if key is not None:
                self._remember(key)
            return None, outputs
        except TimeoutError:
            stuck = request not in self._waiting
            found = Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, self._late(request, timeout_s), stuck=stuck)
            return found, {}
        except AgentError as error:
            found = Outcome(status_of(error), str(error))
            return found, {}
        finally:
            self._over(request, key, found)

    def _over(self, request: Request, key: Key | None, found: Outcome | Attempt) -> None:
        """A request is in hand no more."""
        if key is not None:
            self._ids.discard(key)
        del self._requests[request]
        self._waiting.pop(request, None)
        if request.hedging is not None:
            request.hedging.cancel()
        if isinstance(found, Outcome):
            self._log(found, key.id if key is not None else "", request)
        for attempt in list(request.attempts.values()):
            slower = None if attempt is found else Outcome(grpc.StatusCode.CANCELLED, "another way was quicker")
            self._end(attempt, found if isinstance(found, Outcome) else slower)

    def _log(self, outcome: Outcome, request_id: str = "", request: Request | None = None) -> None:
        """The one line of a request that was refused or failed."""
        attempts = ", ".join(request.attempts) if request is not None else ""
        level = logging.INFO if outcome.status in _OF_CLIENTS else logging.WARNING
        text = "a request was refused: %s" if request is None else "a request failed: %s"
        trace, status = self._trace_id(request), outcome.status.name
        fields = about(request_id=request_id, attempts=attempts, trace_id=trace, status=status)
        LOG.log(level, text, outcome.reason, extra=fields)

    def _trace_id(self, _request: Request | None) -> str:
        return ""  # `TracedGateway` knows

    def _late(self, request: Request, timeout_s: float) -> str:
        within = f"within {timeout_s:.3g} s"
        if request in self._waiting:
            return f"no route was open {within}: {request.lost or self._fleet.closed}"
        waiting = ", ".join(sorted({sink for attempt in request.attempts.values() for sink in attempt.missing}))
        return f"no answer of {waiting} {within}: overloaded or stuck"

    def _remember(self, key: Key) -> None:
        """What was answered once is not answered again, as far back as is remembered."""
        self._answered_ids[key] = None
        if len(self._answered_ids) > ANSWERED_IDS:
            self._answered_ids.popitem(last=False)

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _try(self, request: Request) -> None:
        """Send a request on its way by a route that is open, or have it wait for one."""
        fleet = self._fleet
        if request.inputs.keys() != fleet.view.source_outputs.keys():
            raise InvalidInputError("the plan that has taken over has other sources")
        route = fleet.draw()
        if route is None:
            self._waiting[request] = None
            return
        self._waiting.pop(request, None)
        self._begin(request, fleet, route)

    def _begin(self, request: Request, fleet: Fleet, route: int) -> None:
        request.tries += 1
        sinks = fleet.view.sinks
        key = f"{self._run}-{next(self._numbers)}"
        attempt = Attempt(key, request, fleet, route, {sink: SinkAnswer() for sink in sinks}, set(sinks))
        request.attempts[key] = self._attempts[key] = attempt
        fleet.send(key, route, request.inputs, request.until_s, request.trace)

    def _hedge_later(self, hedge: Hedge, request: Request, within_s: float) -> None:
        if hedge.after_s < within_s:
            later = asyncio.get_running_loop().call_later
            request.hedging = later(hedge.after_s, self._hedge_request, request)

    def _learn(self, hedge: Hedge, request: Request, answer: Attempt, took_s: float) -> None:
        """How long a first attempt takes; nothing of one that was lost."""
        if request.tries == 1 or (request.tries == 2 and request.slow is not None):
            hedge.answered(took_s, request.slow is None or answer is request.slow)

    def _hedge_request(self, request: Request) -> None:
        """A request has no answer yet: send it a second way, if there is one and the budget of retries has plenty."""
        if request.done.done() or len(request.attempts) != 1 or request.tries >= MAX_TRIES:
            return
        (slow,) = request.attempts.values()
        route = slow.fleet.aside(slow.route) if slow.fleet is self._fleet else None
        if route is not None and self._budget.take(RESERVE):
            self.figures.hedged += 1
            request.slow = slow
            self._begin(request, slow.fleet, route)

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """An attempt leads nowhere any more; `outcome`: why, unless it was answered."""
        del self._attempts[attempt.key]
        del attempt.request.attempts[attempt.key]
        failure = None
        if outcome is not None:
            failure = agent_pb2.Failure(reason=outcome.reason, status=int(outcome.status.value[0]))
        attempt.fleet.over(attempt.key, attempt.route, failure)

    def _lost(self, attempt: Attempt, reason: str) -> None:
        """An attempt was lost with a worker or a hop: its request goes another way, as far as the budget allows."""
        request = attempt.request
        self._end(attempt, Outcome(grpc.StatusCode.UNAVAILABLE, reason))
        if request.done.done():
            return
        LOG.info("an attempt was lost: %s", reason, extra=about(attempts=attempt.key, trace_id=self._trace_id(request)))
        request.lost = reason
        if request.attempts:  # it is under way a second time
            return
        if request.tries >= MAX_TRIES:
            reason += f" (tried {request.tries} times)"
        elif not self._budget.take():
            reason += " (not tried again: too much is being lost for it)"
        else:
            self.figures.retried += 1
            self._waiting[request] = None
            self._try_in_time(request)
            return
        finish(request, Outcome(grpc.StatusCode.UNAVAILABLE, reason))

    def _try_in_time(self, request: Request) -> None:
        try:
            self._try(request)
        except AgentError as error:
            finish(request, Outcome(status_of(error), str(error)))

    def _changed(self) -> None:
        """Another route may be open: those that wait try theirs, in the order in which they came."""
        self.changed.set()
        for request in list(self._waiting):
            if not request.done.done():
                self._try_in_time(request)

    def _gone(self, fleet: Fleet, worker: str, reason: str) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.fleet is fleet and worker in fleet.view.routes[attempt.route].values():
                self._lost(attempt, f"worker {worker} is gone: {reason}")

    def receive(self, message: agent_pb2.Message) -> None:
        """An answer or a failure from a worker; what comes of an attempt that is over is dropped."""
        attempt = self._attempts.get(message.request_id)
        if attempt is None:
            return
        if message.HasField("failure"):
            failure = message.failure
            reason = f"worker {failure.worker}, operator {failure.operator}: {failure.reason}"
            status = status_from_number(failure.status)
            if status is grpc.StatusCode.UNAVAILABLE:
                attempt.fleet.bar(attempt.route)
                self._lost(attempt, reason)
            elif len(attempt.request.attempts) > 1:
                self._end(attempt, Outcome(status, reason))
            else:
                finish(attempt.request, Outcome(status, reason))
        elif message.upstream in attempt.answers:
            try:
                path = read_path(message, attempt.fleet.view.operators[message.upstream].depth)
            except InvalidInputError as error:
                reason = f"answer of {message.upstream}: {error}"
                finish(attempt.request, Outcome(grpc.StatusCode.INTERNAL, reason))
                return
            if attempt.answers[message.upstream].add(path, message.tensor):
                attempt.missing.discard(message.upstream)
            if not attempt.missing:
                finish(attempt.request, attempt)


def _within_s(timeout_s: float) -> float:
    """How long an answer is waited for, so that the reason why there is none still reaches the client."""
    return timeout_s - min(_TELL_S, 0.1 * timeout_s)
