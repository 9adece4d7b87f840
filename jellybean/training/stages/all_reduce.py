"""Process groups of sums over copies of a stage, replicas and shared weights; norm and finiteness of all gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch.nn.utils import get_total_norm

from jellybean.training.processes.ranks import NO_TIMEOUT
from jellybean.training.stages.gradient_layouts import NamedGradients, numbers
from jellybean_solver.pipeline import Schedule

TiedWeights = dict[str, dict[int, str]]  # shared weight -> stage -> parameter name in that stage


@dataclass(frozen=True)
class ProcessGroups:
    """Process groups for this rank's all-reduces; None for a group in which it is alone or not a member.

    `copies[stage]`: ranks that hold the stage, over pipes and replicas. `ties[name]`: ranks that hold a tied weight.
    `pipeline`: the ranks of one replica. `messages`: all ranks, for messages between stages. `tensor`: those that share
    its device's part of the model. `workers[stage]`: ranks that hold the stage or another part of it.
    """

    copies: Mapping[int, dist.ProcessGroup | None] = field(default_factory=dict)
    ties: Mapping[str, dist.ProcessGroup | None] = field(default_factory=dict)
    pipeline: dist.ProcessGroup | None = None
    messages: dist.ProcessGroup | None = None
    tensor: dist.ProcessGroup | None = None
    workers: Mapping[int, dist.ProcessGroup | None] = field(default_factory=dict)

    def destroy(self) -> None:
        """Free the groups of which this rank is a member."""
        every = [*self.copies.values(), *self.ties.values(), *self.workers.values()]
        every += [self.pipeline, self.messages, self.tensor]
        for group in {id(one): one for one in every if one is not None}.values():
            dist.destroy_process_group(group)


def global_norm(
    gradients: Sequence[NamedGradients],
    shares: Mapping[str, int],
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> torch.Tensor:
    """Euclidean norm of a pipeline's gradients, on the device: the host does not wait for it.

    `shares`: tied weight -> number of stages with it; it counts once.
    """
    by_share: dict[int, list[torch.Tensor]] = {}
    for own in gradients:
        for name, value in own.items():
            by_share.setdefault(shares.get(name, 1), []).append(numbers(value.detach()))
    total = torch.zeros((), dtype=torch.float64, device=device)
    for share, values in sorted(by_share.items()):
        total += get_total_norm(values).double().square() / share
    if group is not None:
        dist.all_reduce(total, group=group)
    return total.sqrt()


def all_finite(
    tensors: Sequence[Mapping[str, torch.Tensor]], group: dist.ProcessGroup | None, device: torch.device
) -> bool:
    """Whether no gradient or weight of the group's ranks is infinite or nan. The host waits for the answer.

    `device`: of the all-reduced flag.
    """
    largest = get_total_norm([numbers(value) for own in tensors for value in own.values()], norm_type=float("inf"))
    wrong = (~torch.isfinite(largest)).to(device, torch.float32)
    if group is not None:
        dist.all_reduce(wrong, group=group)
    return not float(wrong)


def clip_gradients(gradients: Sequence[NamedGradients], norm: torch.Tensor, most: float) -> None:
    """Scale gradients of this norm down to the norm `most`, in place."""
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for own in gradients:
        for value in own.values():
            value.mul_(factor.to(value.dtype))


def make_process_groups(
    schedule: Schedule, replicas: int, tied: TiedWeights, backend: str | None = None, tensor: int = 1
) -> ProcessGroups:
    """Create the process groups of this rank. A collective call: all ranks must make it.

    `backend`: of the groups; None for that of the run. `tensor`: ranks that share a device's part of the model.
    """
    rank, size = dist.get_rank(), schedule.devices * tensor
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """The group of these ranks; None unless this rank is in it with others."""
        key = tuple(ranks)
        if len(key) > 1 and key not in made:
            made[key] = dist.new_group(list(key), timeout=NO_TIMEOUT, backend=backend)
        return made.get(key) if rank in key else None

    def holders(stages: Sequence[int]) -> dist.ProcessGroup | None:
        """The ranks of this tensor index that hold one of these stages. Makes the groups of all indices."""
        devices = _holders(schedule, replicas, stages)
        return [group([device * tensor + index for device in devices]) for index in range(tensor)][rank % tensor]

    stages = {stage: holders([stage]) for stage in range(schedule.stages)}
    shared = {name: holders(list(tied[name])) for name in sorted(tied)}
    pipelines = [group(range(replica * size, replica * size + size)) for replica in range(replicas)]
    replica = rank // size
    found = ProcessGroups(stages, shared, pipelines[replica] if replica < replicas else None)
    if tensor == 1:
        return found
    shares = [group(_members([device], tensor)) for device in range(replicas * schedule.devices)]
    every = {stage: _members(_holders(schedule, replicas, [stage]), tensor) for stage in range(schedule.stages)}
    return replace(
        found,
        tensor=shares[rank // tensor] if replica < replicas else None,
        workers={stage: group(ranks) for stage, ranks in every.items()},
    )


def _members(devices: Sequence[int], tensor: int) -> list[int]:
    """The ranks of the tensor groups of these devices, which are counted over the replicas."""
    return [device * tensor + index for device in devices for index in range(tensor)]


def _holders(schedule: Schedule, replicas: int, stages: Sequence[int]) -> list[int]:
    """Devices that hold one of these stages, counted over the replicas."""
    devices = {places[stage] for places in schedule.device_of for stage in stages}
    return sorted(replica * schedule.devices + device for replica in range(replicas) for device in devices)
