"""Moves a stage to a device, with all that its graph says about devices.

Exported graphs name the device on which the model was traced (`zeros(..., device=cpu)`) and have constants beside the
parameters. On another device such an operation would make a tensor on the wrong one. A stage computes on one device
only, so every device in its graph becomes that device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

_MOVES = {"cpu", "cuda"}  # methods of a tensor that move it
_FACTORIES = {  # make tensors on the default device if the graph names none
    getattr(torch, name)
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm"),
        *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "hann_window", "hamming_window"),
    )
}


def move_stage(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module's parameters, buffers and constants, and rewrite its graphs, in place. Returns the module."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _move_constants(part, device)
            _rewrite(part, device)
    return module.to(device)


def _rewrite(module: fx.GraphModule, device: torch.device) -> None:
    """Replace the devices in a graph."""
    changed = False
    for node in module.graph.nodes:
        if node.op == "call_method" and node.target in _MOVES:
            node.target, node.args, node.kwargs = "to", (node.args[0], device), {}
            changed = True
            continue
        args = _replaced(node.args, device, texts=False)
        kwargs = {name: _replaced(value, device, texts=name == "device") for name, value in node.kwargs.items()}
        if node.target in _FACTORIES:
            kwargs["device"] = device
        if node.op == "call_method" and node.target == "to" and len(args) > 1 and _is_device_text(args[1]):
            args = (args[0], device, *args[2:])
        if (args, kwargs) != (node.args, node.kwargs):
            node.args, node.kwargs = args, kwargs
            changed = True
    if changed:
        module.graph.lint()
        module.recompile()


def _replaced(value: Any, device: torch.device, *, texts: bool) -> Any:
    """The arguments with devices replaced; `texts`: also devices written as text."""

    def replace(one: Any) -> Any:
        return device if isinstance(one, torch.device) or (texts and _is_device_text(one)) else one

    return fx.node.map_aggregate(value, replace)


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
