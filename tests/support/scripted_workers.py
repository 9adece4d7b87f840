"""Workers without models that answer as a test says, and a gateway in the same process that they are connected to.

Both ends speak through the product's servers and streams, so every message crosses a Unix socket as bytes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from jellybean.serving.gateway.gateway import Gateway, GatewaySettings
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.tracing import Tracer
from jellybean.serving.spool.spool import Spool
from jellybean_agent import (
    DELIVER_METHOD,
    GATEWAY,
    EmulatedLinks,
    Inboxes,
    Peer,
    PeerSettings,
    PlanView,
    Policy,
    RpcServer,
    StreamSource,
    Transport,
    agent_service_handler,
    decode_tensor,
    encode_tensor,
    plan_view,
)
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import make_plan, scale

PLAIN = Transport("tiny", insecure=True)
PROTOCOL = 2
Behaviour = Callable[["ScriptedWorker", agent_pb2.Message], None]


def tensor(*values: float) -> agent_pb2.Tensor:
    """A row of values, as requests and answers of `scale` models have them."""
    return encode_tensor(np.array([values], np.float32))


# Inputs of a request to a plan of `scale` models.
INPUTS = {"x": tensor(1, 2, 3, 4)}


def answer(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
    """Send what it was given back, as its operator's answer."""
    worker.answer(message, message.tensor)


