"""Runs one operator's model with onnxruntime, or its Python function, on one thread.

The profiler measures through the same class, so what it writes down is what serving does. An emulated device stays
busy after the run for as long as its profile says.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from jellybean_agent.errors import AgentError, CrashError, InvalidInputError, ModelError, PermanentError, describe_error
from jellybean_agent.execution.emulation import EmulatedDevice
from jellybean_agent.execution.onnx_scan import DOMAINS, look_into
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.python_session import PythonSession
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.stacking import OperatorInput
from jellybean_agent.tensors.tensors import MAX_TENSOR_BYTES, Array, dtype_name, tensor_mismatch

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.NoModel, ort_errors.EngineError),
    *(ort_errors.RuntimeException, ort_errors.InvalidProtobuf, ort_errors.NotImplemented, ort_errors.InvalidGraph),
    *(ort_errors.EPFail, ort_errors.NoSuchFile, ort_errors.ModelLoaded),
)
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
CallAt = Callable[[float, Callable[[], None]], None]  # a second of CLOCK_MONOTONIC, what to do then
_ACCELERATORS = ("CUDAExecutionProvider", "ROCMExecutionProvider")
_WARM_UP_RUNS = 3
_MOST_FITTING = 1024
MAX_MODEL_BYTES = 2**31  # protobuf's own limit


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run gave and took. `busy_s` is how long the worker was occupied, emulation included.

    `late_s`: how much longer the run took here than on the device that is emulated.
    """

    outputs: Mapping[str, Array]
    busy_s: float
    late_s: float = 0.0


@dataclass(slots=True)
class Hold:
    """An answer that counts at a time only, that of an emulated device: before it, nobody looks for it.

    `at`: a timer. `is_late`: set when it was not there by then.
    """

    at: CallAt
    due_s: float
    is_late: bool = False


class Session(Protocol):
    """A model that is loaded. `run`: all outputs for the inputs by name; PermanentError when it fails."""

    @property
    def inputs(self) -> tuple[TensorPort, ...]: ...
    @property
    def outputs(self) -> tuple[TensorPort, ...]: ...
    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]: ...


OperatorCode = Path | PythonStep  # what an operator runs: a model file, or a function of a module


class OpenSession(Protocol):
    """Loads a model file, or a function, after its content was verified."""

    def __call__(self, code: OperatorCode, sha256: str, *, accelerated: bool) -> Session: ...


def open_local(code: OperatorCode, sha256: str, *, accelerated: bool) -> Session:
    """Into this process."""
    if isinstance(code, PythonStep):
        return PythonSession(code, sha256)
    return LocalSession(code, sha256, accelerated=accelerated)


class LocalSession:
    """A model file in this process."""

    def __init__(self, path: Path, sha256: str, *, accelerated: bool) -> None:
        self._session = _load(path, sha256, accelerated=accelerated)
        self.inputs = tuple(_port(item, str(path)) for item in self._session.get_inputs())
        self.outputs = tuple(_port(item, str(path)) for item in self._session.get_outputs())
        self._names = [port.name for port in self.outputs]

    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        try:
            found: Sequence[Array] = self._session.run(self._names, feed)
        except ORT_ERRORS as error:
            raise PermanentError(f"onnxruntime: {describe_error(error)[:300]}") from error
        return found


