"""Sums of a rank's gradients over the copies of its stages: what updates need of them, and torch's all_reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from jellybean.training.stages.all_reduce import NamedGradients, ProcessGroups

Watcher = Callable[[str, torch.Tensor], None]  # called with the name and value of a gradient that is complete


class PendingSum(Protocol):
    """A sum of gradients in flight."""

    def finish(self, gradients: NamedGradients) -> None:
        """Wait; the gradients then hold the sum over all ranks."""


class GradientSums(Protocol):
    """Sums the gradients of stages, by number, and of weights that stages share, by name.

    Names and sizes of gradients are equal on all ranks that hold a stage.
    """

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank has sent so far; None if they are not counted."""

    def watcher(self, number: int, values: Mapping[str, torch.Tensor]) -> Watcher | None:
        """What a stage calls with the gradients of its last backward; None if the sum starts only with `start`."""

    def start(self, number: int, gradients: NamedGradients) -> PendingSum | None:
        """Start the sum of a stage's gradients, those the watcher got left out; None if there is nothing to sum."""

    def sum_tie(self, name: str, total: torch.Tensor) -> None:
        """Replace this rank's part of a shared weight's gradient by the sum."""


class TorchSums:
    """torch.distributed's all_reduce: one for each stage, in the order of the schedule."""

    sent_bytes: int | None = None  # the library does not tell

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups

    def watcher(self, number: int, values: Mapping[str, torch.Tensor]) -> Watcher | None:
        """None: sums of several groups must start in one order on all ranks, as NCCL runs them in order."""
        return None

    def start(self, number: int, gradients: NamedGradients) -> PendingSum | None:
        """Start an all-reduce of a stage's gradients; None if this rank alone has the stage, or it has none."""
        group = self._groups.copies.get(number)
        if group is None or not gradients:
            return None
        flat = torch.cat([value.reshape(-1) for value in gradients.values()])
        return _PendingAllReduce(flat, dist.all_reduce(flat, group=group, async_op=True))

    def sum_tie(self, name: str, total: torch.Tensor) -> None:
        """All-reduce a shared weight's gradient."""
        group = self._groups.ties.get(name)
        if group is not None:
            dist.all_reduce(total, group=group)


@dataclass(frozen=True)
class _PendingAllReduce:
    """An all-reduce of flattened gradients."""

    flat: torch.Tensor
    work: Any

    def finish(self, gradients: NamedGradients) -> None:
        """Wait; write the sums into the gradients."""
        self.work.wait()
        place = 0
        for value in gradients.values():
            value.copy_(self.flat[place : place + value.numel()].view_as(value))
            place += value.numel()
