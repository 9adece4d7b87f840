"""Small networks of the digits workflow: one description each, from which both the torch module and the ONNX file come.

The ONNX file is written node by node, not by torch's exporter: batch norms are folded into the convolutions, and
what serving needs (bytes in, log-probabilities out, dynamic batch, the mean over shifted looks) is in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

OPSET = 17
IR_VERSION = 8
CLASSES = 10
LOOKS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # (down, right): by how many pixels a crop is shifted


@dataclass(frozen=True)
class Spec:
    """A classifier of 16 x 16 crops.

    `strokes`: look at oriented gradients instead of pixels. `enlarge`: look at the crop that many times larger.
    `pool`: average that many pixels into one before the head. `convs`: (channels, stride) of 3 x 3 convolutions;
    empty: none, and all features go into the head. `hidden`: width of the head's hidden layer, 0 for a linear head.
    `looks`: how many of LOOKS are averaged when served: several times the work, for a little more accuracy.
    """

    strokes: bool = False
    enlarge: int = 1
    pool: int = 1
    convs: tuple[tuple[int, int], ...] = ()
    hidden: int = 0
    outputs: int = CLASSES
    looks: int = 1


def gradient_kernels() -> np.ndarray:
    """Eight 3 x 3 kernels: the derivative in eight directions, [8, 1, 3, 3]."""
    across = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32) / 4
    angles = np.arange(8) * np.pi / 4
    kernels = [np.cos(angle) * across + np.sin(angle) * across.T for angle in angles]
    return np.stack(kernels)[:, None].astype(np.float32)


class Net(nn.Module):
    """The torch module of a spec. Takes bytes as float [n, 16, 16]; gives scores [n, outputs]."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.temperature = 1.0  # the scores are divided by it, so that confidence is honest
        self.register_buffer("kernels", torch.from_numpy(gradient_kernels()))
        channels = 8 if spec.strokes else 1
        side = 16 // spec.pool
        layers: list[nn.Module] = []
        for out, stride in spec.convs:
            layers += [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            channels, side = out, side // stride
        self.convs = nn.Sequential(*layers)
        width = channels if spec.convs else channels * side * side
        head: list[nn.Module] = [nn.Dropout(0.1)]
        if spec.hidden:
            head += [nn.Linear(width, spec.hidden), nn.ReLU()]
            width = spec.hidden
        self.head = nn.Sequential(*head, nn.Linear(width, spec.outputs))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = pictures[:, None] / 255.0
        if self.spec.enlarge > 1:
            x = nn.functional.interpolate(x, scale_factor=self.spec.enlarge, mode="bilinear")
        if self.spec.strokes:
            x = torch.relu(nn.functional.conv2d(x, self.kernels, padding=1))
            x = x / (x.square().mean((1, 2, 3), keepdim=True).sqrt() + 0.01)
        if self.spec.pool > 1:
            x = nn.functional.avg_pool2d(x, self.spec.pool)
        x = self.convs(x)
        x = x.mean((2, 3)) if self.spec.convs else x.flatten(1)
        return self.head(x)

    @torch.no_grad()
    def scores(self, pictures: torch.Tensor) -> torch.Tensor:
        """Scores as they are exported, in pieces that fit into memory."""
        return torch.cat([self._looked(part) for part in pictures.split(1024)]) / self.temperature

    def _looked(self, pictures: torch.Tensor) -> torch.Tensor:
        """The mean over the spec's looks."""
        wide = nn.functional.pad(pictures[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
        side = pictures.shape[-1]
        shifts = LOOKS[: self.spec.looks]
        return torch.stack([self(wide[:, 1 + y : 1 + y + side, 1 + x : 1 + x + side]) for y, x in shifts]).mean(0)


@dataclass
class Graph:
    """An ONNX graph under construction; every method adds nodes and returns the name of what they give."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(list(values), np.int64)

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def save(self, path: Path, inputs: dict[str, tuple[int, list]], outputs: dict[str, tuple[int, list]]) -> None:
        """Checks and writes the model. Inputs and outputs: name -> (element type, shape)."""
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
            self.constants,
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="jellybean-digits")
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def scores(graph: Graph, net: Net, crops: str) -> str:
    """Adds the network to `graph`: bytes [n, 16, 16] -> scores [n, outputs]."""
    spec = net.spec
    x = graph.add("Mul", graph.add("Cast", crops, to=TensorProto.FLOAT), graph.constant(1 / 255))
    x = graph.add("Unsqueeze", x, graph.ints(1))
    if spec.looks > 1:
        x = _looks(graph, x, spec.looks)
    if spec.enlarge > 1:
        scales = graph.constant([1, 1, spec.enlarge, spec.enlarge])
        x = graph.add("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    if spec.strokes:
        gradients = graph.add("Conv", x, graph.constant(gradient_kernels()), pads=[1, 1, 1, 1])
        x = graph.add("Relu", gradients)
        energy = graph.add("ReduceMean", graph.add("Mul", x, x), axes=[1, 2, 3], keepdims=1)
        x = graph.add("Div", x, graph.add("Add", graph.add("Sqrt", energy), graph.constant(0.01)))
    if spec.pool > 1:
        x = graph.add("AveragePool", x, kernel_shape=[spec.pool] * 2, strides=[spec.pool] * 2)
    x = _head(graph, net, _convolutions(graph, net, x))
    if spec.looks > 1:  # [looks x n, outputs] -> the mean over looks
        x = graph.add("Reshape", x, graph.ints(spec.looks, -1, spec.outputs))
        x = graph.add("ReduceMean", x, axes=[0], keepdims=0)
    return graph.add("Mul", x, graph.constant(1 / net.temperature))


def _looks(graph: Graph, x: str, looks: int) -> str:
    """[n, 1, 16, 16] -> [looks x n, 1, 16, 16]: all crops as they are, then all shifted one way, and so on."""
    wide = graph.add("Pad", x, graph.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="edge")
    shifted = [
        graph.add("Slice", wide, graph.ints(1 + y, 1 + x), graph.ints(17 + y, 17 + x), graph.ints(2, 3))
        for y, x in LOOKS[:looks]
    ]
    return graph.add("Concat", *shifted, axis=0)


def _head(graph: Graph, net: Net, x: str) -> str:
    for layer in net.head:
        if isinstance(layer, nn.Linear):
            weight, bias = graph.constant(layer.weight.detach().numpy()), graph.constant(layer.bias.detach().numpy())
            x = graph.add("Gemm", x, weight, bias, transB=1)
        elif isinstance(layer, nn.ReLU):
            x = graph.add("Relu", x)
    return x


def _convolutions(graph: Graph, net: Net, x: str) -> str:
    """Convolutions with their batch norms folded in, then the mean over all places; flattened when there are none."""
    layers = list(net.convs)
    for conv, norm in zip(layers[0::3], layers[1::3], strict=True):
        gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = (conv.weight * gain[:, None, None, None]).detach().numpy()
        bias = (norm.bias - norm.running_mean * gain).detach().numpy()
        strides = list(conv.stride)
        x = graph.add("Conv", x, graph.constant(weight), graph.constant(bias), strides=strides, pads=[1, 1, 1, 1])
        x = graph.add("Relu", x)
    if layers:
        x = graph.add("GlobalAveragePool", x)
    return graph.add("Flatten", x)


def save_classifier(net: Net, path: Path) -> None:
    """Crops as bytes [n, 16, 16] -> log-probabilities [n, 10]."""
    graph = Graph()
    graph.add("LogSoftmax", scores(graph, net, "find"), axis=1)
    graph.nodes[-1].output[0] = "logp"
    graph.save(
        path,
        {"find": (TensorProto.UINT8, ["n", 16, 16])},
        {"logp": (TensorProto.FLOAT, ["n", CLASSES])},
    )


def save_finder(net: Net, path: Path) -> None:
    """A strip as bytes [1, 16, 96] -> the crops that hold a digit, left to right, [n, 16, 16] with n from 0 to 6."""
    graph = Graph()
    split = graph.add("Reshape", "strip", graph.ints(16, 6, 16))
    slots = graph.add("Transpose", split, perm=[1, 0, 2])
    score = graph.add("Reshape", scores(graph, net, slots), graph.ints(6))
    held = graph.add("Greater", score, graph.constant(0.0))
    graph.add("Compress", slots, held, axis=0)
    graph.nodes[-1].output[0] = "crops"
    graph.save(
        path,
        {"strip": (TensorProto.UINT8, [1, 16, 96])},
        {"crops": (TensorProto.UINT8, ["n", 16, 16])},
    )


def save_fusion(weights: dict[str, np.ndarray], path: Path) -> None:
    """Two log-probabilities of the same crop -> their fused log-probabilities, weighted per class."""
    graph = Graph()
    shape = graph.add("Mul", "shape", graph.constant(weights["shape"]))
    strokes = graph.add("Mul", "strokes", graph.constant(weights["strokes"]))
    total = graph.add("Add", graph.add("Add", shape, strokes), graph.constant(weights["bias"]))
    graph.add("LogSoftmax", total, axis=1)
    graph.nodes[-1].output[0] = "logp"
    logp = (TensorProto.FLOAT, ["n", CLASSES])
    graph.save(path, {"shape": logp, "strokes": logp}, {"logp": logp})


def save_number(path: Path) -> None:
    """The digits of one strip, [n, 10] log-probabilities left to right -> the number they write; -1 when n is 0."""
    graph = Graph()
    digits = graph.add("ArgMax", "read", axis=1, keepdims=0)
    count = graph.add("Shape", digits)
    scalar = graph.add("Squeeze", count)
    one = graph.constant(1, np.int64)
    last = graph.add("Sub", scalar, one)
    places = graph.add("Range", last, graph.constant(-1, np.int64), graph.constant(-1, np.int64))
    powers = graph.add("Cast", graph.add("Pow", graph.constant(10.0), graph.add("Cast", places, to=1)), to=7)
    value = graph.add("ReduceSum", graph.add("Mul", digits, powers), keepdims=1)
    empty = graph.add("Cast", graph.add("Equal", count, graph.ints(0)), to=TensorProto.INT64)
    graph.add("Sub", value, empty)
    graph.nodes[-1].output[0] = "number"
    graph.save(
        path,
        {"read": (TensorProto.FLOAT, ["n", CLASSES])},
        {"number": (TensorProto.INT64, [1])},
    )
