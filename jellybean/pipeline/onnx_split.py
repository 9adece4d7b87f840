"""Splits an ONNX model into head and tail: the tail reads the head's output and computes the whole model's outputs.

Agents send one tensor per message. If several tensors cross a cut, the head flattens and concatenates them, and the
tail splits and reshapes them to bitwise equal tensors. Weights that both sides read are in both files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jellybean.pipeline.onnx_graph import GraphError, ObservedTensor, OnnxGraph, names_read
from jellybean_solver.pipeline import Layer, LayerGraph, PartitionSettings, enumerate_cuts

PACKED = "jellybean_crossing"
PACKED_OPSET = 13  # first opset in which Split takes its sizes as an input


@dataclass(frozen=True, slots=True)
class LegalCut:
    """A cut of a model in two. `layers`: the layers before it (a down-set: with each layer all its upstream layers).

    `head`, `tail`: node indices of the two sides. `crossing`: names of the tensors that the head produces and the tail
    (or the caller) reads, in order. `inputs`: model inputs that both sides read. `nbytes`: size in bytes of the
    crossing tensors and these inputs, for one request.
    """

    layers: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    crossing: tuple[str, ...]
    inputs: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class LayeredModel:
    """A graph with its observed tensors, layers and legal cuts.

    `groups`: node indices of each layer, in order. `complete`: True if `cuts` has all legal cuts.
    """

    graph: OnnxGraph
    observed: Mapping[str, ObservedTensor]
    groups: tuple[tuple[int, ...], ...]
    cuts: tuple[LegalCut, ...]
    complete: bool

    def name(self, layer: int) -> str:
        """Name of a layer: that of its first node with a weight matrix, otherwise of its first node with a name."""
        heavy = [index for index in self.groups[layer] if self.graph.has_matrix(index)]
        nodes = [self.graph.proto.graph.node[index] for index in (*heavy, *self.groups[layer])]
        return next((str(node.name) for node in nodes if node.name), str(nodes[0].op_type))


def find_layers(graph: OnnxGraph, observed: Mapping[str, ObservedTensor]) -> LayeredModel:
    """Find the layers and all legal cuts; if there are too many, only the cuts between consecutive layers in order."""
    groups = _ordered(graph, graph.groups(observed))
    if not groups:
        raise GraphError("no node of the model depends on its inputs")
    numbers = range(len(groups))
    skeleton = LayerGraph(tuple(Layer("", 0.0, 0.0, 0.0) for _ in numbers), tuple(sorted(layer_edges(graph, groups))))
    bits, complete = enumerate_cuts(skeleton, PartitionSettings().max_cuts)
    inner = [cut for cut in bits if cut not in (0, (1 << len(groups)) - 1)]
    legal = [_legal_cut(graph, observed, groups, tuple(n for n in numbers if cut >> n & 1)) for cut in inner]
    return LayeredModel(graph, observed, groups, tuple(legal), complete)


def _ordered(graph: OnnxGraph, groups: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The layers in topological order."""
    needs: dict[int, list[int]] = {number: [] for number in range(len(groups))}
    for up, down in sorted(layer_edges(graph, groups)):
        needs[down].append(up)
    return tuple(groups[number] for number in TopologicalSorter(needs).static_order())


