"""The brain of a worker: a pure state machine. Events in, instructions out; no clock, no sockets, no tensors.

It joins the inputs of a request, waits for the children of a fan-out, keeps a first-come-first-served queue and runs
one thing at a time. The agent drives it with gRPC and onnxruntime; the simulator drives it in virtual time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jellybean_agent.messages import (
    GATEWAY,
    Failed,
    Instruction,
    Message,
    Outputs,
    Path,
    Payload,
    Routes,
    Run,
    Send,
)

EdgeKind = Literal["each", "fan_out", "gather"]
Key = tuple[str, str, Path]  # operator, request, path at the operator's own depth


@dataclass(frozen=True, slots=True)
class OperatorWiring:
    """An operator's place in the DAG: (upstream, kind) per input edge, (downstream, kind) per output edge."""

    inputs: tuple[tuple[str, EdgeKind], ...]
    outputs: tuple[tuple[str, EdgeKind], ...]  # empty for a sink: its output is the answer


@dataclass(slots=True)
class _Pending:
    """Inputs of one request at one operator that have arrived, by input edge and child index."""

    route: int
    arrived: dict[str, dict[int, Payload]] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)  # gather edge -> number of children to wait for


class Brain:
    """State machine of one worker. Invariant: at most one Run is outstanding."""

    def __init__(self, worker: str, wiring: Mapping[str, OperatorWiring], routes: Routes) -> None:
        self._worker = worker
        self._wiring = wiring
        self._routes = routes
        self._kind = {(up, op): kind for op, wires in wiring.items() for up, kind in wires.inputs}
        self._pending: dict[Key, _Pending] = {}
        self._queue: deque[Run] = deque()
        self._running: Run | None = None
        self._next_run = 0

    @property
    def queued(self) -> int:
        """Runs that wait, the running one not counted."""
        return len(self._queue)

    @property
    def requests_in_hand(self) -> int:
        """Requests with anything here: waiting for inputs, queued or running."""
        running = {self._running.request} if self._running else set()
        return len({key[1] for key in self._pending} | {run.request for run in self._queue} | running)

    def received(self, message: Message) -> Sequence[Instruction]:
        """A message for one of this worker's operators has come."""
        out: list[Instruction] = []
        self._accept(message, out)
        self._start(out)
        return out

    def completed(self, run: int, outputs: Outputs) -> Sequence[Instruction]:
        """The outstanding run is done: send its outputs on, start the next."""
        done = self._take_running(run)
        out: list[Instruction] = []
        if done is not None:
            for downstream, kind in self._wiring[done.operator].outputs or ((GATEWAY, "each"),):
                for path, row in self._children(done.path, kind, outputs, downstream):
                    payload = None if _is_empty(path) else outputs.take(downstream, row)
                    self._emit(done.request, done.route, done.operator, downstream, path, payload, out)
        self._start(out)
        return out

    def failed(self, run: int, reason: str) -> Sequence[Instruction]:
        """The outstanding run failed: the whole request does."""
        done = self._take_running(run)
        out: list[Instruction] = []
        if done is not None:
            out.append(Failed(done.request, done.operator, reason))
            self._drop(done.request)
        self._start(out)
        return out

    def forget(self, request: str) -> Sequence[Instruction]:
        """The gateway has given the request up: free what waits for it. A run under way ends and leads nowhere."""
        self._drop(request)
        return ()

    def _take_running(self, run: int) -> Run | None:
        if self._running is None or self._running.run != run:
            return None
        done, self._running = self._running, None
        return done

    def _drop(self, request: str) -> None:
        for key in [key for key in self._pending if key[1] == request]:
            del self._pending[key]
        self._queue = deque(run for run in self._queue if run.request != request)

    def _start(self, out: list[Instruction]) -> None:
        if self._running is None and self._queue:
            self._running = self._queue.popleft()
            out.append(self._running)

    @staticmethod
    def _children(path: Path, kind: EdgeKind, outputs: Outputs, downstream: str) -> list[tuple[Path, int | None]]:
        if kind != "fan_out":
            return [(path, None)]
        count = outputs.rows(downstream)
        if count == 0:
            return [((*path, (0, 0)), None)]
        return [((*path, (row, count)), row) for row in range(count)]

    def _emit(
        self,
        request: str,
        route: int,
        upstream: str,
        downstream: str,
        path: Path,
        payload: Payload,
        out: list[Instruction],
    ) -> None:
        message = Message(request, route, upstream, downstream, path, payload)
        worker = GATEWAY if downstream == GATEWAY else self._routes[route][downstream]
        if worker == self._worker:
            self._accept(message, out)
        else:
            out.append(Send(worker, message))

    def _accept(self, message: Message, out: list[Instruction]) -> None:
        operator = message.downstream
        gather = self._kind[message.upstream, operator] == "gather"
        path = message.path[:-1] if gather else message.path
        index, count = message.path[-1] if gather else (0, 1)
        pending = self._pending.setdefault((operator, message.request, path), _Pending(message.route))
        pending.children[message.upstream] = count
        arrived = pending.arrived.setdefault(message.upstream, {})
        if count:
            arrived.setdefault(index, message.payload)  # a second copy of the same input changes nothing
        if self._is_complete(operator, pending):
            del self._pending[operator, message.request, path]
            self._ready(operator, message.request, path, pending, out)

    def _is_complete(self, operator: str, pending: _Pending) -> bool:
        return all(
            upstream in pending.children and len(pending.arrived[upstream]) >= pending.children[upstream]
            for upstream, _ in self._wiring[operator].inputs
        )

    def _ready(self, operator: str, request: str, path: Path, pending: _Pending, out: list[Instruction]) -> None:
        if _is_empty(path):
            self._pass_marker(operator, request, path, pending.route, out)
            return
        inputs = tuple(
            tuple(payload for _, payload in sorted(pending.arrived[upstream].items(), key=lambda item: item[0]))
            if kind == "gather"
            else pending.arrived[upstream][0]
            for upstream, kind in self._wiring[operator].inputs
        )
        self._queue.append(Run(self._next_run, operator, request, pending.route, path, inputs))
        self._next_run += 1

    def _pass_marker(self, operator: str, request: str, path: Path, route: int, out: list[Instruction]) -> None:
        """No child came this way: nothing to run, but whoever waits for children below must learn it."""
        for downstream, kind in self._wiring[operator].outputs or ((GATEWAY, "each"),):
            below = (*path, (0, 0)) if kind == "fan_out" else path
            self._emit(request, route, operator, downstream, below, None, out)


def _is_empty(path: Path) -> bool:
    return any(count == 0 for _, count in path)
