"""An ONNX model as a graph: which node reads which tensor, tensor sizes from a run, nodes grouped into layers.

A layer is a node with weights of two or more dimensions, or a node with several inputs, together with the unary nodes
after it that normalise, activate, pool or reshape its output, and the unary nodes before it that only enlarge its
input. A cut inside a layer would split the work about as a cut at its boundary does, but send at least as many bytes.
Nodes that depend on no model input are constants; both sides of a cut get a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError

from jellybean.documents.checks.foreign_files import DAMAGED, foreign_format
from jellybean.errors import DocumentError, DocumentProblem, InputError
from jellybean_agent import ORT_ERRORS, describe_error

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
_FAILED: tuple[type[Exception], ...] = (*ORT_ERRORS, ValueError)
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
# ONNX operators whose output shapes depend on input values, so that shapes seen in one run may differ in the next.
_OPEN_SHAPES = {"NonZero", "NonMaxSuppression", "Unique", "Compress", "Loop", "If", "Scan", "StringSplit"}


_PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}  # of types smaller than a byte
MAX_GRAPH_BYTES = 2**31 - 1  # a model with all its weights is passed to onnxruntime as one protobuf message


class GraphError(InputError):
    """A model that cannot be loaded or run node by node; the message says why."""


@dataclass(frozen=True, slots=True)
class ObservedTensor:
    """A tensor as observed in runs of one request each.

    `rows`: True if the leading dimension counts requests. `fixed`: True if all other dimensions are the same for every
    request.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    rows: bool
    fixed: bool


