"""Runs one operator's model or Python function, with its inputs wired to the upstream operators.

The profiler measures through the same class, so profiles describe what serving does. On an emulated device a run lasts
as long as the device's profile says.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jellybean_agent.brain.audit_view import AUDIT_PREFIX
from jellybean_agent.errors import AgentError, CrashError, InvalidInputError, ModelError, PermanentError
from jellybean_agent.execution.emulation import CallAt, EmulatedDevice, EmulatedFinish
from jellybean_agent.execution.session import OpenSession, OperatorCode, open_in_process
from jellybean_agent.system.device import CPU, Device
from jellybean_agent.tensors.constants import constant_tensor
from jellybean_agent.tensors.dtypes import is_served, unserved_reason
from jellybean_agent.tensors.ports import (
    TensorPort,
    constant_value,
    counted_upstream,
    rows_axis,
    rows_first,
    state_output,
)
from jellybean_agent.tensors.stacking import GatheredBatch, RunInput, arrays_of
from jellybean_agent.tensors.tensors import MAX_TENSOR_BYTES, Array, dtype_name, tensor_mismatch
from jellybean_protos.plan_format import WORKFLOW_SEPARATOR

_WARM_UP_RUNS = 3
_MAX_CHECKED_KINDS = 1024  # number of (input, dtype, shape) that are remembered as valid


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs of one run. `busy_s`: seconds for which the worker was occupied, emulation included.

    `late_s`: seconds by which the run took longer than on the emulated device.
    """

    outputs: Mapping[str, Array]
    busy_s: float
    late_s: float = 0.0


