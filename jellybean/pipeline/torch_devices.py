"""Moves traced modules to a device, with all that their graphs say about devices.

Exported graphs name the device on which the model was traced (`zeros(..., device=cpu)`), and have constants beside the
parameters. On another device such an operation would make a tensor on the wrong one. A graph computes on one device
only, so every device in it becomes that device.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import fx, nn

Key = TypeVar("Key")
_MOVES = {"cpu", "cuda"}  # methods of a tensor that move it
_FACTORIES = {  # make tensors on the default device if the graph names none
    getattr(torch, name)
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm"),
        *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "hann_window", "hamming_window"),
    )
}


def copy_modules(modules: Mapping[Key, nn.Module]) -> dict[Key, nn.Module]:
    """Deep copies that share what the modules share.

    Tensors that a forward computed and kept in an attribute, as weight norm and pruning do, are copied by value: they
    are computed anew, and torch copies no tensor that has a history.
    """
    kept = [value for module in modules.values() for part in module.modules() for value in vars(part).values()]
    computed = [value for value in kept if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    copies = {id(value): value.detach().clone() for value in computed}
    made = copy.deepcopy(dict(modules), copies)
    for module in made.values():
        for value in module.parameters():
            if not value.is_leaf:  # torch copies those of compiled modules (torch.jit) by an operation of autograd
                value.detach_().requires_grad_()
    return made


def move_module(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module's parameters, buffers and constants, and rewrite its graphs, in place. Returns the module."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _move_constants(part, device)
            for node in part.graph.nodes:
                node.target, node.args, node.kwargs = operation_on(node, device)
            part.graph.lint()
            part.recompile()
    return module.to(device)


def operation_on(node: fx.Node, device: torch.device) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(target, args, kwargs) of a node on one device, with every device in them replaced by it."""
    if node.op == "call_method" and node.target in _MOVES:
        return "to", (node.args[0], device), {}
    args = _replaced(node.args, device)
    kwargs = {name: _replaced(value, device) for name, value in node.kwargs.items()}
    if node.target in _FACTORIES or _is_device_text(kwargs.get("device")):
        kwargs["device"] = device
    if node.op == "call_method" and node.target == "to" and len(args) > 1 and _is_device_text(args[1]):
        args = (args[0], device, *args[2:])
    if getattr(node.target, "__name__", "") == "wrap_with_autocast" and args[0] == "cpu":  # of the device traced on
        args = (device.type, *args[1:])
    return node.target, args, kwargs


def _replaced(value: Any, device: torch.device) -> Any:
    return fx.node.map_aggregate(value, lambda one: device if isinstance(one, torch.device) else one)


def _is_device_text(value: Any) -> bool:
    return isinstance(value, str) and value.partition(":")[0] in _MOVES


def _move_constants(module: fx.GraphModule, device: torch.device) -> None:
    """Move tensors that a graph reads as plain attributes; `Module.to` moves parameters and buffers only."""
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        path, _, name = str(node.target).rpartition(".")
        owner = module.get_submodule(path)
        value = getattr(owner, name)
        if isinstance(value, torch.Tensor) and name not in owner._parameters and name not in owner._buffers:
            setattr(owner, name, value.to(device))
