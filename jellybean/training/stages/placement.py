"""Moves a stage to a device, with all that its graph says about devices.

Exported graphs name the device on which the model was traced, and have constants beside the parameters. On another
device such an operation would make a tensor on the wrong one. A stage computes on one device only, so every device in
its graph becomes that device.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from jellybean.pipeline.torch_devices import operation_on


def move_stage(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module's parameters, buffers and constants, and rewrite its graphs, in place. Returns the module."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _move_constants(part, device)
            for node in part.graph.nodes:
                node.target, node.args, node.kwargs = operation_on(node, device)
            part.graph.lint()
            part.recompile()
    return module.to(device)


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
