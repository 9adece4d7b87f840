"""One copy of a stage: forward, backward and weight gradients, each micro-batch on its own weight version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from jellybean.pipeline.torch_state import restore_random_states, seed_generators
from jellybean.training.processes.tensor_messages import StageTensors
from jellybean.training.stages.buffer_copies import counts
from jellybean.training.stages.gradient_layouts import added, dense
from jellybean.training.stages.master_weights import MasterWeights
from jellybean.training.stages.parameter_slots import ParameterSlots
from jellybean.training.stages.split_backward import DeferredWeightGradients, input_gradients, weight_gradients
from jellybean.training.stages.stage_links import StageLinks
from jellybean.training.stages.weight_versions import WeightVersions

LossFunction = Callable[[Any, Any], torch.Tensor]  # outputs, targets -> mean over samples
RandomSeed: TypeAlias = "int | tuple[Any, ...]"  # of a forward; or the generators' states before it
Watcher = Callable[[str, torch.Tensor], None]  # name and value of a gradient


@dataclass(frozen=True, slots=True)
class StageSettings:
    """`precision`: autocast type of the computation; None for the weights' own type.

    `recompute`: keep only the inputs of a forward and repeat it before the backward (activation checkpointing).
    `masters`: for weights in a short type. `keeps_versions`: micro-batches in flight may use weights of before an
    update; False for schedules with a flush.
    """

    precision: torch.dtype | None = None
    recompute: bool = False
    masters: MasterWeights | None = None
    keeps_versions: bool = True


@dataclass(frozen=True, slots=True)
class StageInputs:
    """What a stage reads, and which gradients it exchanges. The default is an inner stage of a chain.

    `arguments`: indices of the model's tensors that it reads from the feed, after the values received.
    `differentiable`: whether each received value needs a gradient; None: every floating one does. `expects_gradient`:
    False if the stages up to this one train nothing, so that no gradient comes back. `links`: where stages form a
    graph; None: it receives from the stage before and sends to the next.
    """

    arguments: tuple[int, ...] = ()
    differentiable: tuple[bool, ...] | None = None
    expects_gradient: bool = True
    links: StageLinks | None = None

    @property
    def sends_gradient(self) -> bool:
        """True if the stage before expects a gradient."""
        return self.differentiable is None or any(self.differentiable)

    def received(self, values: StageTensors) -> StageTensors:
        """Received values; those that need a gradient require it."""
        wanted = self.differentiable if self.differentiable is not None else (True,) * len(values)
        return tuple(
            value.requires_grad_() if value is not None and want and _takes_gradient(value) else value
            for value, want in zip(values, wanted, strict=True)
        )


@dataclass
class _InFlight:
    """A micro-batch in flight, between forward and backward.

    `buffers`: as they were before a forward that is repeated. `leaves`: detached inputs that receive the gradients.
    """

    inputs: StageTensors
    weights: dict[str, torch.Tensor]
    seed: RandomSeed
    target: Any = None
    factor: float = 1.0
    buffers: Mapping[str, torch.Tensor] | None = None
    leaves: Sequence[torch.Tensor | None] = ()
    outputs: StageTensors = ()
    loss: torch.Tensor | None = None
    deferred: DeferredWeightGradients | None = None


@dataclass
class StageCopy:
    """A stage on `device`. `module` maps tensors to tensors; `loss`, a mean over samples, only at the last stage.

    `state`: names of the buffers that it updates; None: all of them. `gradient`: accumulated for the next update, by
    parameter name. `watcher`: is called within `backward` with each gradient that this backward has accumulated.
    """

    module: nn.Module
    settings: StageSettings = StageSettings()
    loss: LossFunction | None = None
    inputs: StageInputs = StageInputs()
    state: frozenset[str] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    gradient: dict[str, torch.Tensor] = field(default_factory=dict)
    watcher: Watcher | None = None

    def __post_init__(self) -> None:
        self.versions = WeightVersions(self.module, self.settings.masters, keeps_older=self.settings.keeps_versions)
        self._in_flight: dict[int, _InFlight] = {}
        self._slots = ParameterSlots(self.module)
        self.settle_buffers()
        self._unwritten = {name: (value, value._version) for name, value in self.other_buffers.items()}

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that the stage updates (running means), by name; constants are left out."""
        return {n: b for n, b in self.module.named_buffers() if self.state is None or n in self.state}

    @property
    def other_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that no trial of the model has changed."""
        return {n: b for n, b in self.module.named_buffers() if self.state is not None and n not in self.state}

    @property
    def saved_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers of a checkpoint: those that the stage updates, and others that were written after all.

        A module that is called as it is may begin to write into one after some steps.
        """
        late = {
            name: value
            for name, value in self.other_buffers.items()
            if value is not self._unwritten[name][0] or value._version != self._unwritten[name][1]
        }
        return self.buffers | late

    def settle_buffers(self) -> None:
        """Take the buffers as they are for equal in all copies of the stage: `settled` has those of whole numbers."""
        self.settled = {name: value.clone() for name, value in self.buffers.items() if counts(value)}

    @property
    def live(self) -> int:
        """Micro-batches in flight."""
        return len(self._in_flight)

    def begin_iteration(self, last_use: Mapping[int, int]) -> None:
        """Start an iteration. `last_use`: weight version -> index of the last action that uses it."""
        self.versions.begin_iteration(last_use)
        self._in_flight.clear()

    def forward(
        self,
        microbatch: int,
        inputs: StageTensors,
        version: int,
        *,
        seed: RandomSeed,
        target: Any = None,
        factor: float = 1.0,
    ) -> StageTensors | torch.Tensor:
        """Outputs for the next stage, or the loss at the last. `factor`: weight of the loss in the update's loss."""
        flight = _InFlight(inputs, self.versions.weights(version), seed, target, factor)
        self._in_flight[microbatch] = flight
        if not self.settings.recompute:
            self._run(flight)
            return flight.outputs if flight.loss is None else _counted_loss(flight)
        flight.buffers = {name: value.clone() for name, value in self.buffers.items()}
        with torch.no_grad():
            self._run(flight)
        result = flight.outputs if flight.loss is None else _counted_loss(flight)
        flight.outputs, flight.loss, flight.leaves = (), None, ()
        return result

    def backward(self, microbatch: int, gradients: StageTensors) -> StageTensors:
        """Gradients of the received values, None where none is needed; weight gradients are added to `gradient`."""
        if not self.inputs.expects_gradient:
            return (None,) * self._received(self._in_flight.pop(microbatch))
        flight = self._recomputed(microbatch)
        del self._in_flight[microbatch]
        roots, coming = _roots(flight, gradients)
        leaves, weights = _wanted(flight.leaves), _trained(flight.weights)
        if not roots or not (leaves or weights):
            return (None,) * self._received(flight)
        with self._accumulating(weights), self._watched(weights):
            if self.settings.keeps_versions:
                torch.autograd.backward(roots, coming, inputs=[*leaves, *weights.values()])
            else:  # as plain torch does, which checkpoints of torch.utils may need
                torch.autograd.backward(roots, coming)
        return _by_leaf(flight.leaves, [leaf.grad for leaf in leaves])[: self._received(flight)]

    def input_gradient(self, microbatch: int, gradients: StageTensors) -> StageTensors:
        """Gradients of the received values, None where none is needed; weight gradients wait for `weight_gradient`."""
        if not self.inputs.expects_gradient:
            return (None,) * self._received(self._in_flight[microbatch])
        flight = self._recomputed(microbatch)
        roots, coming = _roots(flight, gradients)
        weights = list(_trained(flight.weights).values())
        found, flight.deferred = input_gradients(roots, coming, _wanted(flight.leaves), weights)
        return _by_leaf(flight.leaves, found)[: self._received(flight)]

    def weight_gradient(self, microbatch: int) -> None:
        """Compute the deferred weight gradients and accumulate them in `gradient`."""
        flight = self._in_flight.pop(microbatch)
        weights = _trained(flight.weights)
        if flight.deferred is not None:
            with self._accumulating(weights):
                weight_gradients(flight.deferred, list(weights.values()))

    def _received(self, flight: _InFlight) -> int:
        """Number of values received from the stage before; the other inputs are the model's arguments."""
        return len(flight.inputs) - len(self.inputs.arguments)

    def _recomputed(self, microbatch: int) -> _InFlight:
        flight = self._in_flight[microbatch]
        if self.settings.recompute:
            # Buffers (running means) have counted this micro-batch already, and maybe later ones: the second forward
            # computes with copies from before the first one, and updates those.
            others = {name: value.clone() for name, value in self.module.named_buffers()}
            self._run(flight, {**others, **(flight.buffers or {})})
            flight.buffers = None
        return flight

    def _run(self, flight: _InFlight, buffers: Mapping[str, torch.Tensor] | None = None) -> None:
        # A forward may write into the model's arguments, and a repeated one must find them as they were.
        flight.leaves = tuple(_leaf(value, copied=self.settings.recompute) for value in flight.inputs)
        _seed(self.device, flight.seed)
        with torch.autocast(self.device.type, self.settings.precision) if self.settings.precision else nullcontext():
            with self._slots.replaced({**flight.weights, **buffers} if buffers else flight.weights):
                found = self.module(*flight.leaves)
            if self.loss is None:
                flight.outputs = found if isinstance(found, tuple) else (found,)
            elif flight.factor:
                flight.loss = self.loss(found, flight.target)
            else:  # a loss may fail on rows of which nothing counts
                flight.loss = torch.zeros((), device=self.device)

    @contextmanager
    def _accumulating(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Context in which `.grad` of these weights is the update's gradient, so that backward accumulates into it.

        Gradients of weights in a short type are added up in the master copies' type.
        """
        rounded = {name for name in weights if self.versions.is_rounded(name)}
        for name, value in weights.items():
            value.grad = self.gradient.get(name) if name not in rounded else None
        try:
            yield
        finally:
            for name, value in weights.items():
                if value.grad is not None:
                    self.gradient[name] = self._sum(name, value.grad) if name in rounded else value.grad
                    value.grad = None

    @contextmanager
    def _watched(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Context in which the watcher is called as soon as a gradient is accumulated.

        Gradients that are added up outside autograd, in the master copies' type, are left out.
        """
        watcher = self.watcher
        exact = {n: w for n, w in weights.items() if watcher is not None and not self.versions.is_rounded(n)}
        hooks = [weight.register_post_accumulate_grad_hook(_calls(watcher, name)) for name, weight in exact.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _sum(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        total = self.gradient.get(name)
        return gradient.float() if total is None else added(total, gradient.float())


def _calls(watcher: Watcher | None, name: str) -> Callable[[torch.Tensor], None]:
    """A hook of autograd that passes an accumulated gradient to the watcher."""

    def call(weight: torch.Tensor) -> None:
        if watcher is not None and weight.grad is not None:
            watcher(name, dense(weight.grad))

    return call


def _takes_gradient(value: torch.Tensor) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


def _seed(device: torch.device, seed: RandomSeed) -> None:
    """Seed all generators; faster than torch.manual_seed, which without a GPU formats the call stack (0.3 ms)."""
    if isinstance(seed, tuple):
        restore_random_states(seed)
        return
    seed_generators(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _leaf(value: torch.Tensor | None, *, copied: bool) -> torch.Tensor | None:
    """The value, detached; requires a gradient if the value does, as activations from other stages do."""
    if value is None:
        return None
    return (value.detach().clone() if copied else value.detach()).requires_grad_(value.requires_grad)


def _wanted(leaves: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]


def _trained(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if value.requires_grad}


def _counted_loss(flight: _InFlight) -> torch.Tensor | Any:
    """The loss; 0 if the micro-batch does not count, as with no valid label, where a mean is undefined."""
    return flight.loss.detach() if flight.factor and flight.loss is not None else torch.zeros(())


def _roots(flight: _InFlight, gradients: StageTensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(outputs from which the backward starts, their gradients)."""
    if flight.loss is not None and not flight.factor:
        return [], []
    if flight.loss is not None:
        return [flight.loss], [torch.full_like(flight.loss, flight.factor)]
    pairs = [
        (output, gradient)
        for output, gradient in zip(flight.outputs, gradients, strict=True)
        if output is not None and gradient is not None and output.requires_grad
    ]
    return [output for output, _ in pairs], [gradient.to(output.dtype) for output, gradient in pairs]


def _by_leaf(leaves: Sequence[torch.Tensor | None], found: Sequence[torch.Tensor | None]) -> StageTensors:
    """One gradient per input; None for inputs that need none."""
    gradients = iter(found)
    return tuple(next(gradients) if leaf is not None and leaf.requires_grad else None for leaf in leaves)
