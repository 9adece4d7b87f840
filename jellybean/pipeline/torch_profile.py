"""Profiles a torch module by layer: forward and backward time, activation bytes, parameter bytes.

The module is traced by torch.fx, or by torch.export where torch.fx fails, so skip connections and tied weights are
visible. Every node is then timed alone, forward and backward, on its actual inputs. Nodes without weight matrices join
the layer before them, as in ONNX graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import fx, nn

from jellybean.errors import JellyBeanError
from jellybean_solver.pipeline import Layer, LayerGraph, layer_graph

RUNS = 5
_COMPUTE_OPS = {"call_module", "call_function", "call_method"}


@dataclass(frozen=True)
class TorchProfile:
    """Layer costs of a torch module.

    `tied`: parameter -> the layers that share it (each of their stages needs a copy). `exported`: traced by
    torch.export. `members`: names of each layer's nodes in the traced graph.
    """

    graph: LayerGraph
    tied: dict[str, tuple[str, ...]]
    exported: bool
    members: tuple[tuple[str, ...], ...]


@dataclass
class _Cost:
    """Measured cost of one node: seconds, and bytes of its outputs (`sent_bytes`) and inputs (`read_bytes`)."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    sent_bytes: int = 0
    read_bytes: int = 0


def profile_module(module: nn.Module, inputs: Sequence[Any], *, runs: int = RUNS) -> TorchProfile:
    """Profile a module on example inputs of one micro-batch, in its current mode (train or eval).

    Parameters and buffers are restored afterwards. JellyBeanError if no tracer can follow the module.
    """
    traced, exported = _traced(module, tuple(inputs))
    return profile_traced(traced, inputs, runs=runs, exported=exported)


def profile_traced(
    traced: fx.GraphModule, inputs: Sequence[Any], *, runs: int = RUNS, exported: bool = False
) -> TorchProfile:
    """Profile a traced graph; see `profile_module`."""
    kept = {name: value.clone() for name, value in traced.state_dict().items()}
    try:
        costs = _NodeTimer(traced, runs).costs(*inputs)
    except Exception as error:  # the module's operators may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise JellyBeanError(f"the module cannot be run on these inputs: {reason}") from error
    finally:
        traced.load_state_dict(kept)
    return _profile(traced, costs, exported=exported)