def hold(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
    """Answer nothing; the test does."""


def add_up(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
    """Answer the sum of a stream's chunks so far, if the state that the chunk continues is here."""
    before = worker.states.get((message.stream, message.after)) if message.after else tensor(0, 0, 0, 0)
    if before is None:
        worker.fail(message, grpc.StatusCode.ABORTED, f"the state of {message.stream} is not here")
        return
    total = encode_tensor(decode_tensor(before) + decode_tensor(message.tensor))
    worker.states[message.stream, message.request_id] = total
    worker.answer(message, total)


@dataclass(eq=False)
class ScriptedWorker:
    """A worker of a plan. `behaviour` gets each message with a tensor; `describes`: what it says of itself."""

    name: str
    view: PlanView
    address: str
    gateway_address: str
    behaviour: Behaviour = answer
    status: agent_pb2.AgentStatus = field(init=False)
    received: list[agent_pb2.Message] = field(default_factory=list)  # messages with a tensor
    dropped: list[agent_pb2.Message] = field(default_factory=list)  # notices that a request was given up
    states: dict[tuple[str, str], agent_pb2.Tensor] = field(default_factory=dict)  # by stream and attempt
    metrics: bytes = b""
    refuses_states: bool = False
    silences: int = 0  # times that it does not describe itself
    state_reads: int = 0  # states that the gateway has asked for
    others: Mapping[str, ScriptedWorker] = field(default_factory=dict)  # the plan's workers, by name
    _server: RpcServer | None = None

    def __post_init__(self) -> None:
        spec = agent_pb2.TensorSpec(dtype="float32", shape=[-1, 4])
        self.status = agent_pb2.AgentStatus(
            worker=self.name, plan=self.view.hash, state="ready", protocol=PROTOCOL, several_gateways=True
        )
        for name, operator in self.view.operators.items():
            if name in self.view.workers[self.name].operators:
                signature = self.status.signatures[name]
                for upstream, _ in operator.wiring.inputs:
                    signature.inputs[upstream].CopyFrom(spec)
                for downstream in [name for name, _ in operator.wiring.outputs] or [GATEWAY]:
                    signature.outputs[downstream].CopyFrom(spec)

    async def start(self) -> None:
        """Listen; the gateway connects by itself."""
        self._inboxes = Inboxes(self._receive, lambda _: False, workflows=self.view.workflows or ("",))
        self._peer = Peer(GATEWAY, self.gateway_address, PeerSettings(self.name, PLAIN, resends=True), on_lost=_ignore)
        self._peer.start()
        self._server = PLAIN.server(Policy(self.view.name, set(self.view.workers)))
        self._server.add_generic_rpc_handlers((self._handler(),))
        self._server.add_raw_stream(DELIVER_METHOD, self._inboxes.deliver_raw)
        PLAIN.bind(self._server, self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Break all streams, as a process that is killed."""
        if self._server is not None:
            server, self._server = self._server, None
            await self._peer.close()
            await server.stop(0)

    def drain(self) -> None:
        """Say that it is about to leave."""
        self._inboxes.announce_draining()

    @property
    def has_streams(self) -> bool:
        """True while the gateway has a stream to it."""
        return bool(self._inboxes.senders())

    def answer(self, message: agent_pb2.Message, found: agent_pb2.Tensor, **fields: Any) -> None:
        """Answer a message, as the operator that it was sent to. `fields`: of the answer, in place of the usual.

        An answer of an operator elsewhere comes from the worker that runs it, as if the request had gone on there.
        """
        told = {"upstream": message.downstream, "path": message.path, "tensor": found, **fields}
        runner = self.view.routes[message.route].get(told["upstream"], self.name)
        self.others.get(runner, self).forge(message, **told)

    def forge(self, message: agent_pb2.Message, **fields: Any) -> None:
        """Say something of the request of a message, whatever the plan says of who may."""
        told = {"request_id": message.request_id, "route": message.route, "plan": self.view.hash, **fields}
        self._peer.put(agent_pb2.Message(**told))

    def fail(self, message: agent_pb2.Message, status: grpc.StatusCode, reason: str) -> None:
        """Say that a request failed here."""
        failure = agent_pb2.Failure(
            worker=self.name, operator=message.downstream, reason=reason, status=int(status.value[0])
        )
        self.forge(message, failure=failure)

    def _receive(self, message: agent_pb2.Message, _source: StreamSource) -> None:
        if message.HasField("failure"):
            self.dropped.append(message)
        else:
            self.received.append(message)
            self.behaviour(self, message)

    def _handler(self) -> Any:
        methods = {
            "Describe": (self._describe, agent_pb2.DescribeRequest, agent_pb2.AgentStatus),
            "Metrics": (self._metrics, agent_pb2.MetricsRequest, agent_pb2.MetricsResponse),
            "ReadState": (self._read_state, agent_pb2.StreamState, agent_pb2.StreamState),
            "WriteState": (self._write_state, agent_pb2.StreamState, agent_pb2.StreamState),
        }
        return agent_service_handler(
            **{
                name: grpc.unary_unary_rpc_method_handler(method, request.FromString, response.SerializeToString)
                for name, (method, request, response) in methods.items()
            }
        )

    async def _describe(self, _request: agent_pb2.DescribeRequest, context: Any) -> agent_pb2.AgentStatus:
        if self.silences > 0:
            self.silences -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        return self.status

    async def _metrics(self, _request: agent_pb2.MetricsRequest, _context: Any) -> agent_pb2.MetricsResponse:
        return agent_pb2.MetricsResponse(text=self.metrics)

    async def _read_state(self, request: agent_pb2.StreamState, context: Any) -> agent_pb2.StreamState:
        self.state_reads += 1
        state = None if self.refuses_states else self.states.get((request.stream, request.after))
        if state is None:
            await context.abort(grpc.StatusCode.ABORTED, f"{self.name} has no state of {request.stream}")
        return agent_pb2.StreamState(tensors=[state])

    async def _write_state(self, request: agent_pb2.StreamState, context: Any) -> agent_pb2.StreamState:
        if self.refuses_states or request.plan != self.view.hash:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{self.name} takes no state")
        if request.tensors:
            self.states[request.stream, request.after] = request.tensors[0]
        return agent_pb2.StreamState()


def _ignore(*_: object) -> None:
    """The gateway is gone: so is the test."""


@dataclass
class Served:
    """A gateway and its workers, connected."""

    gateway: Gateway
    workers: dict[str, ScriptedWorker]

    @property
    def received(self) -> list[agent_pb2.Message]:
        """The messages that arrived at any worker."""
        return [message for worker in self.workers.values() for message in worker.received]

    async def sent(self, count: int = 1) -> list[agent_pb2.Message]:
        """Wait until so many messages have arrived at workers."""
        await until(lambda: len(self.received) >= count, f"{count} messages")
        return self.received


def run(test: Awaitable[None]) -> None:
    """Run a test in an event loop of its own."""
    asyncio.run(test)  # type: ignore[arg-type]


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until a condition holds; a TimeoutError says what did not come."""
    try:
        async with asyncio.timeout(30.0):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError as error:
        raise TimeoutError(f"it did not come within 30 s: {what or condition}") from error


def scale_view(root: Path, *workers: str, **settings: Any) -> PlanView:
    """The plan of one operator, `double`, that workers serve in equal shares. `settings`: of `make_plan`."""
    operators = {"double": (["x"], scale(root / "models/double.onnx", 2.0))}
    routes = [(1.0 / len(workers), {"double": worker}) for worker in workers]
    return plan_view(make_plan(root, operators, routes, **{"sources": {"x": "edge"}, **settings}))


def addresses_of(view: PlanView, folder: Path) -> dict[str, str]:
    """Sockets of the workers and the gateway of a plan."""
    files = {name: name.replace("/", "-") or "gateway" for name in (*view.workers, GATEWAY)}
    return {name: f"unix:{folder}/{file}" for name, file in files.items()}


@asynccontextmanager
async def socket_folder() -> AsyncIterator[Path]:
    """A private folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="jb-") as name:
        yield Path(name)


@asynccontextmanager
async def served(
    view: PlanView,
    settings: GatewaySettings = GatewaySettings(),
    *,
    behaviours: Mapping[str, Behaviour] = {},
    away: tuple[str, ...] = (),
    spool: Spool | None = None,
    tracer: Tracer | None = None,
    change: Callable[[Served], None] = lambda _: None,
    waits_for: tuple[str, ...] = (),
) -> AsyncIterator[Served]:
    """A gateway whose workers are all ready, but those in `away`, which are not started. `change`: called before.

    `waits_for`: workers that are ready, if not all are.
    """
    async with socket_folder() as folder, AsyncExitStack() as ended:
        addresses = addresses_of(view, folder)
        workers = {
            name: ScriptedWorker(name, view, addresses[name], addresses[GATEWAY], behaviours.get(name, answer))
            for name in (worker.name for worker in view.serving)
        }
        for worker in workers.values():
            worker.others = workers
        network = WorkerNetwork(PLAIN, set(view.workers), emulate=False)
        gateway = Gateway(
            view, addresses, EmulatedLinks((), None).open(), network, settings, spool=spool, tracer=tracer
        )
        found = Served(gateway, workers)
        change(found)
        server = PLAIN.server(Policy(view.name, set(view.workers)))
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, Inboxes(gateway.receive, lambda _: False).deliver_raw)
        PLAIN.bind(server, addresses[GATEWAY])
        await server.start()
        ended.push_async_callback(server.stop, 0)
        ended.push_async_callback(gateway.close)
        for name, worker in workers.items():
            if name not in away:
                await worker.start()
            ended.push_async_callback(worker.stop)
        gateway.start()
        states = gateway.plans.served.workers
        expected = waits_for or [name for name in workers if name not in away]
        await until(lambda: all(states[name].state == "ready" for name in expected), "workers")
        yield found
