"""What the brain receives and what it asks for. Payloads are opaque: tensors when serving, nothing when simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Payload = Any
FanOutPath = tuple[tuple[int, int], ...]  # (index, count) per open fan-out, outermost first; count 0: no child at all

DIRECT_CALL_ROUTE = -1  # the route of what is on none: an operator that was asked for by itself
MAX_CHILDREN = 65536  # of one fan-out
GATEWAY = ""  # the downstream of a sink, and the worker name under which the gateway is addressed


@dataclass(frozen=True, slots=True)
class EdgeMessage:
    """One output on its way to one operator. `until`: when its request is too late, by the clock of who holds it."""

    request: str
    route: int
    upstream: str
    downstream: str
    path: FanOutPath = ()
    payload: Payload = None
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Hand `message` to `worker` (GATEWAY for an answer)."""

    worker: str
    message: EdgeMessage
    kind: Literal["send"] = "send"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """What one request, or one child of it, has an operator do.

    `number` counts a worker's items in the order in which they became ready, from 0. `inputs`: per input edge, in the
    operator's order, one payload or a tuple for a gather.
    """

    number: int
    request: str
    route: int
    path: FanOutPath
    inputs: tuple[Payload | tuple[Payload, ...], ...]


@dataclass(frozen=True, slots=True)
class RunOperator:
    """Execute `operator` on `items`, at once where their tensors allow it. There is one at least."""

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
    overloaded: bool = False  # the worker has no room for it; nothing is wrong with it
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class RequestExpired:
    """A request was dropped because it is too late. Whoever asked knows: nobody needs to be told."""

    request: str
    operator: str  # for which it waited; empty: for inputs
    kind: Literal["expired"] = "expired"


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Nothing is to run yet: call `due` at `until`, by the clock of the events. Others may be under way still."""

    until: float
    kind: Literal["wait"] = "wait"


Instruction = SendMessage | RunOperator | RequestFailed | RequestExpired | WakeAt


class Outputs(Protocol):
    """What a run gave for one item; the driver implements it over tensors, the simulator over random numbers."""

    def rows(self, downstream: str) -> int:
        """Leading dimension of the output on a FAN_OUT edge to `downstream`."""
        ...

    def take(self, downstream: str, row: int | None) -> Payload:
        """The payload for `downstream`: the whole output (None), or one row of it with a leading dimension of 1."""
        ...


class WorkerBrain(Protocol):
    """The interface of a worker's brain, as the agent's driver and the simulator use it."""

    def received(self, message: EdgeMessage, now: float = 0.0) -> Sequence[Instruction]: ...
    def completed(self, run: int, outputs: Sequence[Outputs], now: float = 0.0) -> Sequence[Instruction]: ...
    def failed(self, run: int, reason: str, now: float = 0.0) -> Sequence[Instruction]: ...
    def due(self, now: float) -> Sequence[Instruction]: ...
    def expire(self, now: float) -> Sequence[Instruction]: ...
    def forget(self, request: str) -> Sequence[Instruction]: ...


Routes = Sequence[Mapping[str, str]]  # operator -> worker, one mapping per route
