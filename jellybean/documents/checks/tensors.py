"""Inputs and outputs of ONNX models, and whether a model's output fits another model's input.

Models are batch-first: the tensor of a request has leading dimension 1; a fan-out sends each row of its output as a
tensor with leading dimension 1; a gather receives any number of rows. Symbolic and unknown dimensions match anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.documents.checks.foreign_files import DAMAGED, foreign_format
from jellybean_agent import PortNames, unserved_reason
from jellybean_solver import EdgeKind, JellyBeanError

Sizes = tuple[int | None, ...]  # of a tensor's dimensions; None: unknown


class ModelFileError(JellyBeanError):
    """A file that is not a usable ONNX model. `hint`: the next step."""

    def __init__(self, reason: str, hint: str = "export it again") -> None:
        super().__init__(f"{reason}: {hint}")
        self.reason, self.hint = reason, hint


SINGLE_ANSWER = (
    "a single number (shape []), and an answer has a row for each request: export the model with shape [1], or write "
    "another output of it as output: NAME in its variant"
)


BATCH_ADVICE = "export it with its rows first (torch: batch_first=True), their number dynamic, or 1"


@dataclass(frozen=True, slots=True)
class Tensor:
    """NumPy dtype name and shape of a tensor; None stands for an unknown shape or dimension."""

    dtype: str
    shape: Sizes | None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model."""

    name: str
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Inputs and outputs of a model, in order. `names`: the variant's own names of them."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    names: PortNames = field(default_factory=PortNames)

    def input_for(self, upstream: str, position: int) -> Port:
        """The input that an edge feeds: the one that the variant names, or of the upstream's name, or at `position`."""
        wanted = self.names.inputs.get(upstream, upstream)
        named = [port for port in self.inputs if port.name == wanted]
        return named[0] if named else self.inputs[position]

    def output(self, edge_output: str | None) -> Port | None:
        """The output for an edge with this `output` (None: it names none); None if the model has no such output."""
        name = self.names.output_of(edge_output)
        if name is None:
            return self.outputs[0]
        return next((port for port in self.outputs if port.name == name), None)


def _check_names(path: Path, proto: Any) -> None:
    """ModelFileError if an input, output or weight has a name that no request can state."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        if not isinstance(value.name, str):  # protobuf gives the bytes of text that is no UTF-8
            raise ModelFileError(f"{path.name}: the name {value.name!r:.80} is no UTF-8", "export it with another one")
        if "\0" in value.name:  # which ends a text for onnxruntime, and for the system
            raise ModelFileError(f"{path.name}: the name {value.name!r:.80} has a NUL", "export it with another one")
    for what, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for name, number in Counter(value.name for value in values).items():
            if number > 1:  # some versions of onnxruntime load it
                raise ModelFileError(f"{path.name}: {number} {what}s are called {name!r:.80}", "export it again")


def read_model(path: Path) -> ModelSignature:
    """Read inputs and outputs of an ONNX file; its data files are not read. ModelFileError if it is invalid."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, ValueError, RuntimeError) as error:
        reason, hint = foreign_format(path) or DAMAGED
        raise ModelFileError(f"{path.name} is not an ONNX model: {reason}", hint) from error
    _check_names(path, proto)
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_port(path, value) for value in proto.graph.input if value.name not in weights)
    outputs = tuple(_port(path, value) for value in proto.graph.output)
    if not proto.graph.node and not outputs:
        reason, hint = foreign_format(path) or ("it is damaged, or of another format", "export it again")
        raise ModelFileError(f"{path.name} is not an ONNX model with inputs and outputs: {reason}", hint)
    if not inputs:
        raise ModelFileError(f"{path.name} has no inputs, and so nothing that a request would bring")
    if not outputs:
        raise ModelFileError(f"{path.name} has no outputs, and so nothing to answer with")
    return ModelSignature(inputs, outputs)


def _port(path: Path, value: Any) -> Port:
    """The port of a value of the graph; of one that is not served, the dtype is its type as onnxruntime writes it."""
    import onnx

    if value.type.WhichOneof("value") != "tensor_type":
        return Port(value.name, Tensor(_type_text(value.type), None))
    kind = value.type.tensor_type
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path.name}: {value.name} has no known element type") from error
    if unserved_reason(dtype):
        dtype = _type_text(value.type)
    if not kind.HasField("shape"):
        return Port(value.name, Tensor(dtype, None))
    dims = tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else None
        for dim in kind.shape.dim
    )
    return Port(value.name, Tensor(dtype, dims))


