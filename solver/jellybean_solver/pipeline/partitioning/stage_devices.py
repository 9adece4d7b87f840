"""The devices of each stage of a partition: replicas in a row, hierarchies flattened, DAPPLE's placement as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_solver.pipeline.partitioning.stages import PartitionStage


@dataclass(frozen=True, slots=True)
class StageDevices:
    """A stage of the flat pipeline: indices of its layers, and the device of each replica.

    Micro-batch m goes to replica m mod the number of replicas.
    """

    layers: tuple[int, ...]
    devices: tuple[int, ...]


def stage_devices(stages: Sequence[PartitionStage], first: int = 0) -> tuple[StageDevices, ...]:
    """The stages with their devices, which count from `first` where a stage does not name its own.

    The replicas of a stage inside a machine alternate between machines, so that a micro-batch stays on one of them.
    """
    found: list[StageDevices] = []
    for stage in stages:
        size = _size(stage)
        if stage.device is not None:
            found.append(StageDevices(stage.layers, (stage.device,)))
        elif stage.devices:
            found.append(StageDevices(stage.layers, stage.devices))
        elif not stage.inside:
            found.append(StageDevices(stage.layers, tuple(range(first, first + size))))
        else:
            step = size // stage.replicas
            machines = [stage_devices(stage.inside, first + number * step) for number in range(stage.replicas)]
            for copies in zip(*machines, strict=True):
                turns = zip(*(copy.devices for copy in copies), strict=True)
                found.append(StageDevices(copies[0].layers, tuple(device for turn in turns for device in turn)))
        first += size
    return tuple(found)


def _size(stage: PartitionStage) -> int:
    """Number of devices of a stage."""
    return stage.replicas * (sum(map(_size, stage.inside)) or 1)
