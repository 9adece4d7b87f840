"""Copies the next micro-batches to a device while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from jellybean.training.processes.streams import Event, Streams
from jellybean.training.processes.tensor_messages import StageTensors
from jellybean.training.stages.interpreter import HeldStages, MicrobatchFeed
from jellybean.training.stages.stage import RandomSeed
from jellybean_solver.pipeline import ActionKind, Schedule

_AHEAD = 2  # reads under way: usually the inputs and the targets of the next micro-batch


@dataclass(frozen=True)
class Read:
    """A read of a micro-batch: of the model's tensors with indices `arguments`, or, if None, of the target."""

    microbatch: int
    arguments: tuple[int, ...] | None


def feed_reads(schedule: Schedule, device: int, held: HeldStages) -> list[Read]:
    """What the interpreter of a device reads in an iteration, in order: inputs of its stages, targets of the loss."""
    found, first_pipes = [], schedule.first_pipes
    for action in schedule.actions[device]:
        if action.kind is ActionKind.FORWARD:
            stage = held[action.stage, first_pipes[action.pipe][action.stage]]
            found.append(Read(action.microbatch, stage.inputs.arguments))
            found += [Read(action.microbatch, None)] if stage.loss is not None else []
    return found


@dataclass(frozen=True)
class _Copied:
    """What a read gives, on its way to the device."""

    read: Read
    value: Any
    event: Event


class PrefetchedFeed:
    """A feed on a device. `feed`: of the same micro-batches in host memory. `reads`: what the rank reads, in order.

    Values are copied from pinned memory on a stream of their own, so that neither the host nor the computation waits.
    """

    def __init__(self, feed: MicrobatchFeed, reads: Sequence[Read], streams: Streams) -> None:
        self._feed, self._streams = feed, streams
        self._coming = deque(reads)
        self._copied: deque[_Copied] = deque()
        self._begin()

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> StageTensors:
        """The model's tensors with these indices."""
        values: StageTensors = self._take(Read(microbatch, arguments))
        return values

    def target(self, microbatch: int) -> Any:
        """Second argument of the loss."""
        return self._take(Read(microbatch, None))

    def factor(self, microbatch: int) -> float:
        """Weight of a micro-batch's mean loss."""
        return self._feed.factor(microbatch)

    def seed(self, microbatch: int, stage: int) -> RandomSeed:
        """Random seed of a forward."""
        return self._feed.seed(microbatch, stage)

    def _take(self, read: Read) -> Any:
        copied = self._copied.popleft()
        if copied.read != read:
            raise AssertionError(f"{read} is read where {copied.read} was announced")
        self._streams.wait(copied.event)
        pytree.tree_map_only(torch.Tensor, self._streams.used_by_computation, copied.value)
        self._begin()
        return copied.value

    def _begin(self) -> None:
        """Begin the next reads."""
        while self._coming and len(self._copied) < _AHEAD:
            read = self._coming.popleft()
            if read.arguments is None:
                value = self._feed.target(read.microbatch)
            else:
                value = self._feed.inputs(read.microbatch, read.arguments)
            with self._streams.current(self._streams.inputs):
                value = pytree.tree_map_only(torch.Tensor, self._copy, value)
            self._copied.append(_Copied(read, value, self._streams.mark(self._streams.inputs)))

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        pinned = self._streams.host_empty(value.shape, value.dtype)
        pinned.copy_(value)
        copied = self._streams.empty(value.shape, value.dtype)
        self._streams.copy(copied, pinned)
        return copied