def _type_text(kind: Any) -> str:
    """An ONNX type as onnxruntime writes it: seq(map(int64,tensor(float)))."""
    import onnx

    def element(number: int) -> str:
        return str(onnx.TensorProto.DataType.Name(number)).lower()

    form = str(kind.WhichOneof("value") or "unknown").removesuffix("_type")
    value: Any = getattr(kind, f"{form}_type", None)
    if form in ("tensor", "sparse_tensor"):
        return f"{form}({element(value.elem_type)})"
    if form == "map":
        return f"map({element(value.key_type)},{_type_text(value.value_type)})"
    return f"{form.replace('sequence', 'seq')}({_type_text(value.elem_type)})" if value is not None else form


def misfits(upstream: Tensor, port: Port, kind: EdgeKind) -> str:
    """Why a tensor does not fit a model input, in type and in shape; empty if it fits."""
    wanted = port.tensor
    dtypes = f"{upstream.dtype} given, {wanted.dtype} expected" if upstream.dtype != wanted.dtype else ""
    return "; ".join(filter(None, (dtypes, _shape_misfit(upstream, wanted, kind))))


def _shape_misfit(upstream: Tensor, wanted: Tensor, kind: EdgeKind) -> str:
    """Why the shape of a tensor is not the wanted one; empty if it is, or may be."""
    if upstream.shape is None or wanted.shape is None:
        return ""
    figures = f"{shape_text(upstream.shape)} given, {shape_text(wanted.shape)} expected"
    if len(upstream.shape) != len(wanted.shape):
        given = len(upstream.shape)
        return f"{given} dimension{'s' * (given != 1)} given, {len(wanted.shape)} expected ({figures})"
    # The leading dimension is not compared here: it counts rows, and `batch_problem` checks it.
    if not sizes_agree(upstream.shape[1:], wanted.shape[1:]):
        return f"shapes differ ({figures})"
    if kind is EdgeKind.EACH and upstream.shape and upstream.shape[0] not in (None, 1):
        return f"a request's tensor has 1 row, {upstream.shape[0]} given ({figures}); a ratio fans rows out"
    return ""


def sizes_agree(given: Sizes, wanted: Sizes) -> bool:
    """True if two shapes without the batch have equally many sizes, and no two known ones differ."""
    pairs = zip(given, wanted, strict=False)
    return len(given) == len(wanted) and all(one is None or other is None or one == other for one, other in pairs)


def half_precision_hint(one: Tensor, other: Tensor) -> str:
    """How a model in half precision keeps float32 inputs and outputs; empty for tensors of other types."""
    if {one.dtype, other.dtype} != {"float16", "float32"}:
        return ""
    return "convert the model with float32 inputs and outputs (keep_io_types=True of onnxconverter-common)"


def answers_differ(one: Port, other: Port) -> str:
    """How the answers of two variants differ in dtype or number of dimensions; empty if they do not."""
    left, right = one.tensor, other.tensor
    unknown = left.shape is None or right.shape is None
    if left.dtype == right.dtype and (unknown or len(left.shape or ()) == len(right.shape or ())):
        return ""
    texts = [f"{port.name!r} is {port.tensor.dtype} {shape_text(port.tensor.shape or ())}" for port in (one, other)]
    return ", or ".join(filter(None, (", ".join(texts), half_precision_hint(left, right))))


def batch_problem(port: Port, kind: EdgeKind) -> str:
    """Why the input's leading dimension does not fit this kind of edge; empty if it fits."""
    shape = port.tensor.shape
    if shape is None:
        return ""
    if not shape:
        return "a single value expected, but tensors have a leading dimension"
    if shape[0] is None:
        return ""
    if kind is EdgeKind.GATHER:
        return f"exactly {shape[0]} rows expected, but a gather gives any number"
    return f"exactly {shape[0]} rows expected, but a request has 1" if shape[0] != 1 else ""


def shape_text(shape: Sizes) -> str:
    """A shape as messages write it; n is any size."""
    return "[" + ", ".join("n" if dim is None else str(dim) for dim in shape) + "]"
