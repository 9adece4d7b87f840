"""Updates of the stages that a rank holds: gradients summed over ranks, clipped, and one optimizer step.

With a flush all stages' gradients are complete before the first update, so sums over shared weights and the norm are of
the whole model, as on one device. Without one every stage updates by itself and is clipped by its own norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from jellybean.training.errors import TrainingError
from jellybean.training.stages.gradient_sums import Groups, Pending, Ties, begin_sum, norm_of, scale
from jellybean.training.stages.stage import Stage
from jellybean_solver.pipeline import Action, Schedule

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Updates:
    """`counts`: whether this rank is in the first replica."""

    def __init__(
        self,
        held: Mapping[tuple[int, int], Stage],
        make_optimizer: MakeOptimizer,
        groups: Groups,
        *,
        flushes: bool,
        tied: Ties | None = None,
        clip: float | None = None,
        counts: bool = True,
    ) -> None:
        self._held, self._groups, self._flushes = held, groups, flushes
        self._tied, self._clip, self._counts = tied or {}, clip, counts
        self._lr: Callable[[int], float] | None = None
        self._pending: dict[int, Pending | None] = {}
        self._ready = False
        self.optimizers: dict[tuple[int, int], torch.optim.Optimizer] = {}
        owned: set[int] = set()
        for copy in sorted(held):
            own = [p for p in held[copy].versions.parameters.values() if p.requires_grad and id(p) not in owned]
            owned |= {id(p) for p in own}
            if own:
                self.optimizers[copy] = make_optimizer(own)

    def begin(self, lr: Callable[[int], float] | None) -> None:
        """A new iteration."""
        self._lr, self._ready, self._pending = lr, False, {}

    def reduce(self, number: int, stage: Stage) -> None:
        """Start to sum the gradients of a stage over its copies."""
        group = self._groups.copies.get(number)
        if group is not None:
            _complete(stage)
            self._pending[number] = begin_sum(stage.gradient, group)

    def update(self, action: Action, stage: Stage, place: int) -> None:
        """Everything that has come for a stage goes into its weights."""
        if self._flushes:
            if not self._ready:
                self._gather()
                self._ready = True
        else:
            self._sum(action.stage, stage)
            if self._clip is not None:
                self._clip_by(self._clip, norm_of([stage.gradient], {}, None), [stage])
        stage.versions.before_update(place)
        optimizer = self.optimizers.get((action.stage, action.pipe))
        if optimizer is not None:
            if self._lr is not None:
                for group in optimizer.param_groups:
                    group["lr"] = self._lr(action.version - 1)
            for name, value in stage.versions.parameters.items():
                value.grad = stage.gradient.get(name)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        stage.gradient = {}

    def _gather(self) -> None:
        """All sums and the norm, of all stages at once."""
        for (number, _), stage in self._held.items():
            if number not in self._pending:
                self.reduce(number, stage)
        for pending in self._pending.values():
            if pending is not None:
                pending.finish()
        self._share()
        if self._clip is not None:
            once = [stage.gradient for (_, pipe), stage in self._held.items() if pipe == 0]
            shares = {name: len(names) for names in self._tied.values() for name in names.values()}
            norm = norm_of(once, shares, self._groups.pipeline)
            self._clip_by(self._clip, norm, list(self._held.values()))

    def _sum(self, number: int, stage: Stage) -> None:
        self.reduce(number, stage)
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.finish()

    def _share(self) -> None:
        """Weights that several stages share get the sum of these stages' gradients."""
        for tie in sorted(self._tied):
            names = self._tied[tie]
            holders = [(pipe, stage, names[number]) for (number, pipe), stage in self._held.items() if number in names]
            if not holders:
                continue
            _, stage, name = holders[0]
            total = torch.zeros_like(stage.versions.parameters[name])
            for pipe, stage, name in holders:
                if pipe == 0 and self._counts and name in stage.gradient:
                    total += stage.gradient[name]
            group = self._groups.ties.get(tie)
            if group is not None:
                dist.all_reduce(total, group=group)
            for _, stage, name in holders:
                stage.gradient[name] = total.clone()

    def _clip_by(self, most: float, norm: float, stages: list[Stage]) -> None:
        if norm > most:
            scale([stage.gradient for stage in stages], most / (norm + 1e-6))


def _complete(stage: Stage) -> None:
    """Zeros where no gradient came, so that all ranks sum the same weights."""
    stage.gradient = {
        name: stage.gradient[name] if name in stage.gradient else torch.zeros_like(value)
        for name, value in stage.versions.parameters.items()
        if value.requires_grad
    }


def refuse_ties(schedule: Schedule, tied: Ties) -> None:
    """TrainingError where stages share weights and update at different times, so that these would drift apart."""
    if tied and not schedule.flushes:
        raise TrainingError(
            f"{next(iter(tied))} is shared by several stages, which {schedule.name} updates at different times: take a "
            "schedule that flushes, or fewer stages"
        )
