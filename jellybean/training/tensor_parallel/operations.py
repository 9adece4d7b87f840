"""What the operations of a traced graph are, whichever tracer wrote them: names, linear layers, embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from jellybean.pipeline.torch_trace import attribute

_LEAF_LAYERS: Mapping[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Embedding: "embedding",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.Mish: "mish",
    nn.ELU: "elu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.LeakyReLU: "leaky_relu",
    nn.Hardswish: "hardswish",
    nn.Softplus: "softplus",
    nn.Identity: "identity",
    nn.Dropout: "dropout",
    nn.Softmax: "softmax",
    nn.Flatten: "flatten",
}


@dataclass(frozen=True)
class LinearCall:
    """A linear layer: `weight` and `bias` by name; `out_dim`: the dimension of the weight that has its outputs."""

    input: fx.Node
    weight: str
    bias: str | None
    out_dim: int

    @property
    def in_dim(self) -> int:
        """The dimension of the weight that has its inputs."""
        return 1 - self.out_dim


@dataclass(frozen=True)
class EmbeddingCall:
    """A lookup of rows of `weight`. `padding`: the row that gets no gradient, counted from the first."""

    input: fx.Node
    weight: str
    padding: int | None


def operation_name(graph: fx.GraphModule, node: fx.Node) -> str:
    """The name of an operation: `relu` for the module, the function, the method and the operator of torch.export."""
    if node.op == "call_module":
        return _LEAF_LAYERS.get(type(graph.get_submodule(str(node.target))), "")
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            return str(node.target._schema.name).rpartition("::")[2].rstrip("_")
        return str(getattr(node.target, "__name__", "")).strip("_")
    return str(node.target).rstrip("_") if node.op == "call_method" else ""


def has_convolutions(graph: fx.GraphModule) -> bool:
    """Whether a module, function or operator of the graph is a convolution."""
    return any(
        isinstance(graph.get_submodule(str(node.target)), nn.modules.conv._ConvNd)
        if node.op == "call_module"
        else node.op == "call_function" and "conv" in operation_name(graph, node)
        for node in graph.graph.nodes
    )


def parameter_names(graph: fx.GraphModule) -> dict[int, str]:
    """Names of the graph's parameters by identity; a tied one has its first name."""
    return {id(value): name for name, value in graph.named_parameters()}


def linear_call(graph: fx.GraphModule, node: fx.Node, names: Mapping[int, str]) -> LinearCall | None:
    """The linear layer that an operation computes; None if it computes none, or none on parameters."""
    if node.op not in ("call_module", "call_function"):
        return None
    match operation_name(graph, node):
        case "linear" if node.op == "call_module":
            layer = graph.get_submodule(str(node.target))
            bias = None if layer.bias is None else names.get(id(layer.bias))
            return LinearCall(node.args[0], names[id(layer.weight)], bias, 0) if id(layer.weight) in names else None
        case "linear":
            given = _arguments(node, ("input", "weight", "bias"))
            return _on_parameters(graph, names, given["input"], given["weight"], given.get("bias"), 0)
        case "addmm" if not {"beta", "alpha"} & node.kwargs.keys() and len(node.args) == 3:
            bias, value, weight = node.args
            return _on_parameters(graph, names, value, weight, bias, 1)
    return None


def embedding_call(graph: fx.GraphModule, node: fx.Node, names: Mapping[int, str]) -> EmbeddingCall | None:
    """The embedding that an operation looks up; None if it is none, or one whose gradient or weight is changed."""
    if operation_name(graph, node) != "embedding":
        return None
    if node.op == "call_module":
        layer = graph.get_submodule(str(node.target))
        if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse or id(layer.weight) not in names:
            return None
        return EmbeddingCall(node.args[0], names[id(layer.weight)], layer.padding_idx)
    if node.op != "call_function":
        return None
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    if is_operator:
        given = _arguments(node, ("weight", "input", "padding_idx", "scale_grad_by_freq", "sparse"))
    else:
        given = _arguments(node, ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"))
    weight = parameter_of(graph, given["weight"], names)
    changed = given.get("max_norm") is not None or given.get("scale_grad_by_freq") or given.get("sparse")
    if weight is None or changed:
        return None
    padding = given.get("padding_idx")
    if is_operator:
        padding = None if padding == -1 else padding  # the operator's default
    elif padding is not None and padding < 0:
        padding += len(attribute(graph, str(given["weight"].target)))  # as torch's function counts, from the last row
    return EmbeddingCall(given["input"], weight, padding)


def parameter_of(graph: fx.GraphModule, value: Any, names: Mapping[int, str]) -> str | None:
    """The name of the parameter that a node reads; None if it reads none."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    return names.get(id(attribute(graph, str(value.target))))


def _arguments(node: fx.Node, order: tuple[str, ...]) -> dict[str, Any]:
    return {**dict(zip(order, node.args, strict=False)), **node.kwargs}


def _on_parameters(
    graph: fx.GraphModule, names: Mapping[int, str], value: Any, weight: Any, bias: Any, out_dim: int
) -> LinearCall | None:
    weight_name, bias_name = parameter_of(graph, weight, names), parameter_of(graph, bias, names)
    if weight_name is None or (bias is not None and bias_name is None) or not isinstance(value, fx.Node):
        return None
    return LinearCall(value, weight_name, bias_name, out_dim)