class OnnxGraph:
    """The nodes of a model, numbered in the model's order, with the tensors that each node and its subgraphs use.

    `reads`, `writes`: node index -> tensor names. `producer`: tensor name -> index of the node that writes it.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        graph = proto.graph
        if graph.sparse_initializer:
            raise GraphError("the model has sparse weights, which are not split; export them dense")
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = tuple(value.name for value in graph.input if value.name not in self.weights)
        self.outputs = tuple(value.name for value in graph.output)
        self.reads = tuple(tuple(dict.fromkeys(names_read(node))) for node in graph.node)
        self.writes = tuple(tuple(name for name in node.output if name) for node in graph.node)
        self.producer = {name: index for index, names in enumerate(self.writes) for name in names}
        known = {*self.weights, *self.inputs, *self.producer}
        for index, names in enumerate(self.reads):
            if missing := [name for name in names if name not in known]:
                raise GraphError(f"node {graph.node[index].name or index} reads {missing[0]!r}, which nothing makes")

    @classmethod
    def load(cls, path: Path) -> OnnxGraph:
        """Load a model file and its external weight files. GraphError if it is not an ONNX model."""
        if not path.is_file():
            raise DocumentError([DocumentProblem(str(path), None, None, "", "there is no such file")])
        try:
            proto = onnx.load(str(path), format="protobuf", load_external_data=False)  # whatever its name ends in
            if not proto.graph.node:  # as an empty file is read
                raise DecodeError
        except OSError as error:
            raise GraphError(f"{path} cannot be read: {describe_error(error)}") from error
        except (DecodeError, ValueError, RuntimeError) as error:
            what, advice = foreign_format(path) or DAMAGED
            raise GraphError(f"{path} is not an ONNX model: {what}: {advice}") from error
        outside = [one for one in proto.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL]
        try:
            onnx.load_external_data_for_model(proto, str(path.parent))
        except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
            raise GraphError(f"weights of {path} in other files cannot be read: {describe_error(error)}") from error
        if cut_off := next(filter(None, map(_lacking, outside)), ""):
            raise GraphError(f"weights of {path} in other files cannot be read: {cut_off}")
        if proto.ByteSize() > MAX_GRAPH_BYTES:
            raise GraphError(f"{path} has above 2 GiB of weights: such models are served, but not split (cuts: 0)")
        return cls(proto)

    @cached_property
    def constant(self) -> frozenset[int]:
        """Indices of the nodes that depend on no input of the model."""
        found: set[int] = set()
        for index, names in enumerate(self.reads):
            observed = [name for name in names if name not in self.weights]
            known = all(self.producer.get(name, -1) in found for name in observed)
            if known and self.proto.graph.node[index].op_type not in _RANDOM:
                found.add(index)
        return frozenset(found)

    @cached_property
    def live(self) -> tuple[int, ...]:
        """Indices of the nodes that depend on an input of the model, in order."""
        return tuple(index for index in range(len(self.reads)) if index not in self.constant)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the outputs of live nodes that another node reads or that the model returns, in order."""
        read = {name for names in self.reads for name in names} | set(self.outputs)
        return tuple(name for index in self.live for name in self.writes[index] if name in read)

    def needed(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """The given nodes and all constant nodes that they depend on, in order."""
        found, waiting = set(nodes), list(nodes)
        while waiting:
            for name in self.reads[waiting.pop()]:
                producer = self.producer.get(name)
                if producer in self.constant and producer not in found:
                    found.add(producer)
                    waiting.append(producer)
        return tuple(sorted(found))

    def parameter_bytes(self, nodes: Sequence[int]) -> int:
        """Bytes of the weights that the nodes read; a shared weight counts once."""
        names = {name for index in self.needed(nodes) for name in self.reads[index]}
        return sum(_nbytes(self.weights[name]) for name in names if name in self.weights)

    def observe(self, feeds: Sequence[Feed], *, pairs: bool = True) -> dict[str, ObservedTensor]:
        """Run the model on each feed (one request each); returns tensor name -> observation, inputs included.

        With `pairs`, two requests are also run as one batch, if the model accepts that, to see which tensors have one
        row per request. Sequences and maps are left out. GraphError if the model does not run.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        extra = [name for name in self.tensors if name not in self.outputs]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        session = node_session(proto)
        names = [*self.outputs, *extra]
        runs = [_run(session, names, feed) for feed in feeds]
        batch = self._batch_of_two(feeds) if pairs else None
        both = _run(session, names, batch) if batch is not None else None
        fixed = self._fixed_shapes(session)
        runs = [{**feed, **run} for feed, run in zip(feeds, runs, strict=True)]
        both = {**batch, **both} if batch is not None and both is not None else None
        found: dict[str, ObservedTensor] = {}
        for name in (*self.inputs, *names):
            values = [run[name] for run in runs]
            if not all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in values):
                continue
            shape = values[0].shape
            rows = len(shape) > 0 and all(value.shape[:1] == (1,) for value in values)
            if both is not None and rows:
                rows = both[name].shape == (2, *shape[1:])
            same = fixed and all(value.shape == shape for value in values)
            nbytes = round(sum(value.nbytes for value in values) / len(values))
            found[name] = ObservedTensor(values[0].dtype.name, tuple(shape), nbytes, rows, same)
        return found

    def _batch_of_two(self, feeds: Sequence[Feed]) -> Feed | None:
        """The first and the last request as one batch; None if the batch dimension is fixed or their shapes differ."""
        open_ = [value.type.tensor_type.shape.dim[:1] for value in self.proto.graph.input if value.name in self.inputs]
        if not all(dims and not dims[0].HasField("dim_value") for dims in open_):
            return None
        first, last = feeds[0], feeds[-1]
        if any(first[name].shape[1:] != last[name].shape[1:] for name in first):
            return None
        return {name: np.concatenate([first[name], last[name]]) for name in first}

    def _fixed_shapes(self, session: ort.InferenceSession) -> bool:
        """True if the batch dimension is the only dynamic one and no operator's output shape depends on values."""
        nodes = self.proto.graph.node
        if self.proto.functions or any(node.op_type in _OPEN_SHAPES for node in nodes):
            return False
        return all(isinstance(size, int) for item in session.get_inputs() for size in item.shape[1:])

    def groups(self, observed: Mapping[str, ObservedTensor]) -> tuple[tuple[int, ...], ...]:
        """The layers: groups of indices of live nodes (those that depend on a model input)."""
        group: dict[int, int] = {}
        found: list[list[int]] = []
        early: dict[int, list[int]] = {}  # node -> preceding nodes that only enlarge its input
        for index in self.live:
            nodes = [*early.pop(index, []), index]
            consumer = self._layer_prepared_by(nodes, observed)
            follows = self._extends_layer_of(index, observed)
            if consumer is not None:
                early.setdefault(consumer, []).extend(nodes)
            elif follows in group:
                group.update(dict.fromkeys(nodes, group[follows]))
                found[group[follows]] += nodes
            else:
                group.update(dict.fromkeys(nodes, len(found)))
                found.append(nodes)
        return tuple(tuple(nodes) for nodes in found)

    def _extends_layer_of(self, index: int, observed: Mapping[str, ObservedTensor]) -> int:
        """Index of the node that produces this node's input, if this node belongs to the same layer; otherwise -1.

        It belongs to that layer if it is unary, the only reader of its input, and writes no more bytes than it reads.
        """
        source, sent = self._unary(index, observed)
        if source is None or sent is None or source not in self.producer or self._sole_consumer(source) != index:
            return -1
        return self.producer[source] if observed[sent].nbytes <= observed[source].nbytes else -1

    def _layer_prepared_by(self, nodes: Sequence[int], observed: Mapping[str, ObservedTensor]) -> int | None:
        """Index of the node that reads the output of the unary chain `nodes`, if the chain only enlarges its input.

        The chain then belongs to that node's layer; otherwise None.
        """
        source, sent = self._unary(nodes[0], observed)[0], self._unary(nodes[-1], observed)[1]
        if source is None or sent is None or observed[sent].nbytes <= observed[source].nbytes:
            return None
        return self._sole_consumer(sent)

    def _unary(self, index: int, observed: Mapping[str, ObservedTensor]) -> tuple[str | None, str | None]:
        """(input, output) tensor names of a node, if it is unary and has no weight matrix; otherwise (None, None)."""
        names = [name for name in self.reads[index] if self.producer.get(name) not in self.constant]
        live = [name for name in names if name not in self.weights]
        sent = [name for name in self.writes[index] if name in observed]
        if len(live) != 1 or len(sent) != 1 or live[0] not in observed or self.has_matrix(index):
            return None, None
        return live[0], sent[0]

    def _sole_consumer(self, name: str) -> int | None:
        """Index of the only node that reads a tensor; None if several nodes read it or it is a model output."""
        consumers = self.consumers.get(name, ())
        return consumers[0] if len(consumers) == 1 and name not in self.outputs else None

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor -> the live nodes that read it."""
        found: dict[str, tuple[int, ...]] = {}
        for index in self.live:
            for name in self.reads[index]:
                found[name] = (*found.get(name, ()), index)
        return found

    def has_matrix(self, index: int) -> bool:
        """True if a node has weights of two or more dimensions; biases, scales, shapes and axes have one."""
        names = {name for node in self.needed([index]) for name in self.reads[node]}
        weights = [self.weights[name] for name in names if name in self.weights]
        weights += [
            attribute.t
            for node in self.needed([index])
            if self.proto.graph.node[node].op_type == "Constant"
            for attribute in self.proto.graph.node[node].attribute
        ]
        return any(sum(size > 1 for size in tensor.dims) > 1 for tensor in weights)


def _nbytes(tensor: onnx.TensorProto) -> int:
    size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=np.int64)) * int(size)


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads: its inputs, and the outer tensors that its subgraphs read."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            local = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                yield from (name for name in names_read(inner) if name not in local)
                local.update(inner.output)
            yield from (value.name for value in graph.output if value.name not in local)


def node_session(proto: onnx.ModelProto, *, fused: bool = False, profile_prefix: str = "") -> ort.InferenceSession:
    """An onnxruntime session on one thread. `fused`: with graph optimisations, which fuse nodes.

    GraphError if the model cannot be loaded.
    """
    options = ort.SessionOptions()
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile_prefix:
        options.enable_profiling, options.profile_file_prefix = True, profile_prefix
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ORT_ERRORS as error:
        raise GraphError(f"onnxruntime: {str(error).splitlines()[0][:300]}") from error


def _run(session: ort.InferenceSession, names: Sequence[str], feed: Feed) -> dict[str, Any]:
    try:
        return dict(zip(names, session.run(list(names), dict(feed)), strict=True))
    except _FAILED as error:
        raise GraphError(f"onnxruntime: {str(error).splitlines()[0][:300]}") from error


def _lacking(weights: onnx.TensorProto) -> str:
    """That weights read from another file are fewer bytes than their shape has; older versions of onnx do not look."""
    name = onnx.TensorProto.DataType.Name(weights.data_type)
    bits = _PACKED_BITS.get(name) or 8 * onnx.helper.tensor_dtype_to_np_dtype(weights.data_type).itemsize
    needed = math.ceil(math.prod(weights.dims) * bits / 8)
    found = len(weights.raw_data)
    return "" if found >= needed else f"{weights.name} has {found:,} of its {needed:,} bytes there"
