"""The weights of one copy of a stage, in all versions that micro-batches on their way still need.

The newest version is the module's own parameters, which the optimizer writes to. Forwards use aliases of them, so that
a graph keeps its version: before an update a version that is needed later is left its memory and the parameters move.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


class Versions:
    """`last_use`: version -> place, in its device's order, of the last action that needs it."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self._aliases: dict[int, dict[str, torch.Tensor]] = {}
        self._latest = 0
        self._last_use: Mapping[int, int] = {}
        self.most = 1

    def begin(self, last_use: Mapping[int, int]) -> None:
        """A new iteration: what the module has is version 0."""
        self._aliases, self._latest, self._last_use, self.most = {}, 0, last_use, 1

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """Leaves with the values of that version, by the parameters' names."""
        if version not in self._aliases:
            if version != self._latest:
                raise AssertionError(f"version {version} is gone; the latest is {self._latest}")
            self._aliases[version] = {
                name: value.data.requires_grad_(value.requires_grad) for name, value in self.parameters.items()
            }
        return self._aliases[version]

    def before_update(self, place: int) -> None:
        """The update at that place of the order is about to write to the parameters."""
        self._aliases = {v: own for v, own in self._aliases.items() if self._last_use.get(v, -1) > place}
        if self._last_use.get(self._latest, -1) > place:
            self.weights(self._latest)
            for value in self.parameters.values():
                if value.requires_grad:
                    value.data = value.data.clone()
        self._latest += 1
        self.most = max(self.most, len(self._aliases) + 1)
