"""Random generators of data sources: seeded by epoch and row, and kept apart from those of the training loop."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from jellybean.pipeline.torch_state import random_states, restore_random_states, seed_generators


def seed_by(*parts: int) -> None:
    """Seed the generators of torch, numpy and Python by some numbers."""
    seed_generators(int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little"))


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order; different for each pair of a seed and an epoch below 2^20."""
    return (seed << 20) + epoch


def epoch_order(rows: int, seed: int, epoch: int) -> torch.Tensor:
    """Row numbers in the order of an epoch, the same on all ranks, from memory and from data sets."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(epoch_seed(seed, epoch)))


class Randomness:
    """A state of the generators of torch, numpy and Python, used while it is `active`."""

    def __init__(self, *parts: int) -> None:
        before = random_states()
        seed_by(*parts)
        self._own = random_states()
        restore_random_states(before)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which the generators go on from this state; afterwards they have that of before."""
        before = random_states()
        restore_random_states(self._own)
        try:
            yield
        finally:
            self._own = random_states()
            restore_random_states(before)
