"""Learning rates by update: built in, or a scheduler of torch.optim.lr_scheduler or of the user.

The settings of an update follow from the document, the update's number and the test losses of the epochs before, so
they are the same on every rank, under every schedule, and after a run is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch.optim import lr_scheduler

from jellybean.documents.training import LrSpec
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.errors import TrainingError
from jellybean.training.optimization.optimizers import OptimizerPlan
from jellybean.training.optimization.torch_classes import (
    check_arguments,
    find_class,
    load_class,
    without_lists,
)
from jellybean.training.stages.updates import GroupSettings

_PER_UPDATE = ("OneCycleLR", "CyclicLR")  # torch steps these after every batch
_REFUSED = {
    "LambdaLR": "it takes Python functions, which a document cannot have",
    "MultiplicativeLR": "it takes Python functions, which a document cannot have",
    "SequentialLR": "it takes other schedulers",
    "ChainedScheduler": "it takes other schedulers",
}
_TRIED_STEPS = 10_000  # before training; about 0.2 s
_RESERVED = ("optimizer", "last_epoch", "verbose", "scale_fn")


class LrSchedule(Protocol):
    """The settings of the optimizer's parameter groups by update."""

    def settings(self, first: int, count: int) -> list[GroupSettings]:
        """Settings of the updates `first` to `first + count - 1` of the run. `first` does not decrease."""

    def end_epoch(self, test_loss: float) -> None:
        """An epoch ended with this loss on the test rows."""


def make_lr_schedule(
    spec: LrSpec, plan: OptimizerPlan, updates: int, epochs: int, directory: Path = Path()
) -> LrSchedule:
    """The document's schedule. `updates`: per epoch. TrainingError if torch has no such class or argument."""
    if spec.built_in:
        return FactorSchedule(plan, lr_factor(spec, updates, epochs))
    return SchedulerSteps(spec, plan, updates, epochs, directory)


def check_lr_schedule(spec: LrSpec, plan: OptimizerPlan, updates: int, epochs: int, directory: Path) -> None:
    """Make the document's schedule and step it to the end of the run. TrainingError if either fails.

    Of very many steps the first and, where the class states their number, the last are tried.
    """
    schedule = make_lr_schedule(spec, plan, updates, epochs, directory)
    if isinstance(schedule, SchedulerSteps):
        schedule.check(updates * epochs)


def lr_factor(spec: LrSpec, updates: int, epochs: int) -> Callable[[int], float]:
    """Factor on the optimizer's rates by the update's number in the run, from 0: linear warm-up, then as in `spec`."""
    total, warmup = updates * epochs, spec.warmup * updates

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / (warmup + 1)
        done = (update - warmup) / max(1.0, total - warmup)
        match spec.name:
            case "linear":
                return 1.0 - done
            case "cosine":
                return (1.0 + math.cos(math.pi * done)) / 2
        return 1.0

    return factor


class FactorSchedule:
    """Every group's own rate times a factor."""

    def __init__(self, plan: OptimizerPlan, factor: Callable[[int], float]) -> None:
        self._rates, self._factor = [float(group["lr"]) for group in plan.groups], factor

    def settings(self, first: int, count: int) -> list[GroupSettings]:
        """Settings of `count` updates."""
        factors = (self._factor(update) for update in range(first, first + count))
        return [[{"lr": rate * factor} for rate in self._rates] for factor in factors]

    def end_epoch(self, test_loss: float) -> None:
        """The rates do not depend on losses."""


class SchedulerSteps:
    """A scheduler of torch, stepped on an optimizer of its own; its settings are copied to the ranks' optimizers.

    Per epoch, or per update. ReduceLROnPlateau steps at the end of an epoch, by the test loss.
    """

    def __init__(self, spec: LrSpec, plan: OptimizerPlan, updates: int, epochs: int, directory: Path = Path()) -> None:
        if spec.of_user:
            made = load_class(spec.name, lr_scheduler.LRScheduler, directory, "lr_schedule")
        else:
            made = find_class(lr_scheduler, lr_scheduler.LRScheduler, spec.name, _REFUSED, "lr_schedule")
        check_arguments(made, spec.arguments, "lr_schedule", _RESERVED)
        self._name = made.__name__
        self._takes_loss = issubclass(made, lr_scheduler.ReduceLROnPlateau)
        by_update = spec.per == "update" or (spec.per is None and self._name in _PER_UPDATE)
        if self._takes_loss and by_update:
            raise TrainingError(
                f"lr_schedule: {self._name} takes the test loss, which each epoch has: write per: epoch"
            )
        self._updates, self._done = (1 if by_update else updates), 0
        given = {name: without_lists(value) for name, value in spec.arguments.items()}
        if self._name == "OneCycleLR" and not {"total_steps", "epochs"} & given.keys():
            given["total_steps"] = epochs * updates if by_update else epochs
        self._optimizer = plan.make_empty()
        self._before, self._changed = self._values(), set[str]()
        try:
            self._scheduler = made(self._optimizer, **given)
            self._optimizer.step()  # without gradients; torch warns of schedulers that step before the optimizer
        except Exception as error:  # torch raises ValueError, TypeError and others
            raise TrainingError(f"lr_schedule: {self._name} does not take these arguments: {error}") from error
        self._current = self._read()

    def settings(self, first: int, count: int) -> list[GroupSettings]:
        """Settings of `count` updates."""
        return [self._at(update // self._updates) for update in range(first, first + count)]

    def end_epoch(self, test_loss: float) -> None:
        """Step by the loss, if the scheduler takes it."""
        if self._takes_loss:
            self._step(test_loss)
            self._current = self._read()

    def check(self, updates: int) -> None:
        """Step as in so many updates, after which this schedule is used up."""
        steps = -(-updates // self._updates)
        stated = getattr(self._scheduler, "total_steps", None)
        if isinstance(stated, int) and stated < steps:
            unit = "updates" if self._updates == 1 else "epochs"
            raise TrainingError(
                f"lr_schedule: {self._name} has {stated} steps, and the run {steps} {unit}: leave out total_steps and "
                "epochs, which follow from the run"
            )
        for update in range(0, min(steps, _TRIED_STEPS) * self._updates, self._updates):
            self._at(update // self._updates)
        if self._takes_loss:
            self.end_epoch(1.0)

    def _at(self, steps: int) -> GroupSettings:
        while self._done < steps and not self._takes_loss:
            self._step()
            self._done += 1
            self._current = self._read()
        return self._current

    def _step(self, *loss: float) -> None:
        try:
            self._scheduler.step(*loss)
        except Exception as error:  # OneCycleLR beyond its last step; a class of the user
            raise TrainingError(
                f"lr_schedule: {self._name} failed at step {self._done + 1}{place_and_reason(error)}"
            ) from error

    def _values(self) -> list[dict[str, Any]]:
        names = self._optimizer.defaults
        return [{name: group[name] for name in names} for group in self._optimizer.param_groups]

    def _read(self) -> GroupSettings:
        """What the scheduler has changed so far: other values of a group are the optimizer's.

        TrainingError if a rate is not finite.
        """
        values = self._values()
        for before, after in zip(self._before, values, strict=True):
            self._changed |= {name for name, value in after.items() if value is not before[name]}
            if not math.isfinite(after["lr"]):
                raise TrainingError(f"lr_schedule: {self._name} gives the rate {after['lr']} at step {self._done}")
        return [{name: group[name] for name in ("lr", *sorted(self._changed - {"lr"}))} for group in values]
