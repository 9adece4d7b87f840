"""What ONNX models take and give, and whether one fits the other.

Models are batch-first: a request's tensor has leading dimension 1; a fan-out sends rows of its output as tensors of
leading dimension 1; a gather receives any number of rows. Symbolic and unknown dimensions fit anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean_solver import EdgeKind, JellyBeanError


class ModelError(JellyBeanError):
    """A file that is no usable ONNX model."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Element type as NumPy names it, and shape; None stands for what is not fixed."""

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model."""

    name: str
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Model:
    """A model's inputs and outputs, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def input_for(self, upstream: str, position: int) -> Port:
        """The input of an edge: the one with the upstream's name if there is one, else by position."""
        named = [port for port in self.inputs if port.name == upstream]
        return named[0] if named else self.inputs[position]

    def output(self, name: str | None) -> Port | None:
        """The output called `name`, the first for None; None when there is no such output."""
        if name is None:
            return self.outputs[0]
        return next((port for port in self.outputs if port.name == name), None)


def read_model(path: Path) -> Model:
    """Inputs and outputs of an ONNX file, weights left alone. ModelError when it is none, or keeps weights elsewhere.

    Weights in other files are refused because the plan names a model by the hash of one file.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{path.name} is no ONNX model ({str(error).splitlines()[0] if str(error) else 'empty'})"
        ) from error
    external = [t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if external:
        raise ModelError(f"{path.name} keeps {len(external)} weights in other files, which its sha256 does not cover")
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_port(path, value) for value in proto.graph.input if value.name not in weights)
    outputs = tuple(_port(path, value) for value in proto.graph.output)
    if not inputs or not outputs:
        raise ModelError(f"{path.name} is no ONNX model with inputs and outputs")
    return Model(inputs, outputs)


def _port(path: Path, value: Any) -> Port:
    import onnx

    if value.type.WhichOneof("value") != "tensor_type":
        raise ModelError(f"{path.name}: {value.name} is no tensor")
    kind = value.type.tensor_type
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path.name}: {value.name} has no known element type") from error
    if not kind.HasField("shape"):
        return Port(value.name, Tensor(dtype, None))
    dims = tuple(dim.dim_value if dim.WhichOneof("value") == "dim_value" else None for dim in kind.shape.dim)
    return Port(value.name, Tensor(dtype, dims))


def misfits(upstream: Tensor, port: Port, kind: EdgeKind) -> str:
    """Why a tensor does not fit a model input, in words; empty when it does."""
    wanted = port.tensor
    if upstream.dtype != wanted.dtype:
        return f"{upstream.dtype} given, {wanted.dtype} wanted"
    if upstream.shape is None or wanted.shape is None:
        return ""
    figures = f"{_text(upstream.shape)} given, {_text(wanted.shape)} wanted"
    if len(upstream.shape) != len(wanted.shape):
        return f"{len(upstream.shape)} dimensions given, {len(wanted.shape)} wanted ({figures})"
    # Leading dimensions are rows and not compared: a fan-out cuts them, a gather joins them, `batch_problem` sees to 1.
    for given, want in zip(upstream.shape[1:], wanted.shape[1:], strict=True):
        if given is not None and want is not None and given != want:
            return f"shapes differ ({figures})"
    if kind is EdgeKind.EACH and upstream.shape and upstream.shape[0] not in (None, 1):
        return f"a request's tensor has 1 row, {upstream.shape[0]} given ({figures}); a ratio would fan them out"
    return ""


def batch_problem(port: Port, kind: EdgeKind) -> str:
    """Why the input's own leading dimension cannot serve such an edge; empty when it can."""
    shape = port.tensor.shape
    if shape is None:
        return ""
    if not shape:
        return "a single value wanted, but tensors have a leading dimension"
    if shape[0] is None:
        return ""
    if kind is EdgeKind.GATHER:
        return f"exactly {shape[0]} rows wanted, but a gather brings any number"
    return f"exactly {shape[0]} rows wanted, but a request has 1" if shape[0] != 1 else ""


def _text(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("n" if dim is None else str(dim) for dim in shape) + "]"
