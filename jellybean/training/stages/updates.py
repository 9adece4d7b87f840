"""Weight updates of a rank's stages: gradients all-reduced, clipped, one optimizer step.

With a flush, all stages' gradients are complete before the first update, so tied weights and the norm are reduced over
the whole model, as on one device. Without a flush, every stage updates alone and is clipped by its own norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import nn

from jellybean.training.errors import TrainingError
from jellybean.training.processes.host_memory import return_freed_memory
from jellybean.training.stages.all_reduce import (
    ProcessGroups,
    TiedWeights,
    all_finite,
    clip_gradients,
    global_norm,
)
from jellybean.training.stages.averages import AveragedWeights
from jellybean.training.stages.gradient_layouts import LocalLayouts, NamedGradients, added, dense
from jellybean.training.stages.gradient_sums import GradientSums, PendingSum, TorchSums
from jellybean.training.stages.loss_scale import LossScale
from jellybean.training.stages.stage import StageCopy
from jellybean_solver.pipeline import Action, Schedule

MakeOptimizer = Callable[[dict[str, nn.Parameter]], torch.optim.Optimizer]  # parameters by name
GroupSettings = Sequence[Mapping[str, Any]]  # settings of each parameter group: learning rate, momentum
GROUP = "group"  # key of an optimizer's parameter group: its index in the model, as a stage may lack some groups


@dataclass(frozen=True)
class UpdateSettings:
    """`flushes`: the schedule has no micro-batch in flight at an update. `clip`: largest gradient norm.

    `first_replica`: True for the ranks of the first replica, which alone contribute to the sum over tied weights.
    `loss_scale`: None if the loss is not scaled; needs a schedule that flushes. `tensor`: ranks that share a device's
    part of the model; `split`: names of the weights of which each has a part.
    """

    flushes: bool
    tied: TiedWeights = field(default_factory=dict)
    clip: float | None = None
    first_replica: bool = True
    loss_scale: LossScale | None = None
    tensor: int = 1
    split: frozenset[str] = frozenset()

    def shares(self, gradients: Sequence[NamedGradients], *, tied: bool = True) -> dict[str, int]:
        """Number of ranks of a pipeline that have a gradient, by its name. `tied`: count those of tied weights, too."""
        holders = {name: len(names) for names in self.tied.values() for name in names.values()} if tied else {}
        return {
            name: holders.get(name, 1) * (1 if name in self.split else self.tensor) for own in gradients for name in own
        }


class WeightUpdates:
    """Updates of the stages that a rank holds. `held`: (stage, first pipe) -> copy.

    `averages`: of the weights, or None. `sums`: how gradients are summed over ranks; None: by torch's all_reduce.
    """

    def __init__(
        self,
        held: Mapping[tuple[int, int], StageCopy],
        make_optimizer: MakeOptimizer,
        groups: ProcessGroups,
        rules: UpdateSettings,
        averages: AveragedWeights | None = None,
        sums: GradientSums | None = None,
    ) -> None:
        self._held, self._groups, self._rules = held, groups, rules
        self._sums: GradientSums = sums or TorchSums(groups)
        self.averages = averages
        self._settings: Sequence[GroupSettings] = ()
        self._pending: dict[int, PendingSum | None] = {}
        self._layouts: dict[int, LocalLayouts] = {}  # of the stages whose sums are in flight
        self._prepared: set[int] = set()  # stages whose gradient is ready for an update without a flush
        self._ready = self._skipped = self._stepped = False
        self._owned: dict[tuple[int, int], dict[str, nn.Parameter]] = {}
        self.optimizers: dict[tuple[int, int], torch.optim.Optimizer] = {}
        owned: set[int] = set()
        for copy in sorted(held):
            every = held[copy].versions.parameters.items()
            own = {name: p for name, p in every if p.requires_grad and id(p) not in owned}
            owned |= {id(p) for p in own.values()}
            self._owned[copy] = own
            if own:
                self.optimizers[copy] = make_optimizer(own)

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss; None if it is not scaled."""
        return self._rules.loss_scale

    @property
    def loss_factor(self) -> float:
        """Factor of the loss in the backward passes of this iteration."""
        return self._rules.loss_scale.scale if self._rules.loss_scale is not None else 1.0

    def begin_iteration(self, settings: Sequence[GroupSettings]) -> None:
        """Start an iteration. `settings[i]`: settings of its i-th update (learning rates); empty: unchanged."""
        self._settings, self._pending, self._layouts = settings, {}, {}
        self._ready = self._skipped = False

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank has sent so far for sums of gradients; None if they are not counted."""
        return self._sums.sent_bytes

    @contextmanager
    def last_backward(self, number: int, stage: StageCopy) -> Iterator[None]:
        """Context of the last backward before a stage's update: its gradients are summed as they become complete."""
        stage.watcher = self._sums.watcher(number, stage.versions.trained)
        if stage.watcher is None:
            yield
            return
        try:
            yield
        finally:
            stage.watcher = None
        self.reduce(number, stage)

    def reduce(self, number: int, stage: StageCopy) -> None:
        """Start the sum of a stage's gradient over its copies, unless it has started."""
        if name := stage.versions.thawed:
            raise TrainingError(
                f"forward lets the weight {name} take gradients (requires_grad) after it did not at first, and the "
                "optimizer does not have it: let it take them from the start, or in a second run"
            )
        if number not in self._pending and self._groups.copies.get(number) is not None:
            self._layouts[number] = LocalLayouts(stage.gradient, stage.versions.trained)
            stage.gradient = _filled(stage)
            self._pending[number] = self._sums.start(number, stage.gradient)

    def prepare(self, number: int, stage: StageCopy) -> None:
        """Wait until a stage's gradient is what its update applies: summed over ranks and clipped."""
        clip = self._rules.clip
        if self._rules.flushes:
            if not self._ready:
                self._prepare_all()
                self._ready = True
        elif number not in self._prepared:
            self._reduce_now(number, stage)
            if clip is not None:
                shares = self._rules.shares([stage.gradient], tied=False)
                norm = global_norm([stage.gradient], shares, self._groups.tensor, stage.device)
                clip_gradients([stage.gradient], norm, clip)
            self._prepared.add(number)

    def update(self, action: Action, stage: StageCopy, place: int) -> None:
        """Apply a stage's accumulated gradient to its weights. `place`: index of the action in the device's order."""
        self.prepare(action.stage, stage)
        self._prepared.discard(action.stage)
        stage.versions.before_update(place)
        optimizer = self.optimizers.get((action.stage, action.pipe))
        if optimizer is not None and not self._skipped:
            for group in optimizer.param_groups if self._settings else ():
                group.update(self._settings[action.version - 1][group[GROUP]])
            with stage.versions.exact_parameters():
                for name, value in self._owned[action.stage, action.pipe].items():
                    value.grad = stage.gradient.get(name)
                if not self._stepped:
                    return_freed_memory()  # the first step allocates the optimizer's states, and they stay
                    self._stepped = True
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        if self.averages is not None and not self._skipped:
            self.averages.update((action.stage, action.pipe))
        stage.gradient = {}

    def _prepare_all(self) -> None:
        """Finish all all-reduces, sum the gradients of tied weights, unscale them, clip by the global norm."""
        for (number, _), stage in self._held.items():
            self.reduce(number, stage)
        for (number, _), stage in sorted(self._held.items()):  # ranks agree on layouts in one order
            self._finish_sum(number, stage)
        self._reduce_tied()
        if self._rules.loss_scale is not None:
            self._unscale(self._rules.loss_scale)
        if self._rules.clip is not None and not self._skipped:
            once = [stage.gradient for (_, pipe), stage in self._held.items() if pipe == 0]
            every = list(self._held.values())
            norm = global_norm(once, self._rules.shares(once), self._groups.pipeline, every[0].device)
            clip_gradients([stage.gradient for stage in every], norm, self._rules.clip)

    def _unscale(self, loss_scale: LossScale) -> None:
        """Divide the gradients by the scale; skip the update, on all ranks, if one is not finite on any."""
        gradients = [stage.gradient for stage in self._held.values()]
        device = next(iter(self._held.values())).device
        finite = all_finite(gradients, self._groups.pipeline, device)
        for own in gradients if finite else ():
            for value in own.values():
                value.mul_(1.0 / loss_scale.scale)
        self._skipped = not finite
        loss_scale.update(finite=finite)

    def _reduce_now(self, number: int, stage: StageCopy) -> None:
        self.reduce(number, stage)
        self._finish_sum(number, stage)

    def _finish_sum(self, number: int, stage: StageCopy) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.finish(stage.gradient)
        layouts = self._layouts.pop(number, None)
        if layouts is not None:
            stage.gradient = layouts.restore(stage.gradient, self._groups.copies.get(number), stage.device)

    def _reduce_tied(self) -> None:
        """Replace each tied weight's gradient by the sum over the stages that share the weight."""
        for tie in sorted(self._rules.tied):
            names = self._rules.tied[tie]
            holders = [(pipe, stage, names[number]) for (number, pipe), stage in self._held.items() if number in names]
            if not holders:
                continue
            _, stage, name = holders[0]
            weight = stage.versions.exact[name]
            gradients = [
                held.gradient[name]
                for pipe, held, name in holders
                if pipe == 0 and self._rules.first_replica and name in held.gradient
            ]
            local: NamedGradients = {tie: reduce(added, gradients)} if gradients else {}  # each is replaced below
            layouts = LocalLayouts(local, {tie: weight})
            total = dense(local[tie]).clone() if local else torch.zeros_like(weight)
            self._sums.sum_tie(tie, total)
            agreed = layouts.restore({tie: total}, self._groups.ties.get(tie), stage.device)
            for _, stage, name in holders:
                stage.gradient.pop(name, None)
                if tie in agreed:
                    stage.gradient[name] = agreed[tie].clone()


def _filled(stage: StageCopy) -> NamedGradients:
    """A dense gradient of each trained weight, zeros where there is none: all ranks sum the same tensors."""
    return {
        name: dense(stage.gradient[name]) if name in stage.gradient else torch.zeros_like(value)
        for name, value in stage.versions.trained.items()
    }


def check_tied_weights(schedule: Schedule, tied: TiedWeights) -> None:
    """TrainingError if stages share weights but update at different times, so that the copies would diverge."""
    if tied and not schedule.flushes:
        raise TrainingError(
            f"{next(iter(tied))} is shared by several stages, which {schedule.name} updates at different times: take a "
            "schedule that flushes, or fewer stages"
        )
