"""Sums of gradients, also where the ranks of a tensor group have different rows (CNN hybrid).

There a part of a weight has the gradient of all rows of its pipeline, and is summed over replicas; other weights are
summed over all ranks that hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from jellybean.documents.training.run import TORCH, SyncSpec
from jellybean.training.collectives.message_sums import MessageSums
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.gradient_layouts import NamedGradients
from jellybean.training.stages.gradient_sums import GradientSums, PendingSum, TorchSums, Watcher


@dataclass(frozen=True)
class SumsByRows:
    """Sums of a rank: `parts` of the weights in `split`, `rest` of the others."""

    split: frozenset[str]
    parts: GradientSums
    rest: GradientSums

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank has sent so far; None if they are not counted."""
        both = (self.parts.sent_bytes, self.rest.sent_bytes)
        return None if None in both else sum(filter(None, both))

    def watcher(self, number: int, values: Mapping[str, torch.Tensor]) -> Watcher | None:
        """What a stage calls with its gradients; None if neither sum begins before `start`."""
        watchers = [
            sums.watcher(number, {name: value for name, value in values.items() if (name in self.split) is split})
            for split, sums in ((False, self.rest), (True, self.parts))
        ]
        if watchers == [None, None]:
            return None

        def watch(name: str, gradient: torch.Tensor) -> None:
            watcher = watchers[name in self.split]
            if watcher is not None:
                watcher(name, gradient)

        return watch

    def start(self, number: int, gradients: NamedGradients) -> PendingSum | None:
        """Start the sums of a stage's gradients."""
        parts = {name: value for name, value in gradients.items() if name in self.split}
        rest = {name: value for name, value in gradients.items() if name not in self.split}
        started = [(self.parts.start(number, parts), parts), (self.rest.start(number, rest), rest)]
        return _PendingSums([(one, summed) for one, summed in started if one is not None])

    def sum_tie(self, name: str, total: torch.Tensor) -> None:
        """Sum a shared weight's gradient over its stages; it is equal or a part on each rank of a tensor group."""
        self.parts.sum_tie(name, total)


@dataclass(frozen=True)
class _PendingSums:
    started: list[tuple[PendingSum, NamedGradients]]

    def finish(self, gradients: NamedGradients) -> None:
        """Wait; `gradients`, whose tensors the sums have, then hold them."""
        for pending, summed in self.started:
            pending.finish(summed)


def make_sums(sync: SyncSpec, groups: ProcessGroups, split: Iterable[str], *, by_rows: bool) -> GradientSums:
    """How a rank sums gradients. `groups`: for messages in host memory, those of host memory. `split`: weights."""
    if not by_rows:
        return _sums_over(sync, groups)
    every = replace(groups, copies=groups.workers)
    return SumsByRows(frozenset(split), _sums_over(sync, groups), _sums_over(sync, every))


def _sums_over(sync: SyncSpec, groups: ProcessGroups) -> GradientSums:
    if sync.way == TORCH:
        return TorchSums(groups)
    return MessageSums(sync.way, sync.bucket_bytes, groups.copies, groups.ties)
