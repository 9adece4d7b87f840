"""A model file run by onnxruntime in this process, on one thread; verified before it is loaded."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from jellybean_agent.errors import ModelError, PermanentError, describe_error
from jellybean_agent.execution.onnx_scan import OPERATOR_DOMAINS, scan_model
from jellybean_agent.tensors.dtypes import is_served, unserved_reason
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.NoModel, ort_errors.EngineError),
    *(ort_errors.RuntimeException, ort_errors.InvalidProtobuf, ort_errors.NotImplemented, ort_errors.InvalidGraph),
    *(ort_errors.EPFail, ort_errors.NoSuchFile, ort_errors.ModelLoaded),
)
_DTYPE_BY_ONNX_TYPE = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_ACCELERATORS = ("CUDAExecutionProvider", "ROCMExecutionProvider")
MAX_MODEL_BYTES = 2**31  # size limit of a protobuf message


class OnnxSession:
    """An ONNX model in this process."""

    def __init__(self, session: ort.InferenceSession, path: Path) -> None:
        self._session = session
        self.inputs, self.outputs = (tuple(map(_port, side)) for side in (session.get_inputs(), session.get_outputs()))
        for port in self.inputs:
            if reason := unserved_reason(port.dtype):
                raise ModelError(f"model {path}: input {port.name} {reason}")
        self._names = [port.name for port in self.outputs if is_served(port)]
        if not self._names:
            raise ModelError(f"model {path}: output {self.outputs[0].name} {unserved_reason(self.outputs[0].dtype)}")

    @classmethod
    def load(cls, path: Path, sha256: str, *, accelerated: bool) -> OnnxSession:
        """Load a model file. ModelError if it has another sha256, or cannot be loaded."""
        return cls(_inference_session(path, sha256, accelerated=accelerated), path)

    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        """All outputs that are tensors of numbers, in the model's order. PermanentError if onnxruntime fails."""
        try:
            outputs: Sequence[Array] = self._session.run(self._names, feed)
        except ORT_ERRORS as error:
            raise PermanentError(f"onnxruntime: {describe_error(error)[:300]}") from error
        return outputs


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_model(path: Path, sha256: str) -> bytes:
    """The content of a model file, verified. The file is read once, so the bytes hashed are the bytes loaded.

    ModelError if its sha256 differs from the plan's, or the agent refuses such models (`onnx_scan`).
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
    scan = scan_model(model)
    if scan.has_external_data:
        raise ModelError(f"model {path} keeps tensors in other files, which the plan's sha256 does not cover")
    if scan.unknown_operator:
        known = ", ".join(name or "ai.onnx" for name in OPERATOR_DOMAINS)
        raise ModelError(f"model {path}: operator {scan.unknown_operator} is not of {known}: others are not run")
    return model


def _inference_session(path: Path, sha256: str, *, accelerated: bool) -> ort.InferenceSession:
    model = read_model(path, sha256)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, and logged by the agent
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    available = ort.get_available_providers()
    providers = [name for name in _ACCELERATORS if accelerated and name in available] + ["CPUExecutionProvider"]
    try:
        return ort.InferenceSession(model, options, providers=providers)
    except ORT_ERRORS as error:
        raise ModelError(f"model {path}: {describe_error(error)[:300]}") from error


def _port(item: ort.NodeArg) -> TensorPort:
    shape = item.shape if isinstance(item.shape, list) else []  # lists of maps have none
    sizes = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in shape)
    return TensorPort(item.name, _DTYPE_BY_ONNX_TYPE.get(item.type, item.type), sizes)