def layer_edges(graph: OnnxGraph, groups: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """(upstream, downstream) index pairs of layers between which a tensor flows."""
    group = {index: number for number, nodes in enumerate(groups) for index in nodes}
    producers = ((graph.producer.get(name), index) for index in graph.live for name in graph.reads[index])
    pairs = ((group[producer], group[index]) for producer, index in producers if producer in group)
    return {(up, down) for up, down in pairs if up != down}


def _legal_cut(
    graph: OnnxGraph, observed: Mapping[str, ObservedTensor], groups: Sequence[Sequence[int]], layers: tuple[int, ...]
) -> LegalCut:
    head = tuple(sorted(index for layer in layers for index in groups[layer]))
    tail = tuple(index for index in graph.live if index not in set(head))
    read = {name for index in tail for name in graph.reads[index]}
    wanted = read | set(graph.outputs)
    crossing = tuple(name for index in head for name in graph.writes[index] if name in wanted)
    early = {name for index in head for name in graph.reads[index]}
    both = tuple(name for name in graph.inputs if name in early and name in wanted)
    nbytes = sum(observed[name].nbytes for name in (*crossing, *both) if name in observed)
    return LegalCut(layers, head, tail, crossing, both, nbytes)


def why_not_servable(graph: OnnxGraph, observed: Mapping[str, ObservedTensor], cut: LegalCut) -> str:
    """Why a legal cut cannot be served as two operators with one message between them; empty if it can."""
    if cut.inputs:
        return f"both sides read the model's input {cut.inputs[0]}"
    if not any(name in graph.inputs for index in cut.head for name in graph.reads[index]):
        return "its first side reads none of the model's inputs"
    if strange := [name for name in cut.crossing if name not in observed]:
        return f"{strange[0]} is no tensor of numbers"
    if alone := [name for name in cut.crossing if not observed[name].rows]:
        return (
            f"{alone[0]} has no row for each request, so that several cannot run at once; cut elsewhere, or make "
            "the batch its first dimension"
        )
    return _unpackable(graph, observed, cut.crossing) if len(cut.crossing) > 1 else ""


def _unpackable(graph: OnnxGraph, observed: Mapping[str, ObservedTensor], crossing: Sequence[str]) -> str:
    """Why the `crossing` tensors cannot be packed into one tensor; empty if they can."""
    kinds = sorted({observed[name].dtype for name in crossing})
    if len(kinds) > 1:
        return f"tensors of several types cross ({', '.join(kinds)})"
    if loose := [name for name in crossing if not observed[name].fixed or not all(observed[name].shape)]:
        return f"{loose[0]} has no fixed size, and {len(crossing)} tensors cross"
    old = _opset(graph) < PACKED_OPSET
    return f"{len(crossing)} tensors cross and the model's opset is below {PACKED_OPSET}" if old else ""


def split(layers: LayeredModel, cut: LegalCut, order: Sequence[str] = ()) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The head and tail models of a cut. `order`: names of the inputs in the order of the operator's edges.

    GraphError if the cut is not servable (`why_not_servable`).
    """
    graph, observed = layers.graph, layers.observed
    if why := why_not_servable(graph, observed, cut):
        raise GraphError(f"this cut cannot be split: {why}")
    names = [*order, *(name for name in graph.inputs if name not in order)]
    early = {name for index in cut.head for name in graph.reads[index]}
    late = {name for index in cut.tail for name in graph.reads[index]} | set(graph.outputs)
    pack = _Packing(observed, cut.crossing, graph.outputs)
    head = _model(
        graph,
        [*_nodes(graph, cut.head), *pack.into],
        [_input(graph, name) for name in names if name in early],
        [pack.port],
        pack.into_weights,
    )
    tail = _model(
        graph,
        [*pack.out, *_nodes(graph, cut.tail)],
        [*(_input(graph, name) for name in names if name in late and name not in early), pack.port],
        list(graph.proto.graph.output),
        pack.out_weights,
    )
    return head, tail


class _Packing:
    """Nodes and weights that pack the crossing tensors into one tensor (in the head) and unpack it (in the tail).

    `port`: the packed tensor. `into`, `into_weights`: for the head; `out`, `out_weights`: for the tail.
    """

    def __init__(self, observed: Mapping[str, ObservedTensor], crossing: Sequence[str], outputs: Sequence[str]) -> None:
        self.into: list[onnx.NodeProto] = []
        self.out: list[onnx.NodeProto] = []
        self.into_weights: list[onnx.TensorProto] = []
        self.out_weights: list[onnx.TensorProto] = []
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(observed[crossing[0]].dtype))
        if len(crossing) == 1:
            name, shape = crossing[0], observed[crossing[0]].shape
            inner = [*shape[1:]] if observed[name].fixed else [f"d{axis}" for axis in range(1, len(shape))]
            port = name
            if name in outputs:  # ONNX does not allow a model output to be a model input as well
                port = PACKED
                self.into = [helper.make_node("Identity", [name], [port])]
                self.out = [helper.make_node("Identity", [port], [name])]
            self.port = helper.make_tensor_value_info(port, kind, ["requests", *inner])
            return
        sizes = [int(np.prod(observed[name].shape[1:], dtype=np.int64)) for name in crossing]
        flat = [f"{PACKED}_{index}" for index in range(len(crossing))]
        pairs = list(zip(crossing, flat, strict=True))
        self.into = [helper.make_node("Flatten", [name], [one], axis=1) for name, one in pairs]
        self.into.append(helper.make_node("Concat", flat, [PACKED], axis=1))
        self.out_weights = [numpy_helper.from_array(np.array(sizes, np.int64), f"{PACKED}_sizes")]
        self.out = [helper.make_node("Split", [PACKED, f"{PACKED}_sizes"], flat, axis=1)]
        for name, one in pairs:
            sides = np.array([-1, *observed[name].shape[1:]], np.int64)
            self.out_weights.append(numpy_helper.from_array(sides, f"{one}_shape"))
            self.out.append(helper.make_node("Reshape", [one, f"{one}_shape"], [name]))
        self.port = helper.make_tensor_value_info(PACKED, kind, ["requests", sum(sizes)])


def _nodes(graph: OnnxGraph, nodes: Sequence[int]) -> list[onnx.NodeProto]:
    return [graph.proto.graph.node[index] for index in graph.needed(nodes)]


def _input(graph: OnnxGraph, name: str) -> onnx.ValueInfoProto:
    return next(value for value in graph.proto.graph.input if value.name == name)


def _model(
    graph: OnnxGraph,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    more: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    """A model of these nodes, with the versions, functions and metadata of the whole model. `more`: extra weights."""
    read = {name for node in nodes for name in names_read(node)} | {value.name for value in outputs}
    weights = [tensor for name, tensor in graph.weights.items() if name in read]
    listed = [value for value in graph.proto.graph.input if value.name in graph.weights and value.name in read]
    whole = graph.proto
    proto = onnx.ModelProto(ir_version=whole.ir_version, producer_name="jellybean")
    proto.opset_import.extend(whole.opset_import)
    proto.functions.extend(whole.functions)
    proto.metadata_props.extend(whole.metadata_props)
    proto.graph.CopyFrom(helper.make_graph(nodes, whole.graph.name, [*inputs, *listed], outputs, [*weights, *more]))
    return proto


def _opset(graph: OnnxGraph) -> int:
    """Opset version of the standard ONNX operators that the model uses; 0 if it imports none."""
    return max((item.version for item in graph.proto.opset_import if item.domain in ("", "ai.onnx")), default=0)
