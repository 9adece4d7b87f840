"""The states that a worker's operators keep, by stream; rebuilt by the gateway where one is missing.

A state is named by the request that made it, so a chunk runs with exactly the state that it continues or not at all.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jellybean_agent.brain.messages import RunOperator, StreamPosition, WorkItem
from jellybean_agent.brain.plan_view import OperatorView
from jellybean_agent.errors import InvalidInputError, ModelError, PermanentError, StateMissingError
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array, dtype_name, tensor_mismatch
from jellybean_agent.worker.run_outputs import RunDone, is_direct_call

MAX_STREAMS = 4096  # per operator; beyond it the stream that was idle longest is forgotten
IDLE_S = 300.0  # after which a stream without chunks is forgotten

State = tuple[Array, ...]  # one tensor per state input, in the plan's order, with its 1 row first


def initial_state(ports: Sequence[TensorPort]) -> State:
    """The state at the begin of a stream: zeros for each of these inputs."""
    return tuple(np.zeros((1, *port.shape[1:]), port.dtype) for port in ports)


def check_state_ports(operator: OperatorView, inputs: Sequence[TensorPort], outputs: Sequence[TensorPort]) -> None:
    """ModelError unless each state input has a known size beside the leading one, and its output fits it."""
    by_name, sent = {port.name: port for port in inputs}, {port.name: port for port in outputs}
    for name, output in operator.state.items():
        port, made = by_name[name], sent.get(output)
        if made is None:
            raise ModelError(f"no output {output!r} for the state {name!r}; the model has {', '.join(sent)}")
        if not port.shape or min(port.shape[1:], default=0) < 0:
            raise ModelError(
                f"the state {name!r} has shape {list(port.shape)}: its sizes beside the rows must be fixed"
            )
        if made.dtype != port.dtype:
            raise ModelError(f"the state {name!r} is {port.dtype}, output {output!r} is {made.dtype}")


@dataclass(slots=True)
class _Stream:
    """Recent states of one stream, by the request that made each. `used_s`: time of the last chunk."""

    states: dict[str, State]
    used_s: float


class StreamStates:
    """The states of one worker. Thread-safe: runs end in the executor's thread, states are moved in the event loop."""

    def __init__(
        self,
        operators: Mapping[str, OperatorView],
        ports: Mapping[str, Sequence[TensorPort]],
        *,
        max_streams: int = MAX_STREAMS,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ports`: operator -> its state inputs in the plan's order; operators without a state are left out."""
        self._operators, self._ports = operators, ports
        self._max_streams, self._idle_s, self._clock = max_streams, idle_s, clock
        self._lock = threading.Lock()
        self._streams: dict[str, OrderedDict[str, _Stream]] = {name: OrderedDict() for name in ports}

    def count(self, operator: str) -> int:
        """Number of streams with a state at this operator."""
        return len(self._streams[operator])

    def fed(self, run: RunOperator) -> RunOperator:
        """The run with each item's state after its inputs; a run of an operator without a state is returned as it is.

        StateMissingError if a state is not here; PermanentError for a request without a stream.
        """
        if run.operator not in self._ports or is_direct_call(run):
            return run
        return replace(run, items=tuple(self._fed_item(run.operator, item) for item in run.items))

    def _fed_item(self, operator: str, item: WorkItem) -> WorkItem:
        if item.position is None:
            raise PermanentError("it keeps a state by stream, and the request names no stream")
        return replace(item, inputs=(*item.inputs, *self.read(operator, item.position)))

    def read(self, operator: str, position: StreamPosition) -> State:
        """The state at a position of a stream: zeros at its begin. StateMissingError if it is not here."""
        if not position.after:
            return initial_state(self._ports[operator])
        with self._lock:
            stream = self._streams[operator].get(position.stream)
            state = stream.states.get(position.after) if stream is not None else None
        if state is None:
            raise StateMissingError(f"no state of stream {position.stream} after request {position.after} is here")
        return state

    def write(self, operator: str, position: StreamPosition, state: State) -> None:
        """Take over a state that another worker made; at the stream's begin without tensors: forget the stream.

        InvalidInputError if it does not fit the model.
        """
        ports = self._ports[operator]
        if not position.after and not state:
            with self._lock:
                self._streams[operator].pop(position.stream, None)
            return
        if len(state) != len(ports):
            raise InvalidInputError(f"{len(state)} tensors for a state of {len(ports)}")
        for array, port in zip(state, ports, strict=True):
            if why := tensor_mismatch(dtype_name(array), array.shape, port.dtype, (1, *port.shape[1:])):
                raise InvalidInputError(f"state {port.name}: {why}")
        with self._lock:
            self._put(operator, position.stream, {position.after: state})

    def keep(self, run: RunOperator, done: RunDone) -> None:
        """Keep what a finished run made. PermanentError if a state has another shape than the model's input for it."""
        if run.operator not in self._ports or is_direct_call(run):
            return
        names, ports = self._operators[run.operator].state.values(), self._ports[run.operator]
        for item, made in zip(run.items, done.states, strict=True):
            state = tuple(made[name] for name in names)
            for array, port in zip(state, ports, strict=True):
                if array.shape != (1, *port.shape[1:]):
                    raise PermanentError(f"the state for {port.name} has shape {list(array.shape)}")
            if item.position is not None:
                self._keep_item(run.operator, item.request, item.position, state)

    def _keep_item(self, operator: str, request: str, position: StreamPosition, state: State) -> None:
        """Keep the state that a chunk continued, for its retries, and those made from it; older ones are dropped.

        A late attempt, whose own state was dropped since, is ignored: the stream has gone on.
        """
        with self._lock:
            stream = self._streams[operator].get(position.stream)
            known = stream.states if stream is not None else {position.after: initial_state(self._ports[operator])}
            if position.after in known:
                kept = dict(list(known.items())[list(known).index(position.after) :])
                self._put(operator, position.stream, {**kept, request: state})

    def _put(self, operator: str, name: str, states: dict[str, State]) -> None:
        streams, now_s = self._streams[operator], self._clock()
        streams[name] = _Stream(states, now_s)
        streams.move_to_end(name)
        while len(streams) > self._max_streams or now_s - next(iter(streams.values())).used_s > self._idle_s:
            streams.popitem(last=False)
