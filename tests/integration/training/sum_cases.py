"""Cases of sums by messages that ranks run: all ways beside all_reduce, two groups at once, overlap with a backward."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.training import AllReduceInterpreter, StageCopy, UpdateSettings, WeightUpdates
from jellybean.training.collectives.interpreter import MessageSettings
from jellybean.training.collectives.message_sums import MessageSums
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean_solver.pipeline import make_all_reduce

PATIENCE_S = 20.0


@dataclass(frozen=True)
class SumVectors:
    """Sum a random vector of each of the first `workers` ranks, by messages and by torch; in small messages if `small`.

    Returns (sum, torch's sum, bytes sent) of whole numbers, and the sum of any numbers.
    """

    way: str
    workers: int
    size: int
    small: bool = True

    def __call__(self, rank: int) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor] | None:
        group = dist.new_group(list(range(self.workers)))
        if rank >= self.workers:
            return None
        maker = torch.Generator().manual_seed(rank)
        whole = torch.randint(-(2**40), 2**40, (self.size,), generator=maker).double()
        numbers = torch.randn(self.size, generator=maker)
        expected = whole.clone()
        dist.all_reduce(expected, group=group)
        settings = MessageSettings(256, 3) if self.small else MessageSettings()
        interpreter = AllReduceInterpreter(make_all_reduce(self.way, self.workers), group, settings=settings)
        interpreter.run(torch.ones(33))  # may leave buffers of 132 bytes, which whole numbers of 8 bytes do not fill
        before = interpreter.sent_bytes
        interpreter.run(whole)
        sent_bytes = interpreter.sent_bytes - before
        interpreter.run(numbers)
        return whole, expected, sent_bytes, numbers


@dataclass(frozen=True)
class TwoSumsAtOnce:
    """Two stages, over groups of ranks that overlap or are the same; ranks start them in opposite orders.

    Returns the two sums of each rank, several times over.
    """

    way: str
    members: tuple[tuple[int, ...], tuple[int, ...]]
    times: int = 5

    def __call__(self, rank: int) -> list[list[torch.Tensor]]:
        made = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(self.members))}
        groups = {stage: made[ranks] if rank in ranks else None for stage, ranks in enumerate(self.members)}
        sums = MessageSums(self.way, 4000.0, groups, {})
        found = []
        for turn in range(self.times):
            gradients = {
                stage: {name: torch.full((500,), 10.0**rank * (1 + stage + turn)) for name in ("a", "b", "c")}
                for stage in groups
            }
            order = sorted(groups, reverse=rank % 2 == 1)
            pending = {stage: sums.start(stage, gradients[stage]) for stage in order}
            for stage in order:  # a rank that waits for one sum before it starts the other would wait for ever
                if (own := pending[stage]) is not None:
                    own.finish(gradients[stage])
            found.append([torch.stack(list(gradients[stage].values())) for stage in sorted(groups)])
        return found


@dataclass(frozen=True)
class BufferBytes:
    """Sum a stage's gradients by messages, in buckets. Returns the bytes that the sums then hold beside the gradients.

    `layers`: elements of each layer's one gradient.
    """

    way: str
    workers: int
    layers: tuple[int, ...]
    bucket_bytes: int

    def __call__(self, rank: int) -> int | None:
        group = dist.new_group(list(range(self.workers)))
        if rank >= self.workers:
            return None
        gradients = {str(number): torch.ones(size) for number, size in enumerate(self.layers)}
        before = _storages()
        sums = MessageSums(self.way, self.bucket_bytes, {0: group}, {})
        pending = sums.start(0, gradients)
        assert pending is not None
        pending.finish(gradients)
        held = _storages()
        return sum(size_bytes for key, size_bytes in held.items() if key not in before)


def _storages() -> dict[int, int]:
    """Memory of all tensors that are alive: address -> bytes."""
    gc.collect()
    storages = [one.untyped_storage() for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return {one.data_ptr(): one.nbytes() for one in storages}


class _Gate(torch.autograd.Function):
    """The identity; calls a function in its backward."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, passed: Callable[[], None]) -> torch.Tensor:
        context.passed = passed
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.passed()
        return gradients[0], None


class _Gated(nn.Module):
    """Two layers with a gate between them, which a backward passes after the second layer, before the first."""

    def __init__(self, passed: Callable[[], None]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.passed = nn.Linear(40, 40).double(), nn.Linear(40, 40).double(), passed

    def forward(self, values: torch.Tensor) -> Any:
        return self.second(_Gate.apply(self.first(values), self.passed))


@dataclass(frozen=True)
class Overlap:
    """The second layer's sum must send while the backward is still before the first layer, or the gate stays shut.

    Returns whether it opened, and the gradients' sums beside those of torch.
    """

    way: str

    def __call__(self, rank: int) -> tuple[bool, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        group = dist.new_group(list(range(dist.get_world_size())))
        groups = ProcessGroups({0: group})
        sums = MessageSums(self.way, 41 * 40 * 8.0, groups.copies, {})  # a bucket a layer
        opened: list[bool] = []

        def passed() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not sums.sent_bytes and time.monotonic() < deadline:
                time.sleep(0.001)
            opened.append(bool(sums.sent_bytes))

        stage = StageCopy(_Gated(passed), loss=lambda found, target: (found - target).square().mean())
        updates = WeightUpdates(
            {(0, 0): stage},
            lambda own: torch.optim.SGD(own.values(), lr=0.1),
            groups,
            UpdateSettings(flushes=True),
            sums=sums,
        )
        values = torch.randn(8, 40, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        stage.begin_iteration({0: 2})
        updates.begin_iteration([])
        stage.forward(0, (values,), 0, seed=0, target=values)
        with updates.last_backward(0, stage):
            stage.backward(0, ())
        alone = {name: value.clone() for name, value in stage.gradient.items()}
        pending = sums.start(0, stage.gradient)
        if pending is not None:
            pending.finish(stage.gradient)
        for value in alone.values():
            dist.all_reduce(value, group=group)
        return opened == [True], dict(stage.gradient), alone
