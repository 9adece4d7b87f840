"""The workers of one plan as a gateway sees them: who is there, which routes are open, and the streams to them.

A worker is left out of new requests while it drains, is gone or says nothing, and taken back when it describes itself
again. So is a route on which one worker does not reach the next though the gateway reaches both: one request a second
tries it, until one is answered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from jellybean.serving.gateway.inputs import Inputs, children
from jellybean.serving.gateway.route_choice import PlaceDrawer
from jellybean_agent import GATEWAY, EmulatedLinks, Peer, PlanView, Transport, protocol_metadata, protocol_mismatch
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc

LOG = logging.getLogger("jellybean.gateway")
BARRED_S = 1.0  # between tries of a route on which a hop failed
_DESCRIBE_S = 10.0
_METRICS_S = 2.0
_DESCRIBE_TRIES, _DESCRIBE_AGAIN_S = 5, 0.5
_AWAY = ("draining", "gone")


@dataclass(slots=True)
class Worker:
    """What the gateway knows of one worker."""

    state: str = "starting"  # starting, ready, draining, gone
    reason: str = ""
    signatures: Mapping[str, agent_pb2.Signature] = field(default_factory=dict)


class Fleet:
    """`on_change()`: another route may be open, or another worker needed no more. `on_gone(fleet, worker, reason)`."""

    def __init__(
        self,
        view: PlanView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        transport: Transport,
        *,
        on_change: Callable[[], None],
        on_gone: Callable[[Fleet, str, str], None],
    ) -> None:
        self.view, self.links, self._addresses, self._transport = view, links, addresses, transport
        self._on_change, self._on_gone = on_change, on_gone
        self.workers = {worker.name: Worker() for worker in view.serving}
        self.left_out = 0  # times that a worker was left out because it was gone
        places = len(view.routes) // len(view.weights)
        self._drawer = PlaceDrawer(view.weights, places, periodic=view.periodic)
        self._barred: dict[int, float] = {}  # route -> CLOCK_MONOTONIC second of its next try
        self.crossed: Counter[tuple[str, str, str]] = Counter()  # bytes by source, tier and tier that they went to
        self._in_hand: Counter[str] = Counter()  # worker -> attempts that may come by there
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
            for name in self.workers
        }

    @property
    def state(self) -> str:
        """starting, ready, or degraded: some worker is not there."""
        states = {worker.state for worker in self.workers.values()}
        if "starting" in states:
            return "starting"
        return "ready" if states == {"ready"} else "degraded"

    @property
    def closed(self) -> str:
        """Why no request can go anywhere; empty when a route is open."""
        away = {name for name, worker in self.workers.items() if worker.state in _AWAY}
        if not all(away & set(route.values()) for route in self.view.routes):
            return ""
        return "no route is left: " + ", ".join(
            f"worker {name} is {self.workers[name].state} ({self.workers[name].reason})" for name in sorted(away)
        )

    @property
    def waiting_for(self) -> str:
        """Workers that were never there yet."""
        return ", ".join(name for name, worker in self.workers.items() if worker.state == "starting")

    @property
    def attempts(self) -> int:
        """Attempts under way, counted at each worker that they may come by: 0 when there are none."""
        return self._in_hand.total()

    def signature(self, operator: str) -> agent_pb2.Signature | None:
        """What an operator's model takes and gives; any worker that runs it knows."""
        return next((w.signatures[operator] for w in self.workers.values() if operator in w.signatures), None)

    def draw(self) -> int | None:
        """A route whose workers are all there, by the plan's weights; None when there is none where the draw fell."""
        route = self._drawer.draw()
        if self._is_left_out(route):
            return None
        if route in self._barred:
            self.bar(route)  # this request tries it; others wait for what becomes of it
        return route

    def aside(self, route: int) -> int | None:
        """Another open route of the same place, with the fewest of the same workers; None when all are the same."""
        used = set(self.view.routes[route].values())
        first = route - route % len(self.view.weights)
        found: list[tuple[int, int]] = []
        for other in range(first, first + len(self.view.weights)):
            workers = set(self.view.routes[other].values())
            if workers - used and other not in self._barred and not self._is_left_out(other):
                found.append((len(workers & used), other))
        return min(found)[1] if found else None

    def send(self, key: str, route: int, inputs: Inputs, until_s: float, trace: Any = None) -> None:
        """Begin an attempt: the sources' data to the first workers. InvalidInputError when it cannot be fanned out.

        `trace`: of its request (`RequestTrace`), where requests are traced.
        """
        for name in set(self.view.routes[route].values()):
            self._in_hand[name] += 1
        for source, outputs in self.view.source_outputs.items():
            for operator, kind in outputs:
                for position, tensor in children(inputs[source], kind):
                    message = agent_pb2.Message(
                        request_id=key,
                        route=route,
                        upstream=source,
                        downstream=operator,
                        path=position,
                        tensor=None if tensor is None else agent_pb2.Tensor(dtype=tensor.dtype, shape=tensor.shape),
                        plan=self.view.hash,
                    )
                    data = tensor.data if tensor is not None else b""
                    if trace is not None:
                        trace.stamp(message)
                    worker = self.view.routes[route][operator]
                    tiers = (self.view.tier_of(source, route), self.view.workers[worker].tier)
                    due_s = 0.0
                    if tiers[0] != tiers[1]:
                        due_s = self.links.reserve(*tiers, len(data))
                        self.crossed[source, *tiers] += len(data)
                    self._peers[worker].put(message, due_s, until_s, data)

    def over(self, key: str, route: int, failure: agent_pb2.Failure | None) -> None:
        """An attempt has ended. After a failure the workers on its route forget it; draining ones may be free to go."""
        names = set(self.view.routes[route].values())
        self._in_hand.subtract(names)
        if failure is not None:
            message = agent_pb2.Message(request_id=key, failure=failure, plan=self.view.hash)
            for name in names:
                self._peers[name].forget(key)
                if self.workers[name].state != "gone":
                    self._peers[name].put(message)
        elif self._barred.pop(route, None) is not None:
            self._reopen()
        self._let_go()

    def bar(self, route: int) -> None:
        """Leave a route out but for a try now and then: a worker on it does not reach the next."""
        self._barred[route] = time.monotonic() + BARRED_S
        asyncio.get_running_loop().call_later(BARRED_S * 1.01, self._reopen)
        self._redraw()

    async def metrics(self) -> list[bytes]:
        """Of every worker that answers, in Prometheus' text format."""

        async def of(name: str) -> bytes:
            async with self._transport.channel(self._addresses[name], name) as channel:
                stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
                asked = stub.Metrics(agent_pb2.MetricsRequest(), timeout=_METRICS_S, metadata=protocol_metadata())
                return bytes((await asked).text)

        ready = [name for name, worker in self.workers.items() if worker.state in ("ready", "draining")]
        found = await asyncio.gather(*map(of, ready), return_exceptions=True)
        return [text for text in found if isinstance(text, bytes)]

    async def close(self) -> None:
        """End all streams."""
        for task in self._describing.values():
            task.cancel()
        for peer in self._peers.values():
            await peer.close()

    # -- what workers say ---------------------------------------------------------------------------------------------

    def _credit(self, name: str, credit: agent_pb2.Credit) -> None:
        worker = self.workers[name]
        if credit.draining:
            if worker.state != "draining":
                LOG.info("%s is draining", name)
                worker.state, worker.reason = "draining", "it was asked to leave"
                self._reopen()
                self._let_go()
        elif worker.state in ("starting", "gone"):
            running = self._describing.get(name)
            if running is None or running.done():
                self._describing[name] = asyncio.create_task(self._describe(name))

    async def _describe(self, name: str) -> None:
        """Learn what the worker's models take and give; then it is ready. A loss of the worker cancels this."""
        worker = self.workers[name]
        status = await self._asked(name, worker)
        if status is None or worker.state not in ("starting", "gone"):
            return
        if status.plan != self.view.hash or status.worker != name:
            worker.reason = f"{status.worker} of plan {status.plan[:12]} answers at its address"
            return
        if reason := protocol_mismatch("it", status.protocol or 1):
            worker.reason = reason
            LOG.warning("%s: %s", name, reason)
            return
        worker.signatures = dict(status.signatures)
        worker.state, worker.reason = "ready", ""
        LOG.info("%s is ready", name)
        self._reopen()

    async def _asked(self, name: str, worker: Worker) -> agent_pb2.AgentStatus | None:
        """The worker's status, asked for a few times; None, and a reason, when it never answers."""
        async with self._transport.channel(self._addresses[name], name) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
            for attempt in range(_DESCRIBE_TRIES):
                if attempt:
                    await asyncio.sleep(_DESCRIBE_AGAIN_S)
                try:
                    status: agent_pb2.AgentStatus = await stub.Describe(
                        agent_pb2.DescribeRequest(), timeout=_DESCRIBE_S, metadata=protocol_metadata()
                    )
                    return status
                except grpc.aio.AioRpcError as error:
                    worker.reason = f"it does not describe itself: {error.details() or error.code().name}"
                    LOG.warning("%s: %s", name, worker.reason)
        return None

    def _lost(self, name: str, reason: str, _undelivered: Sequence[agent_pb2.Message]) -> None:
        worker = self.workers[name]
        if (describing := self._describing.pop(name, None)) is not None:
            describing.cancel()  # the next connection asks anew
        if worker.state == "starting":
            if reason != worker.reason:
                LOG.warning("%s is not there yet: %s", name, reason)
            worker.reason = reason
            return
        if worker.state != "gone":
            self.left_out += worker.state == "ready"
            LOG.warning("%s is gone: %s", name, reason)
        worker.state, worker.reason = "gone", reason
        self._reopen()
        self._on_gone(self, name, reason)

    def _is_left_out(self, route: int) -> bool:
        if self._barred.get(route, 0.0) > time.monotonic():
            return True
        return any(self.workers[name].state in _AWAY for name in set(self.view.routes[route].values()))

    def _redraw(self) -> None:
        """New requests go round what is left out, if any route does."""
        weights = [
            0.0 if self._is_left_out(route) else weight
            for route, weight in zip(range(len(self.view.routes)), itertools.cycle(self.view.weights), strict=False)
        ]
        self._drawer.redraw(weights)

    def _reopen(self) -> None:
        self._redraw()
        self._on_change()

    def _let_go(self) -> None:
        """End the stream to each draining worker that no attempt under way can reach any more."""
        for name, worker in self.workers.items():
            if worker.state == "draining" and not self._in_hand[name]:
                self._peers[name].finish()