def _traced(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[fx.GraphModule, bool]:
    try:
        return fx.symbolic_trace(module), False
    except Exception as first:  # noqa: BLE001  # user code may raise anything when it is fed proxies
        try:
            return torch.export.export(module, inputs).module(), True
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise JellyBeanError(
                f"neither torch.fx nor torch.export can follow {type(module).__name__} ({reason}; torch.fx: {first})"
            ) from error


class _NodeTimer(fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
    """Interprets a traced graph and measures the time of each node on its own, several times."""

    def __init__(self, traced: fx.GraphModule, runs: int) -> None:
        super().__init__(traced, garbage_collect_values=False)
        self.runs = runs
        self.found: dict[fx.Node, _Cost] = {}

    def costs(self, *inputs: Any) -> dict[fx.Node, _Cost]:
        self.run(*inputs)
        return self.found

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in _COMPUTE_OPS:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        target: Callable[..., Any] = getattr(self, n.op)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return target(n.target, args, kwargs)

        cost = _Cost(read_bytes=sum(_nbytes(value) for value in _tensors((args, kwargs))))
        parameters = [p for p in self._parameters(n) if p.requires_grad]
        times = [_time_once(run, args, kwargs, parameters) for _ in range(self.runs + 1)][1:]
        cost.forward_s, cost.backward_s = median(one for one, _ in times), median(two for _, two in times)
        with torch.no_grad():
            fresh = _copied((args, kwargs), leaf=False)
            outputs = run(*fresh)
        cost.sent_bytes = sum(_nbytes(value) for value in _tensors(outputs))
        self.found[n] = cost
        return outputs

    def _parameters(self, node: fx.Node) -> list[nn.Parameter]:
        return list(parameters_of(self.module, node).values())


def _time_once(
    run: Callable[..., Any], args: Any, kwargs: Any, parameters: Sequence[nn.Parameter]
) -> tuple[float, float]:
    """(forward, backward) seconds of one run; backward computes the gradients of the node's inputs and parameters.

    Backward is 0 if the node has nothing to differentiate.
    """
    (args, kwargs), leaves = _leaves(args, kwargs)
    with torch.enable_grad():
        began = _now(leaves)
        outputs = run(args, kwargs)
        forward_s = _now(leaves) - began
    sources = [*leaves, *parameters]
    roots = [value for value in _tensors(outputs) if value.requires_grad]
    if not roots or not sources:
        return forward_s, 0.0
    gradients = [torch.ones_like(value) for value in roots]
    began = _now(leaves)
    torch.autograd.grad(roots, sources, gradients, allow_unused=True)
    return forward_s, _now(leaves) - began


def _leaves(args: Any, kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
    """Differentiable copies of a node's arguments, and the autograd leaves from which they were cloned.

    The node gets clones, because an operator may write in place, which autograd forbids for leaves.
    """
    leaves: list[torch.Tensor] = []

    def copy(value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, nn.Parameter) or not value.is_floating_point():
            return value
        leaf = value.detach().clone().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()

    return fx.node.map_aggregate((args, kwargs), lambda v: copy(v) if isinstance(v, torch.Tensor) else v), leaves


def _copied(values: Any, *, leaf: bool) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
            return value
        return value.detach().clone().requires_grad_(leaf)

    return fx.node.map_aggregate(values, copy)


def _now(values: Sequence[torch.Tensor]) -> float:
    if any(value.is_cuda for value in values):
        torch.cuda.synchronize()
    return time.perf_counter()


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    fx.node.map_aggregate(values, lambda v: found.append(v) if isinstance(v, torch.Tensor) else None)
    return found


def _nbytes(value: torch.Tensor) -> int:
    return int(value.numel() * value.element_size())


def parameters_of(module: nn.Module, node: fx.Node) -> dict[str, nn.Parameter]:
    """Name -> parameter that a node reads; a tied parameter has its first name in the module."""
    names = {id(value): name for name, value in module.named_parameters()}
    if node.op == "call_module":
        found = list(module.get_submodule(str(node.target)).parameters())
    else:
        read = [one for one in node.all_input_nodes if one.op == "get_attr"]
        values = [_attribute(module, str(one.target)) for one in read]
        found = [value for value in values if isinstance(value, nn.Parameter)]
    return {names[id(value)]: value for value in found}


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _profile(traced: fx.GraphModule, costs: dict[fx.Node, _Cost], *, exported: bool) -> TorchProfile:
    nodes = [node for node in traced.graph.nodes if node in costs and node.users]
    weights = {node: parameters_of(traced, node) for node in nodes}
    group: dict[fx.Node, int] = {}
    groups: list[list[fx.Node]] = []
    for node in nodes:
        before = [one for one in node.all_input_nodes if one.op != "get_attr"]
        follows = before[0] if len(before) == 1 and before[0] in group else None
        matrix = any(sum(side > 1 for side in value.shape) > 1 for value in weights[node].values())
        enlarges = costs[node].sent_bytes > costs[node].read_bytes
        if follows is not None and len(follows.users) == 1 and not matrix and not enlarges:
            group[node] = group[follows]
            groups[group[follows]].append(node)
        else:
            group[node] = len(groups)
            groups.append([node])
    if not groups:
        raise JellyBeanError("no operation of the module depends on its inputs")
    layers = [(str(number), _layer(members, group, costs, weights)) for number, members in enumerate(groups)]
    edges = {(group[one], group[node]) for node in nodes for one in node.all_input_nodes if one in group}
    pairs = [(str(up), str(down)) for up, down in sorted(edges) if up != down]
    graph = layer_graph(layers, pairs)
    names = {id(layer): tuple(node.name for node in groups[int(number)]) for number, layer in layers}
    members = tuple(names[id(layer)] for layer in graph.layers)
    return TorchProfile(graph, _tied_weights(groups, weights), exported, members)


def _layer(
    members: Sequence[fx.Node],
    group: dict[fx.Node, int],
    costs: dict[fx.Node, _Cost],
    weights: dict[fx.Node, dict[str, nn.Parameter]],
) -> Layer:
    own = {name: value for node in members for name, value in weights[node].items()}
    sent = [node for node in members if any(group.get(user) != group[node] for user in node.users)]
    return Layer(
        _name(members[0]),
        sum(costs[node].forward_s for node in members),
        sum(costs[node].backward_s for node in members),
        float(sum(costs[node].sent_bytes for node in sent)),
        float(sum(_nbytes(value) for value in own.values())),
    )


def _name(node: fx.Node) -> str:
    """Name of a node: its submodule's name; repeated calls of a submodule are numbered (`0`, then `_0_1`)."""
    called = [one for one in node.graph.nodes if one.op == "call_module" and one.target == node.target]
    return str(node.target) if node in called[:1] else node.name


def _tied_weights(
    groups: Sequence[Sequence[fx.Node]], weights: dict[fx.Node, dict[str, nn.Parameter]]
) -> dict[str, tuple[str, ...]]:
    users: dict[str, dict[str, None]] = {}
    for members in groups:
        for node in members:
            for name in weights[node]:
                users.setdefault(name, {})[_name(members[0])] = None
    return {name: tuple(layers) for name, layers in users.items() if len(layers) > 1}
