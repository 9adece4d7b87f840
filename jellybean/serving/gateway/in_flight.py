"""A request that a gateway has in hand, its attempts, and what became of all of them."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from jellybean.serving.gateway.answers import SinkAnswer
from jellybean.serving.gateway.fleet import Fleet
from jellybean.serving.gateway.inputs import Inputs
from jellybean.serving.outcomes import Outcome
from jellybean_agent import GATEWAY
from jellybean_protos.agent.v1 import agent_pb2

Tensors = Mapping[str, agent_pb2.Tensor]  # by source, or by sink
Tell = Callable[[Outcome | None, Tensors], None]  # why there is no answer, or the answer
LATENCY_BOUNDS_S = tuple(round(0.0005 * 1.3**step, 6) for step in range(46))  # up to 67 s


@dataclass(eq=False, slots=True)
class Attempt:
    """One way of a request through a fleet. Its `key` is never used twice, whatever ids clients choose."""

    key: str
    request: Request
    fleet: Fleet
    route: int
    answers: dict[str, SinkAnswer]
    missing: set[str]


@dataclass(eq=False, slots=True)
class Request:
    """A request in hand. Invariant: it is under way by `attempts`, or waits for a route, until it `is_over`."""

    inputs: Inputs
    until_s: float
    tell: Tell  # what becomes of it
    request_id: str  # the client's; empty: it gave none
    within_s: float  # that it had when it came
    sinks: frozenset[str]  # whose answers were asked for
    is_over: bool = False
    timer: asyncio.TimerHandle | None = None  # of its time
    attempts: dict[str, Attempt] = field(default_factory=dict)
    tries: int = 0
    lost: str = ""  # why the last attempt was
    hedging: asyncio.TimerHandle | None = None  # which sends it a second way
    slow: Attempt | None = None  # beside which it was sent a second way
    trace: Any = None  # where requests are traced: a RequestTrace


CLIENTS_OWN = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.CANCELLED,
    }
)


@dataclass(slots=True)
class Figures:
    """Requests since the start: how many, and the seconds from request to answer of all of them together."""

    answered: int = 0
    failed: int = 0  # or refused
    refused: int = 0  # because too many were in hand
    expired: int = 0  # their time was up
    wrong: int = 0  # of the failed: what the client asked for was, or it went away
    retried: int = 0  # attempts after the first, because that was lost
    hedged: int = 0  # attempts beside the first, because that was slow
    answered_s: float = 0.0
    failed_s: float = 0.0
    last_unix_s: float = 0.0  # 0: none yet
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))  # answers by seconds taken

    def count(self, outcome: Outcome | None, took_s: float) -> None:
        self.last_unix_s = time.time()
        if outcome is None:
            self.answered += 1
            self.answered_s += took_s
            self.latencies[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        else:
            self.failed += 1
            self.failed_s += took_s
            self.expired += outcome.status is grpc.StatusCode.DEADLINE_EXCEEDED
            self.wrong += outcome.status in CLIENTS_OWN


def outputs_of(attempt: Attempt) -> Iterator[tuple[str, agent_pb2.Tensor]]:
    """Sink -> answer."""
    for sink, answer in attempt.answers.items():
        signature = attempt.fleet.signature(sink)
        yield sink, answer.tensor(signature.outputs[GATEWAY] if signature else agent_pb2.TensorSpec())
