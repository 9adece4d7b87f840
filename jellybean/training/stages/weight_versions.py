"""Keeps the weight versions of one copy of a stage that micro-batches in flight still need.

The newest version is the module's own parameters, which the optimizer updates in place. Forwards use aliases of them.
Before an update, if a later action needs the current version, that version keeps its memory and the parameters move to
new memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from jellybean.pipeline.torch_gradients import share_gradient_hooks
from jellybean.training.stages.master_weights import MasterWeights


class WeightVersions:
    """`last_use`: version -> index, in the device's order, of the last action that uses it.

    `masters`: rounds the weights; None: they stay as they are. `keeps_older`: False if no action uses weights of before
    an update. Then all use the parameters themselves, whose hooks and other references the model may have.
    """

    def __init__(self, module: nn.Module, masters: MasterWeights | None = None, *, keeps_older: bool = True) -> None:
        self._keeps_older = keeps_older
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        copies = {n: masters.shorten(p) for n, p in self.parameters.items()} if masters is not None else {}
        self._masters = {name: copy for name, copy in copies.items() if copy is not None}
        self._starting = {name for name, value in self.parameters.items() if value.requires_grad}
        self._given = {name for name, value in self.parameters.items() if not value.requires_grad}
        self._aliases: dict[int, dict[str, torch.Tensor]] = {}
        self._latest = 0
        self._last_use: Mapping[int, int] = {}
        self.peak = 1

    @property
    def exact(self) -> dict[str, torch.Tensor]:
        """The newest weights by name, as the optimizer has them."""
        return {name: self._masters.get(name, value.data) for name, value in self.parameters.items()}

    @property
    def given(self) -> dict[str, torch.Tensor]:
        """The frozen weights as the model's function or file gives them."""
        return {name: value for name, value in self.exact.items() if name in self._given}

    @property
    def learned(self) -> dict[str, torch.Tensor]:
        """All other exact weights, trained or restored: what checkpoints and the trained model take from here."""
        return {name: value for name, value in self.exact.items() if name not in self._given}

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """The exact weights that the optimizer updates: those that took gradients when the run began."""
        return {name: value for name, value in self.exact.items() if name in self._starting}

    @property
    def thawed(self) -> str:
        """The first weight that takes gradients now, and did not when the run began; empty if there is none."""
        now = (name for name, value in self.parameters.items() if value.requires_grad and name not in self._starting)
        return next(now, "")

    def restore(self, name: str, value: torch.Tensor) -> None:
        """Replace one of the newest weights."""
        self.exact[name].copy_(value)
        self._given.discard(name)
        if name in self._masters:
            self.parameters[name].data.copy_(value)

    @contextmanager
    def exact_parameters(self) -> Iterator[None]:
        """Context in which the parameters are as exact as the optimizer has them; afterwards they are rounded again."""
        short = {name: self.parameters[name].data for name in self._masters}
        for name, master in self._masters.items():
            self.parameters[name].data = master
        try:
            yield
        finally:
            for name, rounded in short.items():
                self.parameters[name].data = rounded.copy_(self._masters[name])

    def is_rounded(self, name: str) -> bool:
        """Whether a weight has a master copy."""
        return name in self._masters

    def begin_iteration(self, last_use: Mapping[int, int]) -> None:
        """Start an iteration: the current weights are version 0."""
        self._aliases, self._latest, self._last_use, self.peak = {}, 0, last_use, 1

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """The weights of a version as autograd leaves, by parameter name."""
        if not self._keeps_older:
            return dict(self.parameters)
        if version not in self._aliases:
            if version != self._latest:
                raise AssertionError(f"version {version} is gone; the latest is {self._latest}")
            self._aliases[version] = {name: _alias(value) for name, value in self.parameters.items()}
        return self._aliases[version]

    def before_update(self, place: int) -> None:
        """Preserve the current version if needed; call before the optimizer step of the update at index `place`."""
        self._aliases = {v: own for v, own in self._aliases.items() if self._last_use.get(v, -1) > place}
        if self._last_use.get(self._latest, -1) > place:
            self.weights(self._latest)
            for value in self.parameters.values():
                if value.requires_grad:
                    value.data = value.data.clone()
        self._latest += 1
        self.peak = max(self.peak, len(self._aliases) + 1)


def _alias(parameter: nn.Parameter) -> torch.Tensor:
    """Another leaf with the parameter's memory and its hooks."""
    alias = parameter.data.requires_grad_(parameter.requires_grad)
    share_gradient_hooks(alias, parameter)
    return alias
