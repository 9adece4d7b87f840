"""One buffer from those of a stage's copies, which have run different micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def counts(value: torch.Tensor) -> bool:
    """Whether a buffer has whole numbers or flags, so that copies have changes and no means."""
    return not (value.is_floating_point() or value.is_complex())


def merged(before: torch.Tensor, copies: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of running statistics; of whole numbers `before` with the changes of all copies, of flags of any."""
    if not counts(before):
        return torch.stack(list(copies)).mean(0)
    if before.dtype is torch.bool:
        return before ^ torch.stack([value ^ before for value in copies]).any(0)
    return before + torch.stack([value - before for value in copies]).sum(0).to(before.dtype)


def merge_over(group: dist.ProcessGroup, value: torch.Tensor, before: torch.Tensor | None) -> None:
    """Replace this rank's buffer by the merged one of a group. A collective call. `before`: of whole numbers."""
    if before is None:
        dist.all_reduce(value, group=group)
        value.div_(dist.get_world_size(group))
        return
    copies = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(copies, value.contiguous(), group=group)
    value.copy_(merged(before, copies))
