"""Events and instructions of the brain. It never reads payloads: tensors when serving, none in the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jellybean_agent.brain.held_inputs import Claim

Payload = Any
FanOutPath = tuple[tuple[int, int], ...]  # (child index, number of children) per open fan-out, outermost first
Routes = Sequence[Mapping[str, str]]  # operator -> worker, one mapping per route

DIRECT_CALL_ROUTE = -1  # the route of a direct call: an operator run by itself, outside the pipeline
MAX_CHILDREN = 65536  # most children of one fan-out
GATEWAY = ""  # the downstream of a sink, and the worker name under which the gateway is addressed


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The stream whose state a request needs; `after`: id of the request that made this state, empty: none did yet."""

    stream: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class EdgeMessage:
    """One output of an operator or source on its way along one edge of the DAG.

    `path`: one entry per open fan-out; an entry (0, 0) says that the fan-out has no children. `until`: the request's
    deadline in seconds, by the receiver's clock.
    """

    request: str
    route: int
    upstream: str
    downstream: str
    path: FanOutPath = ()
    payload: Payload = None
    until: float = math.inf
    position: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send `message` to `worker`; an answer goes to GATEWAY."""

    worker: str
    message: EdgeMessage
    kind: Literal["send"] = "send"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One unit of work of an operator: a request, or one child of its fan-outs, with all inputs joined.

    `number` counts a worker's items from 0 in the order in which they became ready. `inputs`: one entry per input edge,
    in the operator's order: a payload, or for a gather a tuple of payloads. `claims`: the bytes that its inputs keep.
    """

    number: int
    request: str
    route: int
    path: FanOutPath
    inputs: tuple[Payload | tuple[Payload, ...], ...]
    position: StreamPosition | None = None
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOperator:
    """Run `operator` on `items` (at least one), as one batch where their tensors can be stacked."""

    run: int
    operator: str
    items: tuple[WorkItem, ...]
    kind: Literal["run"] = "run"


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """Tell the gateway that a request cannot be answered."""

    request: str
    operator: str
    reason: str
    overloaded: bool = False  # the worker has no capacity for it; the request itself is valid
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class RequestExpired:
    """A request was dropped after its deadline. The gateway enforces this deadline too, so it is sent no message."""

    request: str
    operator: str  # in whose queue the request was; empty: it was waiting for inputs
    kind: Literal["expired"] = "expired"


@dataclass(frozen=True, slots=True)
class WakeAt:
    """No item is due yet: call `Brain.due` at time `until`, by the events' clock. Several may be pending at once."""

    until: float
    kind: Literal["wait"] = "wait"


Instruction = SendMessage | RunOperator | RequestFailed | RequestExpired | WakeAt


class Outputs(Protocol):
    """The outputs of a run for one item: tensors in the driver, random row counts in the simulator."""

    def rows(self, downstream: str) -> int:
        """Leading dimension of the output on the fan-out edge to `downstream`."""
        ...

    def take(self, downstream: str, row: int | None) -> Payload:
        """The payload for `downstream`: the whole output (`row` None), or one row with a leading dimension of 1."""
        ...


class WorkerBrain(Protocol):
    """The interface of a brain, as the agent's driver and the simulator use it."""

    def received(self, message: EdgeMessage, now: float = 0.0, *, more: bool = False) -> Sequence[Instruction]: ...
    def start(self, now: float = 0.0) -> Sequence[Instruction]: ...
    def completed(self, run: int, outputs: Sequence[Outputs], now: float = 0.0) -> Sequence[Instruction]: ...
    def failed(self, run: int, reason: str, now: float = 0.0) -> Sequence[Instruction]: ...
    def due(self, now: float) -> Sequence[Instruction]: ...
    def expire(self, now: float) -> Sequence[Instruction]: ...
    def forget(self, request: str) -> Sequence[Instruction]: ...
