"""Interfaces of the simulator: workers, arrival times, an observer, and the messages between them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jellybean_solver.model.distributions import child_count
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.streams import RequestStream
from jellybean_solver.simulation.answers import Path

GATEWAY = ""  # the worker name under which workers address the gateway


class Worker(Protocol):
    """A worker as the simulator sees it: at most one run at a time, of at most the plan's batch size.

    Its methods return instructions, which have a `kind` and attributes: `send` (worker, message), `run` (run, operator,
    items), `wait` (until: the time at which to call `due`) or `failed` (operator, reason; never in a consistent plan).
    No run starts between messages that arrive together (`more`); `start` is called after the last.
    """

    def received(self, message: Any, now: float, *, more: bool = False) -> Sequence[Any]: ...
    def start(self, now: float) -> Sequence[Any]: ...
    def completed(self, run: int, outputs: Any, now: float) -> Sequence[Any]: ...
    def due(self, now: float) -> Sequence[Any]: ...


MakeWorkers = Callable[[Plan], Mapping[str, Worker]]  # by name, site by site (sites.py)
MakeTimes = Callable[[RequestStream, random.Random, float], Iterator[float]]  # stream, generator, phase -> times


class StopSimulationError(Exception):
    """Raised by an observer that has seen enough: the simulation ends, and its result has the figures so far."""


class Observer(Protocol):
    """Callbacks for every event, with virtual times; `place` is a worker of the plan or a link ("edge->cloud").

    `workflow`: the request's workflow; "" if there is only one. May raise StopSimulationError.
    """

    def arrived(self, now: float, workflow: str) -> None: ...
    def answered(self, arrived_s: float, now: float, workflow: str) -> None: ...
    def busy(self, place: str, begin_s: float, end_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A source's data sent to one operator; has the attributes of an agent's message."""

    request: str
    route: int
    upstream: str
    downstream: str
    path: Path = ()
    payload: None = None
    until: float = math.inf  # no deadline
    position: None = None  # states have no effect on times


@dataclass(slots=True)
class RunOutputs:
    """The output of a run, without data. `level` in [0, 1): one random draw for the number of rows on all its edges."""

    ratios: Mapping[str, float]
    level: float
    shares: Sequence[float] = ()

    def rows(self, downstream: str) -> int:
        return child_count(self.ratios[downstream], self.level, self.shares)

    def take(self, downstream: str, row: int | None) -> None:
        return None
