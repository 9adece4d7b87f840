"""A plan that a gateway serves: the state of each worker, the open routes, and a stream of messages to each worker.

Of a plan of several workflows, it is the part of one of them. Workers know its operators by their names in the whole
plan, all other modules of the gateway by the workflow's own.

New attempts avoid a worker that has not been there yet, drains, is gone or does not answer, until it has described
itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc.aio

from jellybean.serving.gateway.plans.answer_rights import AnswerRights
from jellybean.serving.gateway.plans.closed_routes import ClosedRoutes
from jellybean.serving.gateway.plans.open_routes import BARRED_S, OpenRoutes
from jellybean.serving.gateway.plans.signatures import Signatures, own_signatures, problem_of
from jellybean.serving.gateway.plans.source_messages import Inputs, source_messages
from jellybean.serving.gateway.plans.stated_metrics import MAX_TEXT_BYTES, CheckedMetrics, StatedMetrics
from jellybean.serving.gateway.plans.worker_answers import MAX_DESCRIPTION_BYTES, call_worker
from jellybean.serving.gateway.plans.worker_channels import WorkerChannels
from jellybean.serving.gateway.tracing import RequestTrace
from jellybean_agent import (
    GATEWAY,
    EmulatedLinks,
    Peer,
    PeerSettings,
    PlanView,
    RefusedClaims,
    ReplyAddress,
    StatusError,
    StreamPosition,
    Transport,
    printable,
    protocol_mismatch,
)
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.gateway")
_DESCRIBE_S = 10.0
_FRAME_BYTES = 2**10  # of an answer with metrics besides these
_METRICS_S = 2.0
_MAX_REASON = 500  # characters of what a worker says
_STATE_S = 2.0  # longest wait for a stream's state, which is rebuilt where it does not come
_TO_DESCRIBE = ("starting", "gone", "quarantined")  # states in which a worker that answers is asked what it is
_DESCRIBE_TRIES, _DESCRIBE_PAUSE_S = 5, 0.5
OnSent = Callable[[str, str, tuple[str, str], int], None]  # gets (plan, source, its tier and the worker's, bytes)


@dataclass(slots=True)
class Worker:
    """The gateway's state of one worker."""

    state: str = "starting"  # starting, ready, quarantined (what it states of its models is wrong), draining, gone
    reason: str = ""  # why it is not ready, by its last connection
    blocked: str = ""  # why its box cannot become ready; empty if the gateway knows no such reason

    @property
    def why(self) -> str:
        """Why it is not ready, for a person; empty if it is, or if that is not known."""
        return self.blocked or self.reason


