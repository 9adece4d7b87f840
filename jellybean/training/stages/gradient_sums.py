"""Gradients summed between ranks before an update: over copies of a stage, replicas, stages that share weights.

And the norm of all of them, by which they are clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from jellybean.training.processes.ranks import NEVER
from jellybean_solver.pipeline import Schedule

Gradients = dict[str, torch.Tensor]
Ties = dict[str, dict[int, str]]  # a shared weight -> the stages that share it, and what each calls it


@dataclass
class Pending:
    """An all-reduce on its way. `finish` waits, and writes the sums where the gradients were."""

    gradients: Gradients
    flat: torch.Tensor
    work: Any

    def finish(self) -> None:
        """All ranks' sum is then in each one's gradients."""
        self.work.wait()
        place = 0
        for value in self.gradients.values():
            value.copy_(self.flat[place : place + value.numel()].view_as(value))
            place += value.numel()


def begin_sum(gradients: Gradients, group: dist.ProcessGroup) -> Pending | None:
    """Start to sum over a group; all its ranks have the same names and sizes. None where there is nothing."""
    if not gradients:
        return None
    flat = torch.cat([value.reshape(-1) for value in gradients.values()])
    return Pending(gradients, flat, dist.all_reduce(flat, group=group, async_op=True))


@dataclass(frozen=True)
class Groups:
    """Who sums with whom; a rank knows the groups that it is in.

    `copies[stage]`: ranks that hold the stage, over pipes and replicas. `ties[name]`: ranks that hold a weight that
    several stages share. `pipeline`: the ranks of one replica. None: one rank alone, or this is none of them.
    """

    copies: Mapping[int, dist.ProcessGroup | None] = field(default_factory=dict)
    ties: Mapping[str, dist.ProcessGroup | None] = field(default_factory=dict)
    pipeline: dist.ProcessGroup | None = None


def norm_of(gradients: Sequence[Gradients], shares: Mapping[str, int], group: dist.ProcessGroup | None) -> float:
    """Euclidean norm over a pipeline. `shares`: how often a weight is counted over its ranks, where not once."""
    total = torch.zeros(1, dtype=torch.float64)
    for own in gradients:
        for name, value in own.items():
            total += value.detach().double().square().sum().cpu() / shares.get(name, 1)
    if group is not None:
        dist.all_reduce(total, group=group)
    return float(total.sqrt())


def scale(gradients: Sequence[Gradients], factor: float) -> None:
    """Multiply all of them."""
    for own in gradients:
        for value in own.values():
            value.mul_(factor)


def make_groups(schedule: Schedule, replicas: int, tied: Ties) -> Groups:
    """The groups of this rank. Ranks count devices first, then replicas; all ranks of the world call this alike."""
    rank, size = dist.get_rank(), schedule.devices
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Of these ranks, where this is one of them and not alone."""
        key = tuple(ranks)
        if len(key) > 1 and key not in made:
            made[key] = dist.new_group(list(key), timeout=NEVER)
        return made.get(key) if rank in key else None

    stages = {stage: group(_holders(schedule, replicas, [stage])) for stage in range(schedule.stages)}
    shared = {name: group(_holders(schedule, replicas, list(tied[name]))) for name in sorted(tied)}
    pipelines = [group(range(replica * size, replica * size + size)) for replica in range(replicas)]
    replica = rank // size
    return Groups(stages, shared, pipelines[replica] if replica < replicas else None)


def _holders(schedule: Schedule, replicas: int, stages: Sequence[int]) -> list[int]:
    devices = {places[stage] for places in schedule.device_of for stage in stages}
    return sorted(replica * schedule.devices + device for replica in range(replicas) for device in devices)
