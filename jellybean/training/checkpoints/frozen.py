"""Frozen weights: checkpoints leave them out, and hold their fingerprints, so that a run resumes on the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from jellybean.training.checkpoints.states import WEIGHT, HeldStages
from jellybean.training.errors import TrainingError

_DIGEST_BYTES = 8


class FrozenWeights:
    """The weights of a rank's stages that the model's function or file gives; each is read for its fingerprint once."""

    def __init__(self, held: HeldStages, known: Mapping[str, str] | None = None) -> None:
        """`known`: fingerprints of weights of which the stages have parts."""
        self._held = held
        self._known: dict[str, str] = dict(known or {})

    def fingerprints(self) -> dict[str, str]:
        """Fingerprint by name."""
        return {
            name: self._fingerprint(name, value)
            for stage in self._held.values()
            for name, value in stage.versions.given.items()
        }

    def check(self, path: Path, expected: Mapping[str, str], tensors: Mapping[str, Any]) -> None:
        """TrainingError if weights that a checkpoint at `path` does not hold are not those that it was trained with.

        `expected`: fingerprints in the checkpoint. `tensors`: what it holds.
        """
        missing = {
            name: value
            for stage in self._held.values()
            for name, value in stage.versions.exact.items()
            if name in expected and WEIGHT + name not in tensors
        }
        changed = [name for name, value in missing.items() if self._fingerprint(name, value) != expected[name]]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise TrainingError(
                f"{path} was trained beside other frozen weights: {changed[0]}{more} differ from what the model's "
                "function or `weights` gives now; give the same ones, or start over with --fresh"
            )

    def _fingerprint(self, name: str, value: torch.Tensor) -> str:
        if name not in self._known:
            self._known[name] = fingerprint(value)
        return self._known[name]


def fingerprint(value: torch.Tensor) -> str:
    """Digest of a weight's shape and of its values rounded to bfloat16: the same in every precision of a run."""
    rounded = value.detach().to(torch.bfloat16) if value.is_floating_point() else value.detach()
    flat = rounded.cpu().contiguous().reshape(-1)
    found = hashlib.blake2b(repr(tuple(value.shape)).encode(), digest_size=_DIGEST_BYTES)
    found.update(memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    return found.hexdigest()
