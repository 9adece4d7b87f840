"""Buckets of gradients: flat tensors in host memory that are summed as a whole.

As in torch's DistributedDataParallel (Li et al. 2020), buckets have the parameters in reverse order, which is about the
order in which a backward pass produces their gradients, so that the first bucket is complete early.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Bucket:
    """Gradients of some parameters, one after the other in `values`."""

    def __init__(self, parts: Mapping[str, torch.Tensor]) -> None:
        dtype = next(iter(parts.values())).dtype
        self.values = torch.empty(sum(part.numel() for part in parts.values()), dtype=dtype)
        pieces = self.values.split([part.numel() for part in parts.values()])
        self._pieces = {name: piece.view(part.shape) for piece, (name, part) in zip(pieces, parts.items(), strict=True)}
        self._missing = set(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters whose gradients it has."""
        return tuple(self._pieces)

    @property
    def complete(self) -> bool:
        """True if all gradients are in the bucket."""
        return not self._missing

    def put(self, name: str, gradient: torch.Tensor) -> None:
        """Copy a gradient into the bucket."""
        if name not in self._missing:
            raise RuntimeError(f"the gradient of {name} was complete before, and is complete again")
        self._pieces[name].copy_(gradient)
        self._missing.discard(name)

    def take(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Copy the sums into these gradients, and begin anew."""
        for name, piece in self._pieces.items():
            gradients[name].copy_(piece)
        self._missing = set(self._pieces)


def make_buckets(values: Mapping[str, torch.Tensor], bucket_bytes: float) -> list[Bucket]:
    """Buckets for gradients like `values` (in the model's order), each of one dtype and at most `bucket_bytes`.

    A larger gradient has a bucket of its own.
    """
    buckets: list[dict[str, torch.Tensor]] = []
    size_bytes, dtype = 0, None
    for name, value in reversed(list(values.items())):
        if not buckets or value.dtype != dtype or size_bytes + value.nbytes > bucket_bytes:
            buckets.append({})
            size_bytes, dtype = 0, value.dtype
        buckets[-1][name] = value
        size_bytes += value.nbytes
    return [Bucket(parts) for parts in buckets]
