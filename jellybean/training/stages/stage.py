"""One copy of a stage: forwards, backwards and the gradients of its weights, each micro-batch on its weight version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from jellybean.training.processes.messages import Tensors
from jellybean.training.stages.slots import Slots
from jellybean.training.stages.split_backward import Deferred, input_half, weight_half
from jellybean.training.stages.weight_versions import Versions

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """`precision`: type that layers compute in where autocast knows how; None is the weights' own. `recompute`: keep
    the inputs of a forward only, and run it again before its backward.
    """

    precision: torch.dtype | None = None
    recompute: bool = False


@dataclass
class _Kept:
    """Of a micro-batch between its forward and its backward. `leaves`: gradients of the inputs are asked of these."""

    inputs: Tensors
    weights: dict[str, torch.Tensor]
    seed: int
    target: Any = None
    factor: float = 1.0
    leaves: Sequence[torch.Tensor | None] = ()
    outputs: Tensors = ()
    loss: torch.Tensor | None = None
    deferred: Deferred | None = None


@dataclass
class Stage:
    """`module` takes and gives tensors; with `loss` it is the last one, and its loss is a mean over samples.

    `gradient`: what the next update adds, by the parameters' names.
    """

    module: nn.Module
    settings: Settings = Settings()
    loss: Loss | None = None
    gradient: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.versions = Versions(self.module)
        self._kept: dict[int, _Kept] = {}
        self._slots = Slots(self.module)
        self._writes = any(getattr(part, "inplace", False) for part in self.module.modules())

    @property
    def live(self) -> int:
        """Micro-batches that it keeps something of."""
        return len(self._kept)

    def begin(self, last_use: Mapping[int, int]) -> None:
        """A new iteration."""
        self.versions.begin(last_use)
        self._kept.clear()

    def forward(
        self, microbatch: int, inputs: Tensors, version: int, *, seed: int, target: Any = None, factor: float = 1.0
    ) -> Tensors | torch.Tensor:
        """Outputs for the next stage, or at the last one the loss. `factor`: weight of the loss in the update's."""
        kept = _Kept(inputs, self.versions.weights(version), seed, target, factor)
        self._kept[microbatch] = kept
        if not self.settings.recompute:
            self._run(kept)
            return kept.outputs if kept.loss is None else kept.loss.detach()
        with torch.no_grad():
            self._run(kept)
        told = kept.outputs if kept.loss is None else kept.loss
        kept.outputs, kept.loss, kept.leaves = (), None, ()
        return told

    def backward(self, microbatch: int, gradients: Tensors) -> Tensors:
        """Gradients of the inputs; those of the weights are added up."""
        kept = self._ready(microbatch)
        del self._kept[microbatch]
        roots, coming = _roots(kept, gradients)
        leaves, weights = _wanted(kept.leaves), _trained(kept.weights)
        if not roots:
            return (None,) * len(kept.leaves)
        with self._adding_up(weights):
            torch.autograd.backward(roots, coming, inputs=[*leaves, *weights.values()])
        return _by_leaf(kept.leaves, [leaf.grad for leaf in leaves])

    def input_gradient(self, microbatch: int, gradients: Tensors) -> Tensors:
        """The first half of a backward."""
        kept = self._ready(microbatch)
        roots, coming = _roots(kept, gradients)
        weights = list(_trained(kept.weights).values())
        found, kept.deferred = input_half(roots, coming, _wanted(kept.leaves), weights)
        return _by_leaf(kept.leaves, found)

    def weight_gradient(self, microbatch: int) -> None:
        """The second half."""
        kept = self._kept.pop(microbatch)
        weights = _trained(kept.weights)
        if kept.deferred is not None:
            with self._adding_up(weights):
                weight_half(kept.deferred, list(weights.values()))

    def _ready(self, microbatch: int) -> _Kept:
        kept = self._kept[microbatch]
        if self.settings.recompute:  # into copies of the statistics, which have counted this micro-batch already
            self._run(kept, {name: value.clone() for name, value in self.module.named_buffers()})
        return kept

    def _run(self, kept: _Kept, buffers: Mapping[str, torch.Tensor] | None = None) -> None:
        kept.leaves = tuple(map(_leaf, kept.inputs))
        given = [leaf.clone() if self._writes and leaf is not None else leaf for leaf in kept.leaves]
        device = next((leaf.device for leaf in kept.leaves if leaf is not None), torch.device("cpu"))
        _seed(device, kept.seed)
        with torch.autocast(device.type, self.settings.precision) if self.settings.precision else nullcontext():
            with self._slots.filled({**kept.weights, **buffers} if buffers else kept.weights):
                found = self.module(*given)
            if self.loss is None:
                kept.outputs = found if isinstance(found, tuple) else (found,)
            else:
                kept.loss = self.loss(found, kept.target)

    @contextmanager
    def _adding_up(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Gradients of a version's weights go into the update's while they are in the cache."""
        for name, value in weights.items():
            value.grad = self.gradient.get(name)
        try:
            yield
        finally:
            for name, value in weights.items():
                if value.grad is not None:
                    self.gradient[name] = value.grad
                    value.grad = None


def _seed(device: torch.device, seed: int) -> None:
    """As torch.manual_seed, which without a GPU formats the call stack every time, for a GPU that may come (0.3 ms)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _leaf(value: torch.Tensor | None) -> torch.Tensor | None:
    """Gradients are asked of what another stage made; data says itself whether it wants any."""
    return None if value is None else value.detach().requires_grad_(value.requires_grad)


def _wanted(leaves: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]


def _trained(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if value.requires_grad}


def _roots(kept: _Kept, gradients: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the backward starts from, each with its gradient."""
    if kept.loss is not None:
        return [kept.loss], [torch.full_like(kept.loss, kept.factor)]
    pairs = [
        (output, gradient)
        for output, gradient in zip(kept.outputs, gradients, strict=True)
        if output is not None and gradient is not None and output.requires_grad
    ]
    return [output for output, _ in pairs], [gradient.to(output.dtype) for output, gradient in pairs]


def _by_leaf(leaves: Sequence[torch.Tensor | None], found: Sequence[torch.Tensor | None]) -> Tensors:
    """One gradient per input, None where none was asked."""
    gradients = iter(found)
    return tuple(next(gradients) if leaf is not None and leaf.requires_grad else None for leaf in leaves)
