"""Sums of a rank's gradients over the copies of its stages: what updates need of them, and torch's all_reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.gradient_layouts import NamedGradients

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
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for value in gradients.values():
            by_type.setdefault(value.dtype, []).append(value.reshape(-1))
        flat = {dtype: torch.cat(values) for dtype, values in by_type.items()}
        works = [dist.all_reduce(values, group=group, async_op=True) for values in flat.values()]
        return _PendingAllReduces(flat, works)

    def sum_tie(self, name: str, total: torch.Tensor) -> None:
        """All-reduce a shared weight's gradient."""
        group = self._groups.ties.get(name)
        if group is not None:
            dist.all_reduce(total, group=group)


@dataclass(frozen=True)
class _PendingAllReduces:
    """All-reduces of flattened gradients, one for each type: a common type would round, or drop imaginary parts."""

    flat: dict[torch.dtype, torch.Tensor]
    works: list[Any]

    def finish(self, gradients: NamedGradients) -> None:
        """Wait; write the sums into the gradients."""
        for work in self.works:
            work.wait()
        places = dict.fromkeys(self.flat, 0)
        for value in gradients.values():
            begin = places[value.dtype]
            places[value.dtype] = end = begin + value.numel()
            value.copy_(self.flat[value.dtype][begin:end].view_as(value))