class Executor:
    """One loaded model or Python function. Not thread-safe: a worker runs one batch at a time.

    An edge feeds the model input that the variant names for it, else the one with its upstream's name, else the one at
    the edge's position. Inputs that take numbers of gathered rows are fed here, from what the edges bring, and those
    that take a constant. All tensors have their rows first: those of a state that the model has elsewhere are moved.
    """

    def __init__(
        self,
        code: OperatorCode,
        sha256: str,
        input_order: Sequence[str] | Mapping[str, str],
        *,
        batch: int = 1,
        emulated: EmulatedDevice | None = None,
        device: Device = CPU,
        open_session: OpenSession = open_in_process,
    ) -> None:
        """Load and warm up the model. ModelError when it cannot be loaded or does not fit the operator.

        `input_order`: upstream per input edge; a mapping also has the model input of each ("": not named). `batch`:
        most requests stacked in one run. `emulated`: emulated device, if any. `device`: on which the model runs.
        `open_session`: loads the model, by default into this process.
        """
        self._session = open_session(code, sha256, device)
        self._emulated = emulated
        wired = list(zip(_wire(self._session.inputs, input_order, str(code)), input_order, strict=True))
        values = {name: constant_value(name, port.name) for port, name in wired}
        self._upstreams = tuple(name for _, name in wired if counted_upstream(name) is None and values[name] is None)
        self._axes, self._made_axes = _state_axes(wired)
        self.inputs = tuple(_with_axis(port, self._axes) for port, name in wired if name in self._upstreams)
        self.outputs = tuple(_with_axis(port, self._made_axes) for port in self._session.outputs if is_served(port))
        self._constants = {
            port.name: constant_tensor(text, port) for port, name in wired if (text := values[name]) is not None
        }
        self._counters = tuple(
            (port, self._upstreams.index(counted))
            for port, name in wired
            if (counted := counted_upstream(name)) is not None
        )
        self.due_s: float | None = None  # when the last run on the emulated device ended (time.perf_counter)
        self.since_s: float | None = None  # when the next run starts on the device, if it follows without a pause
        self._output_names = [port.name for port in self.outputs]
        self._valid_kinds: set[tuple[str, np.dtype[Any], tuple[int, ...]]] = set()
        fixed = [port for port in self.inputs if batch > 1 and port.shape[:1] != (-1,)]
        if fixed:
            raise ModelError(
                f"model {code}: input {fixed[0].name} has shape {_shape_text(fixed[0])}, so it takes one request at a "
                f"time, but the plan has batches of {batch}; take batch sizes above 1 out of its profile and plan again"
            )
        self._warm_up(batch)

    def run(self, inputs: Sequence[RunInput], requests: int = 1) -> RunResult:
        """One inference. `inputs`: one per input edge, in their order; for a gather a tuple of the children's tensors.

        `requests`: number of requests stacked in the inputs. InvalidInputError when a tensor does not fit the model,
        PermanentError when the run fails.
        """
        began_s = self._start_s()
        outputs = self._session.run(self._feed(inputs))
        ended_s, late_s = time.perf_counter(), 0.0
        if self._emulated is not None:
            due_s = began_s + self._emulated.run_s(requests)
            late_s = max(0.0, ended_s - due_s)
            time.sleep(max(0.0, due_s - ended_s))
            self.due_s = ended_s = due_s + late_s  # the device's time, not that of a sleep that was longer
        return RunResult(self._named(outputs), ended_s - began_s, late_s)

    def check_output(self, name: str | None) -> None:
        """ModelError unless the model has this output (None: a first one), and it is served."""
        ports = {port.name: port for port in self._session.outputs}
        port = ports.get(name) if name is not None else self._session.outputs[0]
        if port is None:
            raise ModelError(f"no output {name}; the model has {', '.join(sorted(ports))}")
        if reason := unserved_reason(port.dtype):
            raise ModelError(f"output {port.name} {reason}")

    @property
    def can_run_async(self) -> bool:
        """True if `run_async` is possible now: the model is loaded in a model process."""
        return bool(getattr(self._session, "can_run_async", _never)())

    def run_async(
        self,
        requests: Sequence[Sequence[RunInput]],
        done: Callable[[Sequence[RunResult] | AgentError], None],
        call_at: CallAt,
        *,
        size: int = 1,
        spin_s: float | None = None,
    ) -> None:
        """Start one run per entry of `requests`, in their order, and return; the event loop calls `done`.

        `call_at`: timer for emulated devices. `size`: requests stacked in each run. `spin_s`: seconds to busy-wait for
        the results; if they arrive, `done` is called before this returns. None if other requests are queued.
        """
        began_s = self._start_s()
        feeds = [self._feed(inputs) for inputs in requests]
        finish: EmulatedFinish | None = None
        if self._emulated is not None:
            finish = EmulatedFinish(call_at, began_s + len(requests) * self._emulated.run_s(size))

        def finished(results: Sequence[Sequence[Array]] | AgentError) -> None:
            if isinstance(results, AgentError):
                done(results)
                return
            ended_s, late_s = time.perf_counter(), 0.0
            if finish is not None:
                late_s = max(0.0, ended_s - finish.due_s) / len(results) if finish.is_late else 0.0
                ended_s = ended_s if finish.is_late else finish.due_s  # a late timer is not the device
                self.due_s = ended_s
            each_s = (ended_s - began_s) / len(results)
            try:
                named = [self._named(outputs) for outputs in results]
            except AgentError as error:
                done(error)
                return
            done([RunResult(outputs, each_s, late_s) for outputs in named])

        session: Any = self._session
        session.run_async(feeds, finished, spin_s, finish)

    def _start_s(self) -> float:
        """Start time of the run: now, or on an emulated device the end of the previous run (`since_s`)."""
        if self._emulated is not None and self.since_s is not None:
            since_s, self.since_s = self.since_s, None
            return since_s
        return time.perf_counter()

    def _feed(self, inputs: Sequence[RunInput]) -> dict[str, Array]:
        """The arrays for the model by input name. InvalidInputError if one does not fit the model's ports."""
        if len(inputs) != len(self.inputs):
            raise InvalidInputError(f"{len(inputs)} inputs for a model of {len(self.inputs)}")
        feed: dict[str, Array] = dict(self._constants)
        for value, port, upstream in zip(inputs, self.inputs, self._upstreams, strict=True):
            array = value if isinstance(value, np.ndarray) else _concatenate_children(arrays_of(value), port)
            kind = (port.name, array.dtype, array.shape)
            if kind not in self._valid_kinds:
                mismatch = tensor_mismatch(dtype_name(array), array.shape, port.dtype, port.shape)
                if mismatch is not None:
                    raise InvalidInputError(f"input from {upstream}: {mismatch}")
                if len(self._valid_kinds) < _MAX_CHECKED_KINDS:
                    self._valid_kinds.add(kind)
            feed[port.name] = self._as_model_has_it(port, array)
        for port, edge in self._counters:
            value, rows = inputs[edge], feed[self.inputs[edge].name].shape[0]
            each = value.rows if isinstance(value, GatheredBatch) else (rows,)
            feed[port.name] = np.array(each, port.dtype)
        return feed

    def _as_model_has_it(self, port: TensorPort, array: Array) -> Array:
        axis = self._axes.get(port.name)
        return array if axis is None else np.ascontiguousarray(np.moveaxis(array, 0, axis))

    def _named(self, outputs: Sequence[Array]) -> dict[str, Array]:
        """The outputs by name. PermanentError if a state has too few dimensions for its axis of rows."""
        named = dict(zip(self._output_names, outputs, strict=True))
        for name, axis in self._made_axes.items():
            if name in named:
                if named[name].ndim <= axis:
                    shape = list(named[name].shape)
                    raise PermanentError(f"output {name}, a state, has shape {shape}: no rows along axis {axis}")
                named[name] = np.ascontiguousarray(np.moveaxis(named[name], axis, 0))
        return named

    def _warm_up(self, batch: int) -> None:
        """Run the model a few times, as its first runs allocate memory.

        Inputs are zeros of made-up sizes, so a failed run is ignored; a crash is a ModelError.
        """
        for size in sorted({1, batch, *(2**power for power in range(batch.bit_length()))}):
            shapes = [_concrete_shape(port, size) for port in self.inputs]
            itemsizes = [np.dtype(port.dtype).itemsize for port in self.inputs]
            if sum(map(operator.mul, map(math.prod, shapes), itemsizes)) > MAX_TENSOR_BYTES:
                return
            zeros = [np.zeros(shape, port.dtype) for port, shape in zip(self.inputs, shapes, strict=True)]
            feed = dict(self._constants)
            feed |= {
                port.name: self._as_model_has_it(port, array) for port, array in zip(self.inputs, zeros, strict=True)
            }
            feed |= {port.name: np.ones(size, port.dtype) for port, _ in self._counters}
            for _ in range(_WARM_UP_RUNS):
                try:
                    self._session.run(feed)
                except CrashError as error:
                    raise ModelError(f"its first run: {error}") from error
                except PermanentError:
                    return