class ServedPlan:
    """The workers of one plan. `start` connects to them, `close` ends all streams.

    `on_change()`: another route may be open. `on_worker_lost(plan, worker, reason)`: the stream to a worker broke.
    `reply`: where this gateway takes answers, if it is one of several.
    """

    def __init__(
        self,
        view: PlanView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        transport: Transport,
        *,
        on_change: Callable[[], None],
        on_worker_lost: Callable[[ServedPlan, str, str], None],
        reply: ReplyAddress | None = None,
        claims: RefusedClaims | None = None,
        closed: ClosedRoutes | None = None,
    ) -> None:
        """`claims`: where claims of workers beyond the plan are counted. `closed`: routes of all workflows."""
        self._reply = reply
        self.claims = RefusedClaims(LOG, view.workers) if claims is None else claims
        self._rights = AnswerRights(view)
        self._stated = {worker.name: StatedMetrics(view, worker) for worker in view.serving}
        self._checking = asyncio.Lock()
        self.signatures = Signatures(view)
        self._has_route = False
        self._disputed: list[str] = []  # operators of whose signatures it was logged that workers disagree
        self.view, self.links, self._addresses, self._transport = view, links, addresses, transport
        self._on_change, self._on_worker_lost = on_change, on_worker_lost
        self.workers = {worker.name: Worker() for worker in view.serving}
        self._source_outputs = view.all_source_outputs
        self.left_out = 0  # number of times that a ready worker was lost
        self.bytes_sent: Counter[tuple[str, str, str]] = Counter()  # by source, its tier and the worker's tier
        self.on_sent: OnSent | None = None
        self._closed = ClosedRoutes() if closed is None else closed
        self._routes = OpenRoutes(view, lambda name: self.workers[name].state != "ready", self._closed)
        self._attempts: Counter[str] = Counter()  # worker -> attempts in progress over routes with it
        self._describing: dict[str, asyncio.Task[None]] = {}  # by worker
        self._peers: dict[str, Peer] = {}
        self._channels = WorkerChannels(transport, addresses)  # to workers whose states were moved

    def start(self) -> None:
        """Connect to every worker, and again whenever a stream breaks."""
        settings = PeerSettings(GATEWAY, self._transport, eager=True, workflow=self.view.workflow, reply=self._reply)
        for name in self.workers:
            peer = Peer(name, self._addresses[name], settings, on_lost=self._on_lost, on_credit=self._on_credit)
            self._peers[name] = peer.start()
        self._closed.listen(self.view.workflow, self._on_routes_changed)

    async def close(self) -> None:
        """End all streams."""
        self._closed.leave(self.view.workflow, self._on_routes_changed)
        for task in self._describing.values():
            task.cancel()
        for peer in self._peers.values():
            await peer.close()
        await self._channels.close()

    @property
    def state(self) -> str:
        """One of: starting (no route has had all its workers yet), ready, degraded (some worker is not available, or
        requests are refused as workers are left to other workflows).

        A worker in quarantine is not waited for, as long as there are routes without it.
        """
        away = {worker.state for worker in self.workers.values() if worker.state != "ready"}
        if not away and self._routes.refused_text:
            return "degraded"
        if not away or (away == {"quarantined"} and self._has_route):
            return "ready"
        return "degraded" if self._routes.has_opened else "starting"

    @property
    def no_route_reason(self) -> str:
        """Why no route is left, worker by worker, or why all requests are refused; empty when some are answered."""
        if self._routes.refuses_all:
            return self._routes.refused_text
        away = {name for name, worker in self.workers.items() if worker.state != "ready"}
        if not all(away & self.workers_on(number) for number in range(len(self.view.routes))):
            return ""
        return f"no route is left: {self._told(away)}"

    @property
    def closed_reason(self) -> str:
        """Why sites have no open route, worker by worker; empty when all have one."""
        away = self._routes.missing_of_closed_sites()
        return f"no route is left: {self._told(away)}" if away else ""

    @property
    def missing_workers(self) -> str:
        """The workers that are not ready, with what keeps them from it if it is known; for messages."""
        missing = ((name, worker) for name, worker in self.workers.items() if worker.state != "ready")
        return ", ".join(f"{name} ({worker.blocked})" if worker.blocked else name for name, worker in missing)

    @property
    def starting_reason(self) -> str:
        """How many workers are ready, which are not, and what has no route without them; for messages at the start."""
        ready = sum(worker.state == "ready" for worker in self.workers.values())
        told = f"{ready} of {len(self.workers)} workers are ready, waiting for {self.missing_workers}"
        served = {
            name
            for route in self.view.routes
            for name, worker in route.items()
            if self.workers[worker].state == "ready"
        }
        unserved = [name for name in self.view.operators if name not in served and not self.view.is_of_audit(name)]
        why = f"no worker of {', '.join(unserved)} is there" if unserved else "no route has all its workers"
        return f"{told}; {why}"

    def _told(self, names: Iterable[str]) -> str:
        """What is known of workers that are away; for messages."""
        found = ((name, self.workers[name]) for name in sorted(names))
        return ", ".join(
            f"worker {name} is {worker.state}" + (f" ({worker.why})" if worker.why else "") for name, worker in found
        )

    @property
    def is_after_loss(self) -> bool:
        """True if some route of the plan is closed, also one of another workflow."""
        return self._routes.is_after_loss

    @property
    def has_attempts(self) -> bool:
        """True if an attempt over some route of this plan is in progress."""
        return self._attempts.total() > 0

    def block(self, name: str, reason: str) -> None:
        """Note why the box of a worker cannot become ready; empty: nothing keeps it from it any more."""
        if (worker := self.workers.get(name)) is not None and worker.state != "ready":
            worker.blocked = reason

    def signature(self, operator: str) -> agent_pb2.Signature | None:
        """Inputs and outputs of an operator's model, as most workers that run it say; None before one has said so."""
        return self.signatures.of(operator)

    async def metrics(self) -> dict[str, bytes]:
        """Metrics of every worker that answers, in Prometheus' text format: what it may state, and no more."""

        async def metrics_of(name: str) -> bytes:
            async with self._transport.channel(self._addresses[name], name, MAX_TEXT_BYTES + _FRAME_BYTES) as channel:
                request, kind = agent_pb2.MetricsRequest(), agent_pb2.MetricsResponse
                return bytes((await call_worker(channel, "Metrics", request, kind, _METRICS_S)).text)

        ready = [name for name, worker in self.workers.items() if worker.state in ("ready", "draining")]
        asked_s = time.monotonic()
        answers = await asyncio.gather(*map(metrics_of, ready), return_exceptions=True)
        texts = {name: text for name, text in zip(ready, answers, strict=True) if isinstance(text, bytes)}
        async with self._checking:  # one reading after the other
            checked = await asyncio.to_thread(self._checked, texts, asked_s, time.monotonic())
        for name, (_, refused) in checked.items():
            for kind, (count, example) in refused.items():
                self.claims.refuse(name, kind, example, count)
        return {name: text for name, (text, _) in checked.items()}

    def _checked(self, texts: Mapping[str, bytes], asked_s: float, now_s: float) -> dict[str, CheckedMetrics]:
        return {name: self._stated[name].checked(text, asked_s, now_s) for name, text in texts.items()}

    async def call_state(self, method: str, name: str, state: agent_pb2.StreamState) -> agent_pb2.StreamState:
        """Have a worker read or write the state of a stream. StatusError when it does not."""
        if self.workers[name].state in _TO_DESCRIBE:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, self._told([name]))
        channel, kind = self._channels.of(name), agent_pb2.StreamState
        state.operator = self.view.qualified(state.operator)
        try:
            answer = await call_worker(channel, method, state, kind, _STATE_S)
        except grpc.aio.AioRpcError as error:
            raise StatusError(error.code(), error.details() or error.code().name) from error
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            reason = "its plan was retired"  # which closed the channel under the call
            raise StatusError(grpc.StatusCode.UNAVAILABLE, reason) from error
        return answer

    # -- attempts -----------------------------------------------------------------------------------------------------

    def draw(self, *, is_new: bool) -> int | None:
        """A route for a new attempt, by the plan's weights; None when the route drawn is closed.

        `is_new`: the first attempt of a request. StatusError for it if other sites are served, and no route of the site
        drawn has had all its workers yet; and for attempts that are refused after a loss.
        """
        drawn = self._routes.draw()
        if drawn is None:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, self._routes.refused_text)
        route, is_open = drawn
        if not is_open:
            if is_new and self._routes.has_opened and not self._routes.has_site_opened(route):
                reason = f"no route is left: {self._told(self._routes.missing(route))}"
                raise StatusError(grpc.StatusCode.UNAVAILABLE, reason)
            return None
        if self._routes.is_barred(route):
            self.bar(route)  # this attempt is the probe; others wait for its result
        return route

    def draw_for(self, stream: str) -> int | None:
        """The route of a stream: always the same one while its workers are there; None when no route is open.

        StatusError for a stream that is refused after a loss.
        """
        route = self._routes.draw_for(stream)
        if route == len(self.view.routes):
            raise StatusError(grpc.StatusCode.UNAVAILABLE, self._routes.refused_text)
        return route

    def release_stream(self, stream: str) -> None:
        """Forget a stream's route."""
        self._routes.release_stream(stream)

    def workers_on(self, route: int, *, is_audit: bool = False) -> frozenset[str]:
        """All workers that an attempt on a route may reach, or an audit of its answer."""
        return self._routes.workers(route, is_audit=is_audit)

    def refuses(
        self,
        message: agent_pb2.Message,
        sender: str,
        route: int,
        operators: frozenset[str],
        *,
        is_audit: bool = False,
    ) -> bool:
        """True if a worker has no right to say this of an attempt on a route that `operators` answer; it is counted."""
        workers = self.workers_on(route, is_audit=is_audit)
        excess = self._rights.excess(message, sender, route, workers, operators)
        if excess:
            failure = message.failure
            stated = f"{failure.worker!r} failed" if message.HasField("failure") else f"{message.upstream!r} answers"
            self.claims.refuse(sender, excess, stated)
        return bool(excess)

    def alternative(self, route: int) -> int | None:
        """Another open route of the same site for a hedge; None when there is none over other workers."""
        return self._routes.alternative(route)

    def bar(self, route: int) -> None:
        """Close a route on which a hop failed, except for a probe now and then."""
        self._routes.bar(route)
        asyncio.get_running_loop().call_later(BARRED_S * 1.01, self._on_routes_changed)

    def send(
        self,
        key: str,
        route: int,
        inputs: Inputs,
        deadline_s: float,
        trace: RequestTrace,
        position: StreamPosition | None = None,
        *,
        is_audit: bool = False,
    ) -> None:
        """Start an attempt: send the sources' tensors to the first workers of the route.

        `inputs`: of the sources of the plan, or of those of its audit.
        """
        for name in self.workers_on(route, is_audit=is_audit):
            self._attempts[name] += 1
        number = self.view.plan_route(route)
        for source in inputs:
            for operator, edge_kind in self._source_outputs[source]:
                for path, tensor in source_messages(inputs[source], edge_kind):
                    message = agent_pb2.Message(
                        request_id=key,
                        route=number,
                        upstream=self.view.qualified(source),
                        downstream=self.view.qualified(operator),
                        path=path,
                        tensor=None if tensor is None else agent_pb2.Tensor(dtype=tensor.dtype, shape=tensor.shape),
                        plan=self.view.hash,
                    )
                    data = tensor.data if tensor is not None else b""
                    if position is not None:
                        message.stream, message.after = position.stream, position.after
                    trace.stamp(message)
                    place = tuple((one.index, one.count) for one in path)
                    worker = self.view.table.worker(route, operator, place, key)
                    tiers = (self.view.tier_of(source, route), self.view.workers[worker].tier)
                    due_s = 0.0
                    if tiers[0] != tiers[1]:
                        due_s = self.links.reserve(*tiers, len(data))
                        self.bytes_sent[source, *tiers] += len(data)
                        if self.on_sent is not None:
                            self.on_sent(self.view.hash, source, tiers, len(data))
                    self._peers[worker].put(message, due_s, deadline_s, data)

    def end_attempt(self, key: str, route: int, failure: agent_pb2.Failure | None, *, is_audit: bool = False) -> None:
        """Record the end of an attempt. After a failure, its request is dropped by the workers on its route.

        The answer of an audit says nothing of the workers that answer clients, so it opens no route.
        """
        names = self.workers_on(route, is_audit=is_audit)
        self._attempts.subtract(names)
        if failure is not None:
            message = agent_pb2.Message(request_id=key, failure=failure, plan=self.view.hash)
            for name in names:
                self._peers[name].forget(key)
                if self.workers[name].state != "gone":
                    self._peers[name].put(message)
        elif not is_audit and self._routes.unbar(route):
            self._on_routes_changed()
        self._release_draining()

    # -- what workers report ------------------------------------------------------------------------------------------

    def _on_credit(self, name: str, credit: agent_pb2.Credit) -> None:
        worker = self.workers[name]
        if credit.draining:
            if worker.state != "draining":
                LOG.info("%s is draining", name)
                worker.state, worker.reason = "draining", "it was asked to leave"
                self._on_routes_changed()
                self._release_draining()
        elif worker.state in _TO_DESCRIBE:
            running = self._describing.get(name)
            if running is None or running.done():
                self._describing[name] = asyncio.create_task(self._describe(name))

    async def _describe(self, name: str) -> None:
        """Ask a worker for its models' signatures, then mark it ready. Cancelled when the worker is lost."""
        worker = self.workers[name]
        status = await self._status_of(name, worker)
        if status is None or worker.state not in _TO_DESCRIBE:
            return
        if status.plan != self.view.hash or status.worker != name:
            stated = printable(f"{status.worker[:60]} of plan {status.plan[:12]}", 100)
            worker.reason = f"{stated} answers at its address"
            return
        if reason := protocol_mismatch("it", status.protocol or 1):
            worker.reason = reason
            LOG.warning("%s: %s", name, reason)
            return
        if self._reply is not None and not status.several_gateways:
            worker.reason = "it answers a single gateway, and the plan has several: update it"
            LOG.warning("%s: %s", name, worker.reason)
            return
        reason = self._compare_signatures(name, own_signatures(self.view, status.signatures))
        if reason:
            self._quarantine(name, reason)
            return
        worker.state, worker.reason, worker.blocked = "ready", "", ""
        LOG.info("%s is ready", name)
        self._on_routes_changed()

    def _compare_signatures(self, name: str, stated: Mapping[str, agent_pb2.Signature]) -> str:
        """Why a worker is left out for what it states of its models; workers that differ from it may be, too."""
        own = self.view.workers[name]
        if problem := problem_of(self.view, own, stated):
            return problem
        self.signatures.state(own, stated)
        disputed = self.signatures.disputed()
        for operator in disputed:
            if operator not in self._disputed:
                text = "workers state different inputs or outputs of %s: requests are not checked against them"
                LOG.warning(text, operator)
        self._disputed = disputed
        odd = self.signatures.odd()
        for other, why in odd.items():
            if other != name and self.workers[other].state == "ready":
                self._quarantine(other, why)
        return odd.get(name, "")

    def _quarantine(self, name: str, reason: str) -> None:
        """Send no new requests to a worker, until it describes itself otherwise: it is asked again and again."""
        worker = self.workers[name]
        if worker.reason != f"it {reason}":
            self.claims.refuse(name, reason)
        before, worker.state, worker.reason = worker.state, "quarantined", f"it {reason}"
        if before != worker.state:
            self._on_routes_changed()
        if before == "ready":
            self.left_out += 1
            self._on_worker_lost(self, name, worker.reason)

    async def _status_of(self, name: str, worker: Worker) -> agent_pb2.AgentStatus | None:
        """Ask a worker for its status, a few times; None if it never answers, with the reason set on `worker`."""
        async with self._transport.channel(self._addresses[name], name, MAX_DESCRIPTION_BYTES) as channel:
            request, kind = agent_pb2.DescribeRequest(), agent_pb2.AgentStatus
            for attempt in range(_DESCRIBE_TRIES):
                if attempt:
                    await asyncio.sleep(_DESCRIBE_PAUSE_S)
                try:
                    return await call_worker(channel, "Describe", request, kind, _DESCRIBE_S)
                except (grpc.aio.AioRpcError, StatusError) as error:
                    told = str(error) if isinstance(error, StatusError) else error.details() or error.code().name
                    details = printable(told, _MAX_REASON)
                    worker.reason = f"it does not describe itself: {details}"
                    LOG.warning("%s: %s", name, worker.reason)
        return None

    def _on_lost(self, name: str, reason: str, _undelivered: Sequence[agent_pb2.Message]) -> None:
        worker = self.workers[name]
        if (describing := self._describing.pop(name, None)) is not None:
            describing.cancel()  # the next connection asks again
        if worker.state == "starting":
            if reason != worker.reason:
                LOG.warning("%s is not up yet: %s", name, reason)
            worker.reason = reason
            return
        if worker.state != "gone":
            self.left_out += worker.state == "ready"
            LOG.warning("%s is gone: %s", name, reason)
        worker.state, worker.reason = "gone", reason
        self._on_routes_changed()
        self._on_worker_lost(self, name, reason)

    def _on_routes_changed(self) -> None:
        had_opened = self._routes.has_opened
        self._routes.reweight()
        if any(worker.state == "quarantined" for worker in self.workers.values()):
            self._has_route = not self.no_route_reason
        if self._routes.has_opened and not had_opened and self.missing_workers:
            LOG.info("serves over the routes whose workers are there; waiting for %s", self.missing_workers)
        self._on_change()

    def _release_draining(self) -> None:
        """End the stream to each draining worker that no attempt under way can reach any more."""
        for name, worker in self.workers.items():
            if worker.state == "draining" and not self._attempts[name]:
                self._peers[name].finish()
