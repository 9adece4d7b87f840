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

    Instructions have a `kind`: `send` (worker, message), `run` (run, operator, items), `wait` (until: then call `due`)
    or `failed` (operator, reason), which a consistent plan never causes.
    """

    def received(self, message: Any, now: float) -> Sequence[Any]: ...
    def completed(self, run: int, outputs: Any, now: float) -> Sequence[Any]: ...
    def due(self, now: float) -> Sequence[Any]: ...


MakeWorkers = Callable[[Plan], Mapping[str, Worker]]  # by name, site by site (sites.py)
MakeTimes = Callable[[RequestStream, random.Random, float], Iterator[float]]  # stream, generator, phase -> arrivals


class Observer(Protocol):
    """Is called at every event, in virtual time; `place` is a worker of the plan or a link ("edge->cloud").

    `workflow`: the request's workflow, if there are several.
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


@dataclass(slots=True)
class RunOutputs:
    """The output of a run: no data, and a number of rows from one random draw (`level`) for all its edges."""

    ratios: Mapping[str, float]
    level: float
    shares: Sequence[float] = ()

    def rows(self, downstream: str) -> int:
        return child_count(self.ratios[downstream], self.level, self.shares)

    def take(self, downstream: str, row: int | None) -> None:
        return None
