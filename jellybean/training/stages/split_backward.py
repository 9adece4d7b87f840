"""Splits a backward into input gradients and weight gradients (zero bubble, Qi et al. 2024).

The first half back-propagates from the outputs to the inputs and keeps the incoming gradient of every node on the way
that also leads to weights. The second half continues from those nodes to the weights; no edge is traversed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

from jellybean.training.processes.tensor_messages import StageTensors
from jellybean.training.stages.gradient_layouts import added


@dataclass
class DeferredWeightGradients:
    """State for the second half. `received[node]`: gradients of the node's outputs."""

    roots: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]
    received: dict[Node, tuple[torch.Tensor | None, ...]]
    weights_of: dict[Node, list[int]] | None  # None: a weight is reachable from several nodes


def input_gradients(
    roots: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> tuple[StageTensors, DeferredWeightGradients]:
    """Gradients of the inputs, in order, and the deferred second half. The autograd graph is retained."""
    if not roots or not inputs:
        return (None,) * len(inputs), DeferredWeightGradients(roots, gradients, {}, None)
    weights_of = _branch_nodes(roots, inputs, weights)
    received: dict[Node, tuple[torch.Tensor | None, ...]] = {}
    hooks = [node.register_prehook(_keeper(node, received)) for node in weights_of or ()]
    try:
        of_inputs = torch.autograd.grad(roots, inputs, gradients, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(of_inputs), DeferredWeightGradients(roots, gradients, received, weights_of)


def weight_gradients(deferred: DeferredWeightGradients, weights: Sequence[torch.Tensor]) -> None:
    """Accumulate the weight gradients into `.grad`."""
    if not deferred.roots or not weights:
        return
    if deferred.weights_of is None:
        torch.autograd.backward(deferred.roots, deferred.gradients, inputs=list(weights))
        return
    for node, indices in deferred.weights_of.items():
        pairs = [
            (GradientEdge(node, index), gradient)
            for index, gradient in enumerate(deferred.received.get(node, ()))
            if gradient is not None
        ]
        if pairs:
            edges, gradients = zip(*pairs, strict=True)
            wanted = [weights[i] for i in indices]
            parts = torch.autograd.grad(edges, wanted, gradients, retain_graph=True, allow_unused=True)
            _add(wanted, parts)


def _add(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """Accumulate into `.grad`, like backward, which accepts no gradient edges before torch 2.7."""
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None and weight.grad is None:
            weight.grad = gradient.detach().clone()
        elif gradient is not None and weight.grad is not None:
            weight.grad = added(weight.grad, gradient)


def _keeper(node: Node, received: dict[Node, tuple[torch.Tensor | None, ...]]) -> Any:
    def keep(gradients: tuple[torch.Tensor | None, ...]) -> None:
        received[node] = tuple(gradients)

    return keep


def _branch_nodes(
    roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> dict[Node, list[int]] | None:
    """Nodes on a path to the inputs -> indices of weights reachable without passing another node on such a path.

    None if a weight is reachable from several of them, or from a root that leads to no input.
    """
    order = _from_leaves([_node(root) for root in roots])
    ends = {id(value) for value in inputs}
    number = {id(weight): index for index, weight in enumerate(weights)}
    on_input_path: set[Node] = set()  # on a path to an input
    reachable: dict[Node, set[int]] = {}  # indices of weights reachable without passing a node on an input path
    branches: dict[Node, list[int]] = {}
    for node in order:
        leaf = id(getattr(node, "variable", None))  # the leaf tensor of an AccumulateGrad node
        nexts = [one for one, _ in node.next_functions if one is not None]
        if leaf in ends or any(one in on_input_path for one in nexts):
            on_input_path.add(node)
        behind = set().union(*(reachable[one] for one in nexts if one not in on_input_path))
        reachable[node] = behind | ({number[leaf]} if leaf in number else set())
        if node in on_input_path and reachable[node]:
            branches[node] = sorted(reachable[node])
    # A weight that no node on a path to the inputs leads to is reachable from roots only.
    reached = [index for indices in branches.values() for index in indices]
    beside = {i for root in roots if _node(root) not in on_input_path for i in reachable[_node(root)]}
    return None if beside or len(reached) != len(set(reached)) else branches


def _node(tensor: torch.Tensor) -> Node:
    return tensor.grad_fn or torch.autograd.graph.get_gradient_edge(tensor).node


def _from_leaves(roots: Sequence[Node]) -> list[Node]:
    """All nodes in topological order, successors (towards the leaves) first."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(one, False) for one, _ in node.next_functions if one is not None and one not in seen]
    return order