class Executor:
    """One model, loaded after its content was verified, with its inputs wired to upstream names.

    An edge feeds the model input named like its upstream, else the input at the edge's position. `batch`: the most
    requests that a run will be given, stacked along the leading dimension. `device`: emulated, without accelerators.
    `open_session`: where the model is loaded, by default into this process.
    Not safe for several threads: a worker runs one thing at a time.
    """

    def __init__(
        self,
        code: OperatorCode,
        sha256: str,
        input_order: Sequence[str],
        *,
        batch: int = 1,
        device: EmulatedDevice | None = None,
        accelerated: bool = True,
        open_session: OpenSession = open_local,
    ) -> None:
        self._session = open_session(code, sha256, accelerated=accelerated and device is None)
        self._device = device
        self.outputs = self._session.outputs
        self.inputs = _wire(self._session.inputs, input_order, str(code))
        self._upstreams = tuple(input_order)
        self.due_s: float | None = None  # when the last run on the emulated device was over, by time.perf_counter
        self.since_s: float | None = None  # since when the next one has it: nothing but this process was between them
        self._output_names = [port.name for port in self.outputs]
        self._fitting: set[tuple[str, np.dtype[Any], tuple[int, ...]]] = set()  # what fitted an input before
        fixed = [port for port in self.inputs if batch > 1 and port.shape[:1] != (-1,)]
        if fixed:
            raise ModelError(
                f"model {code}: input {fixed[0].name} has shape {_shown(fixed[0])}, so it takes one request at a "
                f"time, but the plan has batches of {batch}; take batch sizes above 1 out of its profile and plan again"
            )
        self._warm_up(batch)

    def run(self, inputs: Sequence[OperatorInput], requests: int = 1) -> RunResult:
        """One inference; `inputs` in the order of the edges, a tuple of the children's tensors for a gather.

        `requests`: how many are stacked in them. InvalidInputError when a tensor does not fit the model, PermanentError
        when onnxruntime fails.
        """
        began = time.perf_counter()
        if self._device is not None and self.since_s is not None:
            began, self.since_s = self.since_s, None
        feed = self._feed(inputs)
        found = self._session.run(feed)
        late_s = 0.0
        if self._device is not None:
            due_s = began + self._device.run_s(requests)
            left_s = due_s - time.perf_counter()
            late_s = max(0.0, -left_s)
            time.sleep(max(0.0, left_s))
            self.due_s = due_s + late_s
        outputs = dict(zip(self._output_names, found, strict=True))
        return RunResult(outputs, time.perf_counter() - began, late_s)

    @property
    def may_begin(self) -> bool:
        """Whether runs may begin without waiting: models in a host."""
        return bool(getattr(self._session, "may_begin", _never)())

    def begin(
        self,
        requests: Sequence[Sequence[OperatorInput]],
        done: Callable[[Sequence[RunResult] | AgentError], None],
        at: CallAt,
        *,
        size: int = 1,
        patience_s: float | None = None,
    ) -> None:
        """A run for each of the requests, one after another; the event loop calls `done` with what each gave.

        `at`: a timer, for devices that are emulated. `size`: how many requests are stacked in each. `patience_s`:
        `done` is called before this returns, if they take no longer; None where other requests wait.
        """
        began = time.perf_counter()
        if self._device is not None and self.since_s is not None:
            began, self.since_s = self.since_s, None
        feeds = [self._feed(inputs) for inputs in requests]

        hold: Hold | None = None
        if self._device is not None:
            hold = Hold(at, began + len(requests) * self._device.run_s(size))

        def told(found: Sequence[Sequence[Array]] | AgentError) -> None:
            if isinstance(found, AgentError):
                done(found)
                return
            now_s, late_s = time.perf_counter(), 0.0
            if hold is not None:
                late_s = max(0.0, now_s - hold.due_s) / len(found) if hold.is_late else 0.0
                self.due_s = now_s if hold.is_late else hold.due_s
            each_s = (now_s - began) / len(found)
            done([RunResult(dict(zip(self._output_names, outputs, strict=True)), each_s, late_s) for outputs in found])

        session: Any = self._session
        session.begin(feeds, told, patience_s, hold)

    def _feed(self, inputs: Sequence[OperatorInput]) -> dict[str, Array]:
        if len(inputs) != len(self.inputs):
            raise InvalidInputError(f"{len(inputs)} inputs for a model of {len(self.inputs)}")
        feed: dict[str, Array] = {}
        for value, port, upstream in zip(inputs, self.inputs, self._upstreams, strict=True):
            array = _gathered(value, port) if isinstance(value, tuple) else value
            kind = (port.name, array.dtype, array.shape)
            if kind not in self._fitting:
                why = tensor_mismatch(dtype_name(array), array.shape, port.dtype, port.shape)
                if why is not None:
                    raise InvalidInputError(f"input from {upstream}: {why}")
                if len(self._fitting) < _MOST_FITTING:
                    self._fitting.add(kind)
            feed[port.name] = array
        return feed

    def _warm_up(self, batch: int) -> None:
        """First runs allocate arenas. Open sizes are made up here, so a failure proves nothing; a crash does."""
        for size in sorted({1, batch, *(2**power for power in range(batch.bit_length()))}):
            shapes = [_sizes(port, size) for port in self.inputs]
            itemsizes = [np.dtype(port.dtype).itemsize for port in self.inputs]
            if sum(map(operator.mul, map(math.prod, shapes), itemsizes)) > MAX_TENSOR_BYTES:
                return
            feed = {port.name: np.zeros(shape, port.dtype) for port, shape in zip(self.inputs, shapes, strict=True)}
            for _ in range(_WARM_UP_RUNS):
                try:
                    self._session.run(feed)
                except CrashError as error:
                    raise ModelError(f"its first run: {error}") from error
                except PermanentError:
                    return


