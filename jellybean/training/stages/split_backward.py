"""A stage's backward in two halves: gradients of its inputs first, of its weights later (zero bubble).

The first half runs the graph from the outputs to the inputs and keeps, at every operation on the way that also leads
to weights, the gradient that came to it. The second goes from there to the weights, and no way twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

Gradients = tuple[torch.Tensor | None, ...]


@dataclass
class Deferred:
    """What the second half needs. `came[node]`: gradients of the node's outputs."""

    roots: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]
    came: dict[Node, tuple[torch.Tensor | None, ...]]
    weights_of: dict[Node, list[int]] | None  # None: some weight can be reached over two of them


def input_half(
    roots: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> tuple[Gradients, Deferred]:
    """Gradients of the inputs, in their order, and what is left to do. The graph stays."""
    if not roots or not inputs:
        return (None,) * len(inputs), Deferred(roots, gradients, {}, None)
    weights_of = _branches(roots, inputs, weights)
    came: dict[Node, tuple[torch.Tensor | None, ...]] = {}
    hooks = [node.register_prehook(_keeper(node, came)) for node in weights_of or ()]
    try:
        found = torch.autograd.grad(roots, inputs, gradients, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found), Deferred(roots, gradients, came, weights_of)


def weight_half(deferred: Deferred, weights: Sequence[torch.Tensor]) -> None:
    """Add to the gradients of the weights."""
    if not deferred.roots or not weights:
        return
    if deferred.weights_of is None:
        torch.autograd.backward(deferred.roots, deferred.gradients, inputs=list(weights))
        return
    for node, own in deferred.weights_of.items():
        pairs = [
            (GradientEdge(node, index), gradient)
            for index, gradient in enumerate(deferred.came.get(node, ()))
            if gradient is not None
        ]
        if pairs:
            edges, gradients = zip(*pairs, strict=True)
            wanted = [weights[i] for i in own]
            parts = torch.autograd.grad(edges, wanted, gradients, retain_graph=True, allow_unused=True)
            _add(wanted, parts)


def _add(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """As backward does; that takes no edges before torch 2.7."""
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None and weight.grad is None:
            weight.grad = gradient.detach().clone()
        elif gradient is not None and weight.grad is not None:
            weight.grad += gradient


def _keeper(node: Node, came: dict[Node, tuple[torch.Tensor | None, ...]]) -> Any:
    def keep(gradients: tuple[torch.Tensor | None, ...]) -> None:
        came[node] = tuple(gradients)

    return keep


def _branches(
    roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> dict[Node, list[int]] | None:
    """Nodes on a way to the inputs from which a way leads to weights past all others; None where that is not unique."""
    order = _from_leaves([_node(root) for root in roots])
    ends = {id(value) for value in inputs}
    number = {id(weight): index for index, weight in enumerate(weights)}
    passes: set[Node] = set()  # on a way to an input
    leads: dict[Node, set[int]] = {}  # weights that are reached without such a node
    found: dict[Node, list[int]] = {}
    for node in order:
        leaf = id(getattr(node, "variable", None))  # what an operator that accumulates a gradient does so for
        nexts = [one for one, _ in node.next_functions if one is not None]
        if leaf in ends or any(one in passes for one in nexts):
            passes.add(node)
        own = set().union(*(leads[one] for one in nexts if one not in passes))
        leads[node] = own | ({number[leaf]} if leaf in number else set())
        if node in passes and leads[node]:
            found[node] = sorted(leads[node])
    # weights that no node on a way to the inputs leads to are reached from roots only
    reached = [index for own in found.values() for index in own]
    beside = {i for root in roots if _node(root) not in passes for i in leads[_node(root)]}
    return None if beside or len(reached) != len(set(reached)) else found


def _node(tensor: torch.Tensor) -> Node:
    return tensor.grad_fn or torch.autograd.graph.get_gradient_edge(tensor).node


def _from_leaves(roots: Sequence[Node]) -> list[Node]:
    """All nodes, each after those that it leads to."""
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
