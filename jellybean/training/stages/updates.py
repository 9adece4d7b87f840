"""Weight updates of a rank's stages: gradients all-reduced, clipped, one optimizer step.

With a flush, all stages' gradients are complete before the first update, so tied weights and the norm are reduced over
the whole model, as on one device. Without a flush, every stage updates alone and is clipped by its own norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.training.errors import TrainingError
from jellybean.training.stages.all_reduce import (
    PendingAllReduce,
    ProcessGroups,
    TiedWeights,
    clip_gradients,
    global_norm,
    start_all_reduce,
)
from jellybean.training.stages.stage import StageCopy
from jellybean_solver.pipeline import Action, Schedule

MakeOptimizer = Callable[[dict[str, nn.Parameter]], torch.optim.Optimizer]  # parameters by name
GroupSettings = Sequence[Mapping[str, Any]]  # settings of each parameter group: learning rate, momentum
GROUP = "group"  # key of an optimizer's parameter group: its index in the model, as a stage may lack some groups


class WeightUpdates:
    """Updates of the stages that a rank holds. `held`: (stage, pipe) -> copy. `clip`: largest gradient norm.

    `first_replica`: True for the ranks of the first replica, which alone contribute to the sum over tied weights.
    """

    def __init__(
        self,
        held: Mapping[tuple[int, int], StageCopy],
        make_optimizer: MakeOptimizer,
        groups: ProcessGroups,
        *,
        flushes: bool,
        tied: TiedWeights | None = None,
        clip: float | None = None,
        first_replica: bool = True,
    ) -> None:
        self._held, self._groups, self._flushes = held, groups, flushes
        self._tied, self._clip, self._first_replica = tied or {}, clip, first_replica
        self._settings: Sequence[GroupSettings] = ()
        self._pending: dict[int, PendingAllReduce | None] = {}
        self._ready = False
        self.optimizers: dict[tuple[int, int], torch.optim.Optimizer] = {}
        owned: set[int] = set()
        for copy in sorted(held):
            every = held[copy].versions.parameters.items()
            own = {name: p for name, p in every if p.requires_grad and id(p) not in owned}
            owned |= {id(p) for p in own.values()}
            if own:
                self.optimizers[copy] = make_optimizer(own)

    def begin_iteration(self, settings: Sequence[GroupSettings]) -> None:
        """Start an iteration. `settings[i]`: settings of its i-th update (learning rates); empty: unchanged."""
        self._settings, self._ready, self._pending = settings, False, {}

    def reduce(self, number: int, stage: StageCopy) -> None:
        """Start the all-reduce of a stage's gradient over its copies."""
        group = self._groups.copies.get(number)
        if group is not None:
            _fill_missing(stage)
            self._pending[number] = start_all_reduce(stage.gradient, group)

    def update(self, action: Action, stage: StageCopy, place: int) -> None:
        """Apply a stage's accumulated gradient to its weights. `place`: index of the action in the device's order."""
        if self._flushes:
            if not self._ready:
                self._prepare_all()
                self._ready = True
        else:
            self._reduce_now(action.stage, stage)
            if self._clip is not None:
                norm = global_norm([stage.gradient], {}, None, stage.device)
                clip_gradients([stage.gradient], norm, self._clip)
        stage.versions.before_update(place)
        optimizer = self.optimizers.get((action.stage, action.pipe))
        if optimizer is not None:
            for group in optimizer.param_groups if self._settings else ():
                group.update(self._settings[action.version - 1][group[GROUP]])
            for name, value in stage.versions.parameters.items():
                value.grad = stage.gradient.get(name)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        stage.gradient = {}

    def _prepare_all(self) -> None:
        """Finish all all-reduces, sum the gradients of tied weights, clip by the global norm."""
        for (number, _), stage in self._held.items():
            if number not in self._pending:
                self.reduce(number, stage)
        for pending in self._pending.values():
            if pending is not None:
                pending.finish()
        self._reduce_tied()
        if self._clip is not None:
            once = [stage.gradient for (_, pipe), stage in self._held.items() if pipe == 0]
            shares = {name: len(names) for names in self._tied.values() for name in names.values()}
            every = list(self._held.values())
            norm = global_norm(once, shares, self._groups.pipeline, every[0].device)
            clip_gradients([stage.gradient for stage in every], norm, self._clip)

    def _reduce_now(self, number: int, stage: StageCopy) -> None:
        self.reduce(number, stage)
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.finish()

    def _reduce_tied(self) -> None:
        """Replace each tied weight's gradient by the sum over the stages that share the weight."""
        for tie in sorted(self._tied):
            names = self._tied[tie]
            holders = [(pipe, stage, names[number]) for (number, pipe), stage in self._held.items() if number in names]
            if not holders:
                continue
            _, stage, name = holders[0]
            total = torch.zeros_like(stage.versions.parameters[name])
            for pipe, stage, name in holders:
                if pipe == 0 and self._first_replica and name in stage.gradient:
                    total += stage.gradient[name]
            group = self._groups.ties.get(tie)
            if group is not None:
                dist.all_reduce(total, group=group)
            for _, stage, name in holders:
                stage.gradient[name] = total.clone()


def _fill_missing(stage: StageCopy) -> None:
    """Fill missing gradients with zeros, so that all ranks reduce the same tensors."""
    stage.gradient = {
        name: stage.gradient[name] if name in stage.gradient else torch.zeros_like(value)
        for name, value in stage.versions.parameters.items()
        if value.requires_grad
    }


def check_tied_weights(schedule: Schedule, tied: TiedWeights) -> None:
    """TrainingError if stages share weights but update at different times, so that the copies would diverge."""
    if tied and not schedule.flushes:
        raise TrainingError(
            f"{next(iter(tied))} is shared by several stages, which {schedule.name} updates at different times: take a "
            "schedule that flushes, or fewer stages"
        )
