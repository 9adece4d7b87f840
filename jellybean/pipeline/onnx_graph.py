"""An ONNX model as layers: what reads what, what a run makes, and which tensors cross a cut.

A layer is a node with those after it that only normalise, activate, pool or reshape its output, and those before it
that only enlarge its input: with one input, no weights but vectors, and no other reader between. A cut through such a
layer would send as much or more for about the same work. Nodes that depend on no input are constants: both sides of a
cut get their own copy.
"""

from __future__ import annotations

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

from jellybean.errors import DocumentError, DocumentProblem, JellyBeanError
from jellybean_agent import ORT_ERRORS

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
_FAILED: tuple[type[Exception], ...] = (*ORT_ERRORS, ValueError)
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
# Operators whose outputs' sizes depend on values, so that one run does not tell the shapes of the next.
_OPEN_SHAPES = {"NonZero", "NonMaxSuppression", "Unique", "Compress", "Loop", "If", "Scan", "StringSplit"}


class GraphError(JellyBeanError):
    """A model that cannot be read or run layer by layer; the text says why."""


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor as runs made it. `shape`: of one request. `rows`: its leading dimension counts the requests.

    `fixed`: whatever the request, the other dimensions are these.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    rows: bool
    fixed: bool


class OnnxGraph:
    """A model's nodes, in order, with what each reads (also inside its subgraphs) and writes."""

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
        self.maker = {name: index for index, names in enumerate(self.writes) for name in names}
        known = {*self.weights, *self.inputs, *self.maker}
        for index, names in enumerate(self.reads):
            if missing := [name for name in names if name not in known]:
                raise GraphError(f"node {graph.node[index].name or index} reads {missing[0]!r}, which nothing makes")

    @classmethod
    def load(cls, path: Path) -> OnnxGraph:
        """The graph of a file, with weights that it keeps in files beside it. GraphError when it is no model."""
        if not path.is_file():
            raise DocumentError([DocumentProblem(str(path), None, None, "", "there is no such file")])
        try:
            return cls(onnx.load(str(path)))
        except (DecodeError, ValueError, RuntimeError, OSError) as error:
            text = str(error).splitlines()[0] if str(error) else "empty"
            raise GraphError(f"{path} is no ONNX model ({text})") from error

    @cached_property
    def constant(self) -> frozenset[int]:
        """Nodes that depend on no input."""
        found: set[int] = set()
        for index, names in enumerate(self.reads):
            made = [name for name in names if name not in self.weights]
            known = all(self.maker.get(name, -1) in found for name in made)
            if known and self.proto.graph.node[index].op_type not in _RANDOM:
                found.add(index)
        return frozenset(found)

    @cached_property
    def live(self) -> tuple[int, ...]:
        """The other nodes, in order."""
        return tuple(index for index in range(len(self.reads)) if index not in self.constant)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """What the live nodes make and something reads, in order."""
        read = {name for names in self.reads for name in names} | set(self.outputs)
        return tuple(name for index in self.live for name in self.writes[index] if name in read)

    def needed(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """The nodes with the constant ones that they need, in order."""
        found, waiting = set(nodes), list(nodes)
        while waiting:
            for name in self.reads[waiting.pop()]:
                maker = self.maker.get(name)
                if maker in self.constant and maker not in found:
                    found.add(maker)
                    waiting.append(maker)
        return tuple(sorted(found))

    def parameter_bytes(self, nodes: Sequence[int]) -> int:
        """Of the weights that the nodes read, each once."""
        names = {name for index in self.needed(nodes) for name in self.reads[index]}
        return sum(_nbytes(self.weights[name]) for name in names if name in self.weights)

    def made(self, feeds: Sequence[Feed], *, pairs: bool = True) -> dict[str, Made]:
        """The inputs, and what runs make of them: one per feed, of one request each.

        With `pairs` one of two requests at once too, if the model takes them, to see which tensors have rows for them.
        Tensors only: a sequence or a map is left out. GraphError when the model does not run.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        extra = [name for name in self.tensors if name not in self.outputs]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        session = node_session(proto)
        names = [*self.outputs, *extra]
        runs = [_run(session, names, feed) for feed in feeds]
        pair = self._pair(feeds) if pairs else None
        both = _run(session, names, pair) if pair is not None else None
        fixed = self._fixed_shapes(session)
        runs = [{**feed, **run} for feed, run in zip(feeds, runs, strict=True)]
        both = {**pair, **both} if pair is not None and both is not None else None
        found: dict[str, Made] = {}
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
            found[name] = Made(values[0].dtype.name, tuple(shape), nbytes, rows, same)
        return found

    def _pair(self, feeds: Sequence[Feed]) -> Feed | None:
        """Two requests stacked; None where the model takes one at a time or they do not fit together."""
        open_ = [value.type.tensor_type.shape.dim[:1] for value in self.proto.graph.input if value.name in self.inputs]
        if not all(dims and not dims[0].HasField("dim_value") for dims in open_):
            return None
        first, last = feeds[0], feeds[-1]
        if any(first[name].shape[1:] != last[name].shape[1:] for name in first):
            return None
        return {name: np.concatenate([first[name], last[name]]) for name in first}

    def _fixed_shapes(self, session: ort.InferenceSession) -> bool:
        """Whether only the number of requests is open: then one run tells all shapes."""
        nodes = self.proto.graph.node
        if self.proto.functions or any(node.op_type in _OPEN_SHAPES for node in nodes):
            return False
        return all(isinstance(size, int) for item in session.get_inputs() for size in item.shape[1:])

    def groups(self, made: Mapping[str, Made]) -> tuple[tuple[int, ...], ...]:
        """The live nodes by layer."""
        group: dict[int, int] = {}
        found: list[list[int]] = []
        early: dict[int, list[int]] = {}  # node -> nodes that only prepare its input
        for index in self.live:
            own = [*early.pop(index, []), index]
            reader = self._prepare(own, made)
            follows = self._follows(index, made)
            if reader is not None:
                early.setdefault(reader, []).extend(own)
            elif follows in group:
                group.update(dict.fromkeys(own, group[follows]))
                found[group[follows]] += own
            else:
                group.update(dict.fromkeys(own, len(found)))
                found.append(own)
        return tuple(tuple(nodes) for nodes in found)

    def _follows(self, index: int, made: Mapping[str, Made]) -> int:
        """The node whose layer a node ends: one that it is alone to read, and sends no more bytes than. -1: it is none.

        What its layer may still hold is no other's: it has one input.
        """
        source, sent = self._unary(index, made)
        if source is None or sent is None or source not in self.maker or self._reader(source) != index:
            return -1
        return self.maker[source] if made[sent].nbytes <= made[source].nbytes else -1

    def _prepare(self, nodes: Sequence[int], made: Mapping[str, Made]) -> int | None:
        """The node whose layer a chain of nodes begins: the one that reads alone what they enlarge."""
        source, sent = self._unary(nodes[0], made)[0], self._unary(nodes[-1], made)[1]
        if source is None or sent is None or made[sent].nbytes <= made[source].nbytes:
            return None
        return self._reader(sent)

    def _unary(self, index: int, made: Mapping[str, Made]) -> tuple[str | None, str | None]:
        """The tensor that a node reads and the one it makes, where it has one of each and no matrix."""
        names = [name for name in self.reads[index] if self.maker.get(name) not in self.constant]
        live = [name for name in names if name not in self.weights]
        sent = [name for name in self.writes[index] if name in made]
        if len(live) != 1 or len(sent) != 1 or live[0] not in made or self.has_matrix(index):
            return None, None
        return live[0], sent[0]

    def _reader(self, name: str) -> int | None:
        """The only node that reads a tensor; None when several do, or the caller."""
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor -> the live nodes that read it."""
        found: dict[str, tuple[int, ...]] = {}
        for index in self.live:
            for name in self.reads[index]:
                found[name] = (*found.get(name, ()), index)
        return found

    def has_matrix(self, index: int) -> bool:
        """Whether a node has weights of two dimensions or more; biases, scales, shapes and axes have one."""
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
    """Names that a node reads: its inputs, and what its subgraphs take from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                yield from (name for name in names_read(inner) if name not in own)
                own.update(inner.output)
            yield from (value.name for value in graph.output if value.name not in own)


def node_session(proto: onnx.ModelProto, *, fused: bool = False, profile_prefix: str = "") -> ort.InferenceSession:
    """A model on one thread; unless `fused`, node by node as it is written. GraphError when it cannot be loaded."""
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