def _state_axes(wired: Sequence[tuple[TensorPort, str]]) -> tuple[dict[str, int], dict[str, int]]:
    """Input -> axis of its rows, and output -> axis of its rows, of states that do not have them first."""
    taken: dict[str, int] = {}
    made: dict[str, int] = {}
    for port, upstream in wired:
        output, axis = state_output(upstream, port.name), rows_axis(port.shape)
        if output is not None and axis:
            taken[port.name] = made[output] = axis
    return taken, made


def _with_axis(port: TensorPort, axes: Mapping[str, int]) -> TensorPort:
    return replace(port, shape=rows_first(port.shape, axes[port.name])) if port.name in axes else port


def _never() -> bool:
    return False


def _concrete_shape(port: TensorPort, batch: int) -> list[int]:
    """A port's shape with unknown sizes (-1) replaced: the leading one by `batch`, others by 1."""
    sizes = [max(size, 1) for size in port.shape]
    return [batch, *sizes[1:]] if port.shape[:1] == (-1,) else sizes


def _shape_text(port: TensorPort) -> str:
    return "[" + ", ".join("any" if size == -1 else str(size) for size in port.shape) + "]"


def _wire(
    ports: Sequence[TensorPort], upstreams: Sequence[str] | Mapping[str, str], model: str
) -> tuple[TensorPort, ...]:
    """The model input that each edge feeds. ModelError unless edges and inputs match one to one."""
    by_name = {port.name: port for port in ports}
    if len(ports) != len(upstreams):
        raise ModelError(f"model {model} has {len(ports)} inputs ({', '.join(by_name)}), its operator {len(upstreams)}")
    named = {up: name for up, name in upstreams.items() if name} if isinstance(upstreams, Mapping) else {}
    if unknown := [name for name in named.values() if name not in by_name]:
        raise ModelError(f"model {model} has no input {unknown[0]!r}; it has {', '.join(by_name)}")
    for upstream in upstreams:
        named.setdefault(upstream, upstream if upstream in by_name else _written_name(upstream))
    # Edges without a name are counted among the inputs that edges feed, as the document's checks do.
    fed_here = {named[upstream] for upstream in upstreams if _is_fed_here(upstream, named[upstream])}
    free = {port.name: port for port in ports if port.name not in fed_here}
    by_position = iter(free.values())
    wired = tuple(
        by_name[named[upstream]]
        if _is_fed_here(upstream, named[upstream])
        else free.get(named[upstream], next(by_position))
        for upstream in upstreams
    )
    if len({port.name for port in wired}) != len(ports):
        names = ", ".join(f"{up} -> {port.name}" for up, port in zip(upstreams, wired, strict=True))
        raise ModelError(f"model {model}: two edges feed one input ({names}); name each with the variant's `inputs`")
    return wired


def _is_fed_here(upstream: str, name: str) -> bool:
    """True if no edge feeds a model input, but a count of rows, a constant or a state."""
    values = counted_upstream(upstream), constant_value(upstream, name), state_output(upstream, name)
    return values != (None, None, None)


def _written_name(upstream: str) -> str:
    """What the workflow's document calls an upstream, whose name in a plan may have its workflow's before it."""
    return upstream.rpartition(WORKFLOW_SEPARATOR)[2].removeprefix(AUDIT_PREFIX)


def _concatenate_children(children: tuple[Array, ...], port: TensorPort) -> Array:
    """The children's tensors concatenated along axis 0; without children an empty tensor of the port's dtype."""
    if not children:
        return np.zeros((0, *(max(size, 1) for size in port.shape[1:])), port.dtype)
    try:
        return np.concatenate(children, axis=0)
    except ValueError as error:
        raise InvalidInputError(f"the children's tensors do not fit together: {error}") from error
