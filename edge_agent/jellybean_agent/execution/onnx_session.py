"""A model file run by onnxruntime in this process, on one thread; verified before it is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from jellybean_agent.errors import ModelError, PermanentError, RefusedValuesError, describe_error
from jellybean_agent.execution.model_files import read_model
from jellybean_agent.execution.providers import (
    ORT_ERRORS,
    open_on_device,
    session_options,
    without_position,
)
from jellybean_agent.execution.value_faults import ValueFaults
from jellybean_agent.system.device import Device
from jellybean_agent.tensors.dtypes import is_served, no_served_output, unserved_reason
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import MAX_TENSOR_RANK, Array

_DTYPE_BY_ONNX_TYPE = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_MAX_TEXT = 300  # characters of onnxruntime's message


class OnnxSession:
    """An ONNX model in this process."""

    def __init__(self, session: ort.InferenceSession, path: Path) -> None:
        self._session = session
        self.inputs, self.outputs = (tuple(map(_port, side)) for side in (session.get_inputs(), session.get_outputs()))
        for port in self.inputs:
            if reason := unserved_reason(port.dtype):
                raise ModelError(f"model {path}: input {port.name} {reason}")
            if len(port.shape) > MAX_TENSOR_RANK:
                count = len(port.shape)
                raise ModelError(
                    f"model {path}: input {port.name} has {count} dimensions, and a tensor at most {MAX_TENSOR_RANK}"
                )
        self._value_faults = ValueFaults(self._run)
        self._names = [port.name for port in self.outputs if is_served(port)]
        if not self._names:
            raise ModelError(f"model {path}: {no_served_output([(port.name, port.dtype) for port in self.outputs])}")

    @classmethod
    def load(cls, path: Path, sha256: str, device: Device) -> OnnxSession:
        """Load a model file. ModelError if it has another sha256, or cannot be loaded onto the device."""
        return cls(_inference_session(path, sha256, device), path)

    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        """All outputs that are tensors of numbers, in the model's order.

        PermanentError if onnxruntime fails; RefusedValuesError if that is due to the values of the inputs.
        """
        try:
            return self._run(feed)
        except ORT_ERRORS as error:
            if self._value_faults.is_one(feed, error):
                raise RefusedValuesError(_status_message(error)) from error
            raise PermanentError(f"onnxruntime: {describe_error(error)[:_MAX_TEXT]}") from error

    def _run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        outputs: Sequence[Array] = self._session.run(self._names, feed)
        return outputs


def _status_message(error: Exception) -> str:
    """The node that failed and why, without onnxruntime's codes and source positions."""
    text = " ".join(str(error).split())
    node = re.search(r"while running (\S+) node", text)
    reason = without_position(text.rpartition("Status Message: ")[2])
    return f"{node[1]}: {reason}"[:_MAX_TEXT] if node else reason[:_MAX_TEXT]


def _inference_session(path: Path, sha256: str, device: Device) -> ort.InferenceSession:
    model = read_model(path, sha256)
    options = session_options(device)
    if model.data:
        if not hasattr(options, "add_external_initializers_from_files_in_memory"):
            raise ModelError(f"model {path}: weights in data files need a newer onnxruntime than {ort.__version__}")
        sizes = [len(content) for content in model.data.values()]
        options.add_external_initializers_from_files_in_memory([*model.data], [*model.data.values()], sizes)
    return open_on_device(model.onnx, options, device, str(path))


def _port(item: ort.NodeArg) -> TensorPort:
    shape = item.shape if isinstance(item.shape, list) else []  # lists of maps have none
    sizes = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in shape)
    return TensorPort(item.name, _DTYPE_BY_ONNX_TYPE.get(item.type, item.type), sizes)
