"""Digests of gradients: enough to compare two backward passes without holding two sets of gradients; their hooks.

The gradients of all weights take as much memory as the weights; a digest takes three numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_TILE = 4093  # numbers of a random vector; a gradient is projected onto the outer product of two


def gradient_digests(
    roots: Sequence[torch.Tensor], coming: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The norm of each weight's gradient and its projections on two random vectors; None where there is none.

    Equal gradients have equal digests, and the digests of others differ by about the norm of the difference. `weights`
    are leaves without `.grad`. Each gradient is freed when it has been digested.
    """
    digests: dict[int, torch.Tensor] = {}

    def digest(weight: torch.Tensor) -> None:
        if weight.grad is not None:
            digests[id(weight)] = tensor_digest(weight.grad)
            weight.grad = None

    hooks = [weight.register_post_accumulate_grad_hook(digest) for weight in weights]
    try:
        torch.autograd.backward(roots, coming)
    finally:
        for hook in hooks:
            hook.remove()
    return [digests.get(id(weight)) for weight in weights]


def share_gradient_hooks(value: torch.Tensor, weight: torch.Tensor) -> None:
    """Have a tensor that stands for a weight call the hooks that the weight has."""
    if weight._backward_hooks:
        value._backward_hooks = weight._backward_hooks
    if weight._post_accumulate_grad_hooks:
        value._post_accumulate_grad_hooks = weight._post_accumulate_grad_hooks


def tensor_digest(tensor: torch.Tensor) -> torch.Tensor:
    """The norm of a tensor and its projections on two random vectors, in double precision."""
    with torch.autocast(tensor.device.type, enabled=False):
        return _digest(tensor)


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    values = (tensor.to_dense() if tensor.is_sparse else tensor).detach().reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float() if values.is_floating_point() else values.double()
    rows = len(values) // _TILE
    generator = torch.Generator().manual_seed(len(values))
    found = [values.norm().double().cpu()]
    for _ in range(2):
        tile = torch.randn(_TILE, generator=generator).to(values)
        other = torch.randn(rows, generator=generator).to(values)
        rest = values[rows * _TILE :]
        whole = values[: rows * _TILE].view(rows, _TILE)
        found.append((torch.dot(whole @ tile, other) + torch.dot(rest, tile[: len(rest)])).double().cpu())
    return torch.stack(found)
