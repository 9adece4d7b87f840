"""Digests of rows, by which ranks compare what they have read."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from jellybean.training.samples import Samples


def digest_of(samples: Samples) -> bytes:
    """Digest of the names, types, sizes and values of some samples."""
    digest = hashlib.blake2b(digest_size=16)
    targets = samples.targets.tensors if samples.targets is not None else ()
    digest.update(repr(samples.inputs.names).encode())
    for value in (*samples.inputs.tensors, *targets):
        digest.update(f"{value.dtype} {list(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.digest()


def _bytes(value: torch.Tensor) -> Any:
    flat = value.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
