"""Small ONNX models to cut: a chain, a skip with a side input, tied weights, and a random one for Hypothesis."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def model(nodes, inputs, outputs, weights, *, opset=OPSET):
    """A checked model. Inputs and outputs: name -> shape, all float32."""
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(proto)
    return proto


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def conv_net(seed=0):
    """Convolution, activation and pooling three times over 16 x 16 pictures, then a linear layer: four layers."""
    rng = np.random.default_rng(seed)
    nodes, weights, x, channels = [], {}, "picture", 1
    for number, out in enumerate((4, 6, 8)):
        weights[f"w{number}"], weights[f"b{number}"] = normal(rng, out, channels, 3, 3), normal(rng, out)
        nodes += [
            helper.make_node("Conv", [x, f"w{number}", f"b{number}"], [f"c{number}"], f"conv{number}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"),
            helper.make_node("MaxPool", [f"r{number}"], [f"p{number}"], kernel_shape=[2, 2], strides=[2, 2]),
        ]
        x, channels = f"p{number}", out
    weights["flat"], weights["w"] = np.array([0, -1], np.int64), normal(rng, 8 * 4, 5)
    nodes += [
        helper.make_node("Reshape", [x, "flat"], ["flattened"]),
        helper.make_node("MatMul", ["flattened", "w"], ["scores"], "linear"),
    ]
    return model(nodes, {"picture": ["n", 1, 16, 16]}, {"scores": ["n", 5]}, weights)


def skip_net(seed=0):
    """Two inputs, a skip around two layers, one matrix used twice, an early output and a constant that is computed."""
    rng = np.random.default_rng(seed)
    weights = {"w": normal(rng, 6, 6), "v": normal(rng, 4, 6), "half": np.float32(0.5), "four": np.float32(4.0)}
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["x1"], "first"),
        helper.make_node("Tanh", ["x1"], ["x2"]),
        helper.make_node("MatMul", ["x2", "w"], ["x3"], "second"),  # the first layer's weights again
        helper.make_node("Add", ["x3", "x2"], ["x4"], "skip"),
        helper.make_node("MatMul", ["b", "v"], ["y"], "side"),
        helper.make_node("Mul", ["half", "four"], ["two"], "constant"),
        helper.make_node("Mul", ["x4", "two"], ["x5"], "scale"),
        helper.make_node("Add", ["x5", "y"], ["out"], "join"),
    ]
    inputs, outputs = {"a": ["n", 6], "b": ["n", 4]}, {"out": ["n", 6], "x2": ["n", 6]}
    return model(nodes, inputs, outputs, weights)


def random_net(rng):
    """A random graph over vectors of 3 to 5: unary, binary and matrix nodes, shared weights, several outputs."""
    weights, nodes = {}, []
    size = {"a": 4, "b": 3}
    for number in range(int(rng.integers(3, 9))):
        kind, name = rng.choice(["relu", "add", "mul", "matmul", "concat", "split"]), f"t{number}"
        one = str(rng.choice(list(size)))
        alike = [other for other in size if size[other] == size[one]]
        two = str(rng.choice(alike))
        if kind == "relu":
            nodes.append(helper.make_node("Tanh", [one], [name]))
            size[name] = size[one]
        elif kind in ("add", "mul"):
            nodes.append(helper.make_node("Add" if kind == "add" else "Mul", [one, two], [name]))
            size[name] = size[one]
        elif kind == "matmul":
            to = int(rng.integers(3, 6))
            weight = f"w{size[one]}{to}"
            if weight not in weights or rng.random() < 0.5:
                weight = weight if weight not in weights else f"{weight}_{number}"
                weights[weight] = normal(rng, size[one], to)
            nodes.append(helper.make_node("MatMul", [one, weight], [name]))
            size[name] = to
        elif kind == "concat" and size[one] + size[two] < 20:
            nodes.append(helper.make_node("Concat", [one, two], [name], axis=1))
            size[name] = size[one] + size[two]
        else:
            weights.setdefault(f"s{size[one]}", np.array([1, size[one] - 1], np.int64))
            nodes.append(helper.make_node("Split", [one, f"s{size[one]}"], [name, f"{name}_b"], axis=1))
            size[name], size[f"{name}_b"] = 1, size[one] - 1
    read = {name for node in nodes for name in node.input}
    made = {name for node in nodes for name in node.output}
    outputs = {name: ["n", size[name]] for name in sorted(made) if name not in read or rng.random() < 0.15}
    return model(nodes, {"a": ["n", 4], "b": ["n", 3]}, outputs, weights)
