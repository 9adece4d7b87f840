"""The networks of the plates example: torch modules, and their ONNX files with batch norms folded in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

OPSET, IR_VERSION = 17, 8
SIDE, CLASSES = 64, 10


@dataclass(frozen=True)
class Spec:
    """(channels, kernel, stride) of each convolution; the mean of the last goes into a linear layer."""

    convs: tuple[tuple[int, int, int], ...]


class Net(nn.Module):
    """Takes bytes as float [n, 3, 64, 64]; gives scores [n, 10]."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        layers: list[nn.Module] = []
        channels = 3
        for out, kernel, stride in spec.convs:
            convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        self.convs = nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.convs(pictures / 255.0 - 0.5).mean((2, 3)))


def save(net: Net, path: Path) -> None:
    """Write the network as one ONNX file: bytes `plate` in, `scores` out, any number of pictures."""
    weights = {"scale": np.float32(1 / 255), "middle": np.float32(0.5)}
    nodes = [
        helper.make_node("Cast", ["plate"], ["bytes"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["bytes", "scale"], ["scaled"], "scale"),
        helper.make_node("Sub", ["scaled", "middle"], ["x0"], "centre"),
    ]
    for index, (_, kernel, stride) in enumerate(net.spec.convs):
        convolution, norm = net.convs[3 * index], net.convs[3 * index + 1]
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weights[f"w{index}"] = (convolution.weight * factor[:, None, None, None]).detach().numpy()
        weights[f"b{index}"] = (norm.bias - norm.running_mean * factor).detach().numpy()
        nodes += [
            helper.make_node(
                "Conv",
                [f"x{index}", f"w{index}", f"b{index}"],
                [f"c{index}"],
                f"conv{index + 1}",
                pads=[kernel // 2] * 4,
                strides=[stride] * 2,
            ),
            helper.make_node("Relu", [f"c{index}"], [f"x{index + 1}"], f"relu{index + 1}"),
        ]
    weights["w"], weights["b"] = net.head.weight.detach().numpy(), net.head.bias.detach().numpy()
    weights["flat"] = np.array([0, -1], np.int64)
    nodes += [
        helper.make_node("GlobalAveragePool", [f"x{len(net.spec.convs)}"], ["pooled"], "mean"),
        helper.make_node("Reshape", ["pooled", "flat"], ["flattened"], "flatten"),
        helper.make_node("Gemm", ["flattened", "w", "b"], ["scores"], "linear", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("plate", TensorProto.UINT8, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