def _never() -> bool:
    return False


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_model(path: Path, sha256: str) -> bytes:
    """A model file whose content is the one that was planned. ModelError otherwise, and for what is not loaded here.

    The bytes that were hashed are the bytes that are loaded: the file is read once.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"model {path}: not a file")
            if status.st_size > MAX_MODEL_BYTES:
                raise ModelError(f"model {path}: {status.st_size} bytes; a model has at most {MAX_MODEL_BYTES}")
            model = file.read()
    except OSError as error:
        raise ModelError(f"model {path}: {describe_error(error)}") from error
    found = hashlib.sha256(model).hexdigest()
    if found != sha256:
        raise ModelError(f"model {path} has sha256 {found[:12]}..., the plan says {sha256[:12]}...: it was altered")
    looked = look_into(model)
    if looked.has_external_data:
        raise ModelError(f"model {path} keeps tensors in other files, which the plan's sha256 does not cover")
    if looked.foreign:
        known = ", ".join(name or "ai.onnx" for name in DOMAINS)
        raise ModelError(f"model {path}: operator {looked.foreign} is not of {known}: others are not run")
    return model


def _load(path: Path, sha256: str, *, accelerated: bool) -> ort.InferenceSession:
    model = read_model(path, sha256)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is said once, by us
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    available = ort.get_available_providers()
    providers = [name for name in _ACCELERATORS if accelerated and name in available] + ["CPUExecutionProvider"]
    try:
        return ort.InferenceSession(model, options, providers=providers)
    except ORT_ERRORS as error:
        raise ModelError(f"model {path}: {describe_error(error)[:300]}") from error


def _port(item: ort.NodeArg, model: str) -> TensorPort:
    if item.type not in _DTYPES:
        raise ModelError(f"model {model}: {item.name} is a {item.type}; only tensors of numbers can be served")
    return TensorPort(
        item.name, _DTYPES[item.type], tuple(s if isinstance(s, int) and s >= 0 else -1 for s in item.shape)
    )


def _sizes(port: TensorPort, batch: int) -> list[int]:
    sizes = [max(size, 1) for size in port.shape]
    return [batch, *sizes[1:]] if port.shape[:1] == (-1,) else sizes


def _shown(port: TensorPort) -> str:
    return "[" + ", ".join("any" if size == -1 else str(size) for size in port.shape) + "]"


def _wire(ports: Sequence[TensorPort], upstreams: Sequence[str], model: str) -> tuple[TensorPort, ...]:
    by_name = {port.name: port for port in ports}
    if len(ports) != len(upstreams):
        raise ModelError(f"model {model} has {len(ports)} inputs ({', '.join(by_name)}), its operator {len(upstreams)}")
    wired = tuple(by_name.get(upstream, ports[index]) for index, upstream in enumerate(upstreams))
    if len({port.name for port in wired}) != len(ports):
        names = ", ".join(f"{up} -> {port.name}" for up, port in zip(upstreams, wired, strict=True))
        raise ModelError(f"model {model}: two edges feed one input ({names}); name the inputs like the upstreams")
    return wired


def _gathered(children: tuple[Array, ...], port: TensorPort) -> Array:
    """The children's tensors one after another; none gives an empty tensor of the model's own type."""
    if not children:
        return np.zeros((0, *(max(size, 1) for size in port.shape[1:])), port.dtype)
    try:
        return np.concatenate(children, axis=0)
    except ValueError as error:
        raise InvalidInputError(f"the children's tensors do not fit together: {error}") from error
