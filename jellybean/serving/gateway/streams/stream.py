"""One stream: what the gateway keeps of it, so that its state can be moved or rebuilt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jellybean.serving.gateway.plans.served_plan import ServedPlan
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean.serving.outcomes import Tensors
from jellybean_protos.agent.v1 import agent_pb2

COPY_EVERY = 16  # chunks between two copies of a stream's states: most chunks that are sent again after a kill
COPY_BYTES = 2**18  # bytes of chunks after which a copy is made sooner
KEPT_CHUNKS, KEPT_BYTES = 64, 2**22  # most chunks and bytes kept while no copy can be made
StateCode = Mapping[str, tuple[str | None, tuple[tuple[str, str], ...]]]


@dataclass(frozen=True, slots=True)
class Place:
    """The workers that have a stream's states: (operator, worker) of a plan."""

    plan: ServedPlan
    workers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, plan: ServedPlan, route: int) -> Place:
        """The place to which a route leads."""
        return cls(plan, tuple((name, plan.view.routes[route][name]) for name in plan.view.stateful))

    @property
    def code(self) -> StateCode:
        """What the states depend on: the model of each operator there, and which of its tensors are the state."""
        operators = (self.plan.view.seen_by(worker).operators[name] for name, worker in self.workers)
        return {operator.name: (operator.code_sha256, tuple(operator.state.items())) for operator in operators}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that was answered. `number`: in the stream, from 1."""

    number: int
    inputs: Inputs

    @property
    def size_bytes(self) -> int:
        return sum(len(tensor.data) for tensor in self.inputs.values())


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of a stream's states after chunk `number`, which the attempt `after` answered. Number 0: its begin."""

    number: int = 0
    after: str = ""
    states: Mapping[str, Sequence[agent_pb2.Tensor]] = field(default_factory=dict)  # by operator


@dataclass(eq=False, slots=True)
class Stream:
    """A stream of one client. Invariant: `after` names the states that chunk `number` made, unless `place` is None."""

    key: str  # to workers; never used for another stream
    name: str  # to people
    used_s: float  # CLOCK_MONOTONIC second of its last chunk
    code: StateCode = field(default_factory=dict)  # of the place that made its states
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the chunk that is being answered
    waiting: int = 0  # chunks that wait for their turn
    number: int = 0  # of the last chunk that was answered
    after: str = ""
    place: Place | None = None  # None: it is to be rebuilt
    answer: Tensors = field(default_factory=dict)  # to the last chunk
    copy: StateCopy = StateCopy()
    recent: deque[Chunk] = field(default_factory=deque)  # oldest first
    copying: asyncio.Task[None] | None = None

    def answered(self, inputs: Inputs, answer: Tensors, after: str, place: Place) -> None:
        """Record the answer to the next chunk."""
        if self.place != place:
            self.code = place.code
        self.number += 1
        self.answer, self.after, self.place = answer, after, place
        self.recent.append(Chunk(self.number, inputs))
        size_bytes = sum(chunk.size_bytes for chunk in self.recent)
        while len(self.recent) > 1 and (len(self.recent) > KEPT_CHUNKS or size_bytes > KEPT_BYTES):
            size_bytes -= self.recent.popleft().size_bytes

    @property
    def needs_copy(self) -> bool:
        """True if too many chunks would be sent again."""
        later = [chunk for chunk in self.recent if chunk.number > self.copy.number]
        return len(later) >= COPY_EVERY or sum(chunk.size_bytes for chunk in later) >= COPY_BYTES

    def keep_copy(self, copy: StateCopy) -> None:
        """Keep a newer copy. The chunks before it stay, up to `COPY_EVERY`: another model begins with them."""
        self.copy = copy
        while len(self.recent) > COPY_EVERY and self.recent[0].number <= copy.number:
            self.recent.popleft()
