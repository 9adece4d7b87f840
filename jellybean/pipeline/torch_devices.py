"""Operations of a graph on another device than the one where it was traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_MOVES = {"cpu", "cuda"}  # methods of a tensor that move it
_FACTORIES = {  # make tensors on the default device if the graph names none
    getattr(torch, name)
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm"),
        *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "hann_window", "hamming_window"),
    )
}


def operation_on(node: fx.Node, device: torch.device) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(target, args, kwargs) of a node that computes on one device, with every device in them replaced by it.

    Exported graphs name the device on which the model was traced (`zeros(..., device=cpu)`).
    """
    if node.op == "call_method" and node.target in _MOVES:
        return "to", (node.args[0], device), {}
    args = _replaced(node.args, device)
    kwargs = {name: _replaced(value, device) for name, value in node.kwargs.items()}
    if node.target in _FACTORIES or _is_device_text(kwargs.get("device")):
        kwargs["device"] = device
    if node.op == "call_method" and node.target == "to" and len(args) > 1 and _is_device_text(args[1]):
        args = (args[0], device, *args[2:])
    return node.target, args, kwargs


def _replaced(value: Any, device: torch.device) -> Any:
    return fx.node.map_aggregate(value, lambda one: device if isinstance(one, torch.device) else one)


def _is_device_text(value: Any) -> bool:
    return isinstance(value, str) and value.partition(":")[0] in _MOVES
