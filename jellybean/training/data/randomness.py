"""Random generators of data sources: seeded by epoch and row, and kept apart from those of the training loop."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_generators(*parts: int) -> None:
    """Seed the generators of torch, numpy and Python by some numbers."""
    seed = int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # the generator that data sets use
    random.seed(seed)


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order; different for each pair of a seed and an epoch below 2^20."""
    return (seed << 20) + epoch


def epoch_order(rows: int, seed: int, epoch: int) -> torch.Tensor:
    """Row numbers in the order of an epoch, the same on all ranks, from memory and from data sets."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(epoch_seed(seed, epoch)))


class Randomness:
    """A state of the generators of torch, numpy and Python, used while it is `active`."""

    def __init__(self, *parts: int) -> None:
        before = _states()
        seed_generators(*parts)
        self._own = _states()
        _restore(before)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which the generators go on from this state; afterwards they have that of before."""
        before = _states()
        _restore(self._own)
        try:
            yield
        finally:
            self._own = _states()
            _restore(before)


def _states() -> tuple[Any, ...]:
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def _restore(states: tuple[Any, ...]) -> None:
    torch.default_generator.set_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
