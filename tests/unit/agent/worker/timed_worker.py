"""A worker whose runs take exact times of a simulated clock, and the messages that it sends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jellybean_agent import (
    GATEWAY,
    AgentError,
    Array,
    EmulatedLinks,
    Executor,
    StreamSource,
    TensorPort,
    decode_tensor,
    encode_tensor,
    plan_view,
)
from jellybean_agent.transport.message_wire import Data, message_parts
from jellybean_agent.worker.driver import Driver
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver.model.plan_document import Document
from tests.support.simulated_time import run_in_simulated_time
from tests.support.tiny_models import make_plan

RUN_S = 1.0
HASH = "0" * 64


@dataclass
class TimedSession:
    """A model that adds one to its first input, and this input to its states: a run takes `RUN_S` of the loop's time.

    `fault`: what its runs raise.
    """

    names: Sequence[str] = ("x",)
    states: Mapping[str, str] = field(default_factory=dict)  # input -> output, as in a plan
    fault: AgentError | None = None
    made: Array | None = None  # its first output, in place of the sum
    runs: list[list[float]] = field(default_factory=list)  # the first values of the items in each run
    is_warm: bool = False

    @property
    def inputs(self) -> tuple[TensorPort, ...]:
        return tuple(TensorPort(name, "float32", (-1, 2)) for name in (*self.names, *self.states))

    @property
    def example(self) -> list[Array]:
        """Inputs of one request."""
        return [np.zeros((1, 2), np.float32) for _ in self.inputs]

    @property
    def outputs(self) -> tuple[TensorPort, ...]:
        return tuple(TensorPort(name, "float32", (-1, 2)) for name in ("y", *self.states.values()))

    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        first = feed[self.names[0]] + np.float32(1) if self.made is None else self.made
        return [first, *(feed[name] + feed[self.names[0]] for name in self.states)]

    def can_run_async(self) -> bool:
        return True

    def run_async(
        self, feeds: Sequence[Mapping[str, Array]], finished: Callable[[Any], None], _spin_s: Any, _finish: Any
    ) -> None:
        for feed in feeds:
            self.runs.append(feed[self.names[0]][:, 0].tolist())
        results = self.fault if self.fault is not None else [self.run(feed) for feed in feeds]
        asyncio.get_running_loop().call_later(RUN_S, finished, results)


@dataclass
class SentMessages:
    """The messages to one process, in place of a peer's queue: each with the time before which it must not leave."""

    messages: list[agent_pb2.Message] = field(default_factory=list)
    due_s: list[float] = field(default_factory=list)
    until_s: list[float] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    expiries: int = 0
    expired: int = 0
    queued: int = 0

    def put(self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = math.inf, data: Data = b"") -> None:
        self.messages.append(agent_pb2.Message.FromString(b"".join(message_parts(message, data))))
        self.due_s.append(due_s)
        self.until_s.append(until_s)

    def forget(self, request: str) -> None:
        self.forgotten.append(request)

    def expire(self, _now_s: float) -> None:
        self.expiries += 1

    @property
    def answers(self) -> dict[str, float]:
        """Request -> the first value of its tensor."""
        return {
            message.request_id: float(decode_tensor(message.tensor)[0, 0])
            for message in self.messages
            if not message.HasField("failure")
        }

    @property
    def failures(self) -> dict[str, agent_pb2.Failure]:
        """Request -> why it failed."""
        return {message.request_id: message.failure for message in self.messages if message.HasField("failure")}


class Worker:
    """The driver of one worker of a plan, its models and what it sends."""

    def __init__(self, document: Document, name: str, folder: Path) -> None:
        self.view = plan_view(document)
        self.worker = own = self.view.workers[name]
        self.state = "ready"  # as an agent's
        self.sessions = {
            op: TimedSession([up for up, _ in self.view.operators[op].wiring.inputs]) for op in own.operators
        }
        self.executors = {
            operator: Executor(
                Path("model"), "", session.names, batch=own.batches[operator], open_session=lambda *_, s=session: s
            )
            for operator, session in self.sessions.items()
        }
        self.sent = {other: SentMessages() for other in (GATEWAY, *self.view.workers) if other != name}
        self._links = EmulatedLinks(self.view.links, folder / "links").open()
        peers: Any = self.sent
        self.driver = Driver(self.view, name, self.executors, peers, self._links)
        self.capacity: list[str] = []
        self.driver.on_capacity = self.capacity.append
        self.driver.start()

    @property
    def gateway(self) -> SentMessages:
        return self.sent[GATEWAY]

    def receive(
        self, request: str, value: float, downstream: str, upstream: str = "x", sender: str = GATEWAY, **more: Any
    ) -> None:
        """A message with a tensor of this value arrives from a process, by default a gateway."""
        tensor = encode_tensor(np.full((1, 2), value, np.float32))
        message = agent_pb2.Message(
            request_id=request, upstream=upstream, downstream=downstream, tensor=tensor, plan=self.view.hash
        )
        for name, content in more.items():
            setattr(message, name, content)
        self.driver.receive(message, StreamSource(sender))

    def give_up(self, request: str) -> None:
        """The gateway gives a request up."""
        failure = agent_pb2.Failure(reason="given up")
        message = agent_pb2.Message(request_id=request, failure=failure, plan=self.view.hash)
        self.driver.receive(message, StreamSource(GATEWAY))

    def close(self) -> None:
        self.driver.stop()
        self._links.close()


def one_operator(root: Path, **settings: Any) -> Document:
    """A plan of the operator `add` on worker edge-1."""
    return make_plan(root, {"add": (["x"], HASH)}, [(1.0, {"add": "edge-1"})], sources={"x": "edge"}, **settings)


def ones(value: float = 1.0) -> list[Array]:
    """The inputs of one request."""
    return [np.full((1, 2), value, np.float32)]


def with_worker(document: Document, name: str, folder: Path, test: Callable[[Worker], Awaitable[None]]) -> None:
    """Run a test with a worker, in simulated time."""

    async def run() -> None:
        worker = Worker(document, name, folder)
        try:
            await test(worker)
        finally:
            worker.close()

    run_in_simulated_time(run)
